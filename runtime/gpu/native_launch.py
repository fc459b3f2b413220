"""Native launches of Triton's binaries: one call from Python for the kernels of a group."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import torch

from .. import build
from ..diagnostics import log

DRIVER = "libcuda.so.1"
# Of these versions it is known what a binary takes after its own arguments.
_VERSIONS = ("3.6.", "3.7.")
EARLY = 90  # the first architecture with programmatic dependent launches


_lock = threading.Lock()


def launch_types() -> ModuleType | None:
    """The native classes; None where they cannot be built."""
    with _lock:
        return _launch_types()


@functools.cache
def _launch_types() -> ModuleType | None:
    return build.built_extension("gpu_launch", "GPU kernels are launched through Triton")


def native_launch(
    binaries: Sequence[tuple[Any, int, tuple[int, ...], bool]],
    numbers: tuple[int, ...],
    device: int,
    otherwise: Callable[..., None],
    version: str,
) -> Callable[..., None] | None:
    """A function that launches the binaries (each with its programs, the positions of its pointers
    among the arguments, and whether it waits by itself for the kernel before it) on aligned
    pointers, and on the numbers; `otherwise` is called for others. None where that is not known to
    be right.

    One that waits and stands behind another here is started while that one ends: a launch costs the
    device about 1 µs less. The first is not: what stands before it in the stream, or in the graph
    that is being captured, may be no kernel."""
    types = launch_types() if version.startswith(_VERSIONS) else None
    if types is None or not all(_is_simple(binary) for binary, *_ in binaries):
        return None
    kernels = [
        (b.function, programs, *_shape(b), waits and k > 0 and _starts_early(b), positions, numbers)
        for k, (b, programs, positions, waits) in enumerate(binaries)
    ]
    try:
        stream_of = torch._C._cuda_getCurrentRawStream
        return types.Launch(kernels, device, stream_of, otherwise, DRIVER)  # type: ignore[no-any-return]
    except (OSError, ValueError) as error:
        log.info("a group is launched through Triton: %s", error)
        return None


def _shape(binary: Any) -> tuple[int, int]:
    """Its threads, and its bytes of shared memory."""
    return binary.metadata.num_warps * 32, binary.metadata.shared


def _starts_early(binary: Any) -> bool:
    """Whether the device can start it while the kernel before it ends."""
    return int(binary.metadata.target.arch) >= EARLY


def _is_simple(binary: Any) -> bool:
    """Whether the binary needs no memory to work in, no clusters and no other way of starting."""
    data = binary.metadata
    unusual = ("global_scratch_size", "profile_scratch_size", "launch_cooperative_grid")
    plain = not any(getattr(data, name, 0) for name in (*unusual, "launch_pdl"))
    return plain and data.num_ctas == 1 and data.target.backend == "cuda"
