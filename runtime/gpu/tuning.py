"""Which of several kernels that do the same is the fastest: timed on the device once, and kept for
later processes by the device's name and the kernels' texts."""

from __future__ import annotations

import contextlib
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from ..cache import disk_cache
from ..diagnostics import log

TOOL = "tuning-1"
ROUNDS = 9
_LEAST_FLUSHED = 64 << 20  # bytes written between two launches, so that none finds its data cached


def choice(name: Sequence[str], count: int, measure: Callable[[], Mapping[int, float]]) -> int:
    """The number of the fastest of `count` kernels that `name` tells apart from all others: as
    stored, or by `measure`, which gives milliseconds by number (those that do not run left out) and
    at least one."""
    key = disk_cache.key(TOOL, *name)
    stored = _number(disk_cache.read(key, ".choice"))
    if stored is not None and stored < count:
        return stored
    times = measure()
    best = min(times, key=times.__getitem__)
    log.info("%s: %s ms", name[0], {number: round(ms, 4) for number, ms in times.items()})
    with contextlib.suppress(OSError):
        disk_cache.put(key, ".choice", str(best).encode())
    return best


def _number(text: bytes | None) -> int | None:
    return int(text) if text is not None and text.isdigit() else None


def filled(shapes: Sequence[tuple[int, torch.dtype]], device: torch.device) -> list[torch.Tensor]:
    """Memory of (elements, type) each, of numbers between -1 and 1; integers are 0, a position in
    everything.

    Compiling goes on under AOTAutograd's fake tensor mode, in which new tensors are fakes without
    memory: a kernel would write through null pointers. The user's random numbers stay as they are.
    """
    with _disable_current_modes(), torch._C._DisablePythonDispatcher():
        generator = torch.Generator(device).manual_seed(0)
        return [_filled(size, dtype, device, generator) for size, dtype in shapes]


def _filled(
    size: int, dtype: torch.dtype, device: torch.device, generator: torch.Generator
) -> torch.Tensor:
    if not dtype.is_floating_point:
        return torch.zeros(size, dtype=dtype, device=device)
    return torch.empty(size, dtype=dtype, device=device).uniform_(-1, 1, generator=generator)


def interleaved(
    launches: Mapping[int, Callable[[], None]], device: torch.device
) -> dict[int, float]:
    """Median milliseconds of each launch, in turns, each with a cold cache."""
    with _disable_current_modes(), torch._C._DisablePythonDispatcher(), torch.cuda.device(device):
        size = 2 * int(getattr(torch.cuda.get_device_properties(device), "L2_cache_size", 0))
        flushed = torch.empty(max(size, _LEAST_FLUSHED), dtype=torch.uint8, device=device)
        pairs = {number: list(_events(ROUNDS)) for number in launches}
        for turn in range(ROUNDS):
            for number, launch in launches.items():
                start, end = pairs[number][turn]
                flushed.zero_()
                start.record()
                launch()
                end.record()
        torch.cuda.synchronize()
    return {
        number: statistics.median(float(start.elapsed_time(end)) for start, end in events)
        for number, events in pairs.items()
    }


def _events(count: int) -> Iterator[tuple[Any, Any]]:
    event: Any = torch.cuda.Event  # its constructor has no types
    for _ in range(count):
        yield event(enable_timing=True), event(enable_timing=True)
