"""Large results of programs in memory that was let go of before (`native/memory.cpp`): fresh memory
costs a page fault every 4 KiB, more than most loops that fill it.

Until the native part is built, and where it cannot be, torch's own allocator serves.
"""

import functools
import os
import sys
import threading
from collections.abc import Callable
from math import prod
from types import ModuleType
from typing import Any

import torch

from .. import build
from ..torch_headers import torch_flags

MIN_RESULTS_BEFORE_BUILD = 256  # large results, after which the native part is worth its compiler
MIN_POOLED_BYTES = 1 << 18  # bytes below which the C library has warm memory itself
MAX_POOLED_BYTES = 1 << 30  # bytes kept at most, and no more than a sixteenth of the machine's

_fast = torch._C._dynamo.guards
_len_modes: Callable[[], int] = torch._C._len_torch_dispatch_stack
_interpreters: Any = torch._C._functorch.peek_interpreter_stack


def _empty(shape: Any, strides: Any, dtype: torch.dtype) -> torch.Tensor:
    return torch.empty_strided(shape, strides, dtype=dtype, device="cpu")


def _alias(tensor: torch.Tensor, shape: Any, strides: Any, offset: int) -> torch.Tensor:
    return torch.as_strided(tensor, shape, strides, tensor.storage_offset() + offset)


# Without the dispatcher, in half the time. An alias has a version counter of its own.
reinterpreted: Callable[..., torch.Tensor] = getattr(_fast, "_reinterpret_tensor", _alias)
empty_cpu: Callable[..., torch.Tensor] = getattr(_fast, "_empty_strided_cpu", _empty)


class _Engine:
    native: ModuleType | None = None
    patience = MIN_RESULTS_BEFORE_BUILD


def empty_large(shape: Any, strides: Any, dtype: torch.dtype) -> torch.Tensor:
    """A CPU tensor that is not initialised."""
    native = _Engine.native
    if native is None:
        _Engine.patience -= 1
        if _Engine.patience == 0:
            start()
        return empty_cpu(shape, strides, dtype)
    made = empty_cpu((0,), (1,), dtype)
    native.adopt(made._cdata, shape, strides, dtype.itemsize)
    return made


def zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """A contiguous tensor of zeros. A large one of the CPU costs no memory until it is written."""
    native, size = _Engine.native, prod(shape)
    large = device.type == "cpu" and size * dtype.itemsize >= MIN_POOLED_BYTES
    if native is None or not large or _len_modes() or _interpreters() is not None:
        return torch.zeros(shape, dtype=dtype, device=device)
    made = empty_cpu((0,), (1,), dtype)
    native.zeros(made._cdata, (size,), (1,), dtype.itemsize)
    return made.view(shape)


def serving(run: Callable[[list[Any]], list[Any]], args: list[Any]) -> list[Any]:
    """`run(args)`, whose library calls take memory for large results on the CPU from here, too."""
    native = _Engine.native
    if native is None:
        return run(args)
    native.library(1)
    try:
        return run(args)
    finally:
        native.library(-1)


def take_over(tensor: torch.Tensor, shape: Any, strides: Any, dtype: torch.dtype) -> torch.Tensor:
    """The memory of a CPU tensor that dies, where its variable in a program holds it alone and it
    came from here; else other memory. Whoever keeps it, a user or a graph that is run backward
    again, finds it as it was."""
    native = _Engine.native
    if native is None or sys.getrefcount(tensor) > _alone() or not native.alone(tensor._cdata):
        return empty_large(shape, strides, dtype)
    return reinterpreted(tensor, shape, strides, 0)


@functools.cache
def _alone() -> int:
    """References to a tensor that `take_over` sees where one variable holds it."""

    def counted(tensor: torch.Tensor, shape: Any, strides: Any, dtype: Any) -> int:
        return sys.getrefcount(tensor)

    def call(args: list[Any]) -> int:
        (arg,) = args
        args.clear()
        made = counted(arg, (), (), None)
        del arg
        return made

    return call([torch.empty(0)])


def kept_at_most() -> int:
    """Bytes of large results that were let go of."""
    return min(MAX_POOLED_BYTES, os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 16)


@functools.cache
def start() -> threading.Thread | None:
    """Begin to load the native part, or to build it, beside what goes on."""
    return build.begun("dynfix-memory", load)


def load() -> None:
    """Load the native part, or build it."""
    if _Engine.native is not None:
        return
    native = build.built_extension("memory", "results are allocated by torch", **torch_flags())
    if native is None:
        return
    native.keep_at_most(kept_at_most())
    _Engine.native = native
