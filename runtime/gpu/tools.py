"""What building kernels asks for once a process, begun before the first is printed."""

import functools
import importlib
import threading

from ..errors import BuildError
from .native_launch import launch_types
from .triton_kernels import triton


@functools.cache
def begin() -> threading.Thread:
    """Build the native launch, and load Triton and have it hash itself, which every build asks
    for, beside what the caller does next."""
    threading.Thread(target=launch_types, daemon=True).start()
    hashing = threading.Thread(target=_hash, daemon=True)
    hashing.start()
    return hashing


def wait() -> None:
    """Until Triton has its hash: kernels that are built at once would each compute it."""
    begin().join()


def _hash() -> None:
    try:
        triton()
        key = getattr(importlib.import_module("triton.runtime.cache"), "triton_key", None)
    except (BuildError, ImportError):  # which a build reports
        return
    if key is not None:
        key()
