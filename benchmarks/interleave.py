"""Fair step times: every variant is timed in turn, round after round: a slow moment of the machine
hits all of them."""

import statistics
import time
from collections.abc import Callable
from typing import NamedTuple


class Times(NamedTuple):
    """Seconds of one step: the median, and the quartiles around it."""

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.median * 1e3:.2f} ms ({self.low * 1e3:.2f}–{self.high * 1e3:.2f})"


def interleaved(
    steps: dict[str, Callable[[], object]],
    rounds: int = 30,
    warm: int = 3,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, Times]:
    """Times of every step after `warm` unmeasured calls of each. clock: `time.process_time` gives
    the processor's time, with which one thread can be compared on a busy machine."""
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for done in range(-warm, rounds):
        for name, step in steps.items():
            start = clock()
            step()
            if done >= 0:
                seconds[name].append(clock() - start)
    return {name: summary(values) for name, values in seconds.items()}


def summary(seconds: list[float]) -> Times:
    low, median, high = statistics.quantiles(seconds, n=4)
    return Times(median, low, high)
