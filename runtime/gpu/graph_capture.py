"""Capture of a program's run as CUDA graphs, in parts where it has many kernels."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any

import torch

from ..diagnostics import log
from ..programs.program import KernelStep, Program

_FIRST, _GROWTH = 16, 3  # kernels of a graph's first part, and how much larger each next one is


class NotCapturable(Exception):
    """Why a program cannot be captured."""


_streams: dict[tuple[torch.device, int], torch.cuda.Stream] = {}


def _capture_stream(device: torch.device) -> torch.cuda.Stream:
    """The stream to capture on: one for each that replays, since the library keeps workspaces for
    each of its streams, and graphs that replay at once must not share them."""
    key = device, torch._C._cuda_getCurrentRawStream(device.index)
    if key not in _streams:
        _streams[key] = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    return _streams[key]


def captured(
    program: Program, device: torch.device, given: Sequence[Any]
) -> tuple[list[torch.cuda.CUDAGraph], list[Any]]:
    """The graphs of one run on `given`, to be replayed one after the other, and its results, which
    nothing has computed yet. Raises NotCapturable."""
    cuts = frozenset(_cuts(sum(isinstance(step, KernelStep) for step in program.steps)))
    if cuts:
        try:
            return _captured_in_parts(program, device, given, cuts)
        except NotCapturable as error:  # what begins in one part and ends in another
            log.info("%s is not captured in parts: %s", program.name, error)
    return _captured_in_parts(program, device, given, frozenset())


def _captured_in_parts(
    program: Program, device: torch.device, given: Sequence[Any], cuts: frozenset[int]
) -> tuple[list[torch.cuda.CUDAGraph], list[Any]]:
    parts: list[torch.cuda.CUDAGraph] = []
    launched = itertools.count()

    def begin() -> None:
        part = torch.cuda.CUDAGraph()
        # what other threads do meanwhile must not end the capture
        part.capture_begin(parts[0].pool() if parts else None, "thread_local")
        parts.append(part)

    def cutting(step: KernelStep) -> Callable[..., None]:
        def launch(*args: Any) -> None:
            if next(launched) in cuts:
                parts[-1].capture_end()
                begin()
            step.launch(*args)

        return launch

    run, stream = program.with_launches(cutting) if cuts else program, _capture_stream(device)
    torch.cuda.synchronize(device)
    try:
        with torch.cuda.stream(stream):
            begin()
            try:
                results = run(list(given))
            finally:
                parts[-1].capture_end()
    except Exception as error:
        torch.cuda.synchronize(device)
        _end_for_generators(stream)
        raise NotCapturable(f"{type(error).__name__}: {str(error).splitlines()[0]}") from error
    return parts, results


def _end_for_generators(stream: torch.cuda.Stream) -> None:
    """Tell torch's generator that no graph is captured any more, which it refuses to draw without:
    the end of a capture that failed does not; that of an empty one does."""
    with suppress(RuntimeError), torch.cuda.stream(stream), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it is empty
        empty = torch.cuda.CUDAGraph()
        empty.capture_begin(capture_error_mode="thread_local")
        empty.capture_end()


def _cuts(kernels: int) -> Iterator[int]:
    """Before which of a run's kernels another part begins. The host launches a graph in a time that
    grows with its kernels (some 2 us each), and the device waits for it; so the first part is
    small, and each later one is launched while the one before runs."""
    size = start = _FIRST
    while kernels - start >= _FIRST:
        yield start
        size *= _GROWTH
        start += size
