"""What building kernels asks for once a process, begun before the first is printed."""

import functools
import importlib
import threading

from ..build import begun, built_or
from .native_launch import launch_types
from .triton_kernels import triton


@functools.cache
def begin() -> threading.Thread | None:
    """Build the native launch, and load Triton and have it hash itself, which every build asks
    for, beside what the caller does next."""
    begun("dynfix-launch", launch_types)
    return begun("dynfix-hash", _hash)


def wait() -> None:
    """Until Triton has its hash: kernels that are built at once would each compute it."""
    thread = begin()
    if thread is not None:
        thread.join()


def _hash() -> None:
    built_or(None, "Triton is not loaded", _hashed)  # a build reports that


def _hashed() -> None:
    triton()
    key = getattr(importlib.import_module("triton.runtime.cache"), "triton_key", None)
    if key is not None:
        key()
