"""Large results of programs in memory that was let go of before (`native/memory.cpp`): fresh memory
costs a page fault every 4 KiB, more than most loops that fill it.

Until the native part is built, and where it cannot be, torch's own allocator serves.
"""

import functools
import os
import threading
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch

from . import build
from .errors import BuildError
from .report import log
from .torch_headers import torch_flags

PATIENCE = 256  # large results, after which the native part is worth its compiler
LEAST = 1 << 18  # bytes below which the C library has warm memory itself
MOST = 1 << 30  # bytes kept at most, and no more than a sixteenth of the machine's

_fast = torch._C._dynamo.guards


def _empty(shape: Any, strides: Any, dtype: torch.dtype) -> torch.Tensor:
    return torch.empty_strided(shape, strides, dtype=dtype, device="cpu")


# Without the dispatcher, in half the time.
empty_cpu: Callable[..., torch.Tensor] = getattr(_fast, "_empty_strided_cpu", _empty)


class _Engine:
    native: ModuleType | None = None
    patience = PATIENCE


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


def kept_at_most() -> int:
    """Bytes of large results that were let go of."""
    return min(MOST, os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 16)


@functools.cache
def start() -> threading.Thread:
    """Begin to load the native part, or to build it, beside what goes on."""
    # A daemon: a process that ends does not wait for the compiler.
    thread = threading.Thread(target=load, name="dynfix-memory", daemon=True)
    thread.start()
    return thread


def load() -> None:
    """Load the native part, or build it."""
    if _Engine.native is not None:
        return
    try:
        path = build.build_extension("memory", **torch_flags())
        native = build.load_extension("memory", path)
    except (BuildError, ImportError, OSError) as error:
        log.info("results are allocated by torch: %s", error)
        return
    native.keep_at_most(kept_at_most())
    _Engine.native = native
