"""Calls of programs that need nothing of AOTAutograd around them."""

from collections.abc import Callable, Sequence
from typing import Any

import torch


def plain_call(
    program: Callable[[list[Any]], list[Any]], written: Sequence[int], without_autocast: bool
) -> Callable[..., Any]:
    """What AOTAutograd's wrapper does for inference whose results are the program's own: no history
    is recorded, and autograd is told of the inputs that are `written`."""

    def call(*inputs: Any) -> list[Any]:
        if written:
            torch.autograd.graph.increment_version([inputs[index] for index in written])
        recording = torch.is_grad_enabled()
        try:
            if recording:
                torch._C._set_grad_enabled(False)
            if without_autocast:
                with torch._C._DisableAutocast():
                    return program(list(inputs))
            return program(list(inputs))
        finally:
            if recording:
                torch._C._set_grad_enabled(True)

    return call


def without_history(compiled: Callable[..., Any], cut_off: frozenset[int]) -> Callable[..., Any]:
    """`compiled`, given the inputs of `cut_off` without their history: eager would not look into it
    either, and it may have been freed."""
    if not cut_off:
        return compiled

    def call(*args: Any) -> Any:
        return compiled(
            *(
                arg.detach() if index in cut_off and arg.requires_grad else arg
                for index, arg in enumerate(args)
            )
        )

    return call
