"""Calls of programs that need nothing of AOTAutograd around them."""

import dataclasses
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


def program_in(call: Any) -> Any:
    """The program behind wrappers that only hand on where nothing is made of random numbers and
    tokens: torch 2.11 has such around every program."""
    while hasattr(call, "__wrapped__"):
        call = call.__wrapped__
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


@dataclasses.dataclass(frozen=True)
class CallMetadata:
    """What is to be done around AOTAutograd's function. cut_off: positions of inputs without a
    gradient path; single: the graph gives one tensor, no tuple; lone: how many draws were added to
    its results; idle: positions of inputs that neither results nor gradients are made of; drawing:
    devices whose kernels make random numbers."""

    cut_off: tuple[int, ...]
    single: bool
    lone: int
    idle: tuple[int, ...]
    drawing: tuple[str, ...]

    @classmethod
    def from_data(cls, data: dict[str, Any]) -> "CallMetadata":
        """Of `dataclasses.asdict`, after JSON."""
        tuples: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in data.items()
        }
        return cls(**tuples)

    def called(self, compiled: Callable[..., Any]) -> Callable[..., Any]:
        """The graph's function, as `joint.compile_graph` gives it."""
        inner = without_history(compiled, frozenset(self.cut_off))
        made: Any = inner
        if self.single:
            made = lambda *args: inner(*args)[0]  # noqa: E731
        elif self.lone:
            made = lambda *args: inner(*args)[: -self.lone]  # noqa: E731
        made.idle, made.drawing = frozenset(self.idle), self.drawing
        facts = getattr(compiled, "node_facts", None)
        made.node_facts = None if facts is None else self._for_node(facts)
        return made  # type: ignore[no-any-return]

    def _for_node(self, facts: dict[str, Any]) -> dict[str, Any]:
        """The same for a native node, which does it itself."""
        cut = tuple({*facts["cut"], *self.cut_off})
        return {**facts, "cut": cut, "single": self.single, "lone": 0 if self.single else self.lone}
