"""The clocks, the cores and the load that decisions about time rest on. Tests hand in a machine of
their own, whose clocks they move."""

import os
import time

_TURNS = 20_000
_LOOPS_OF_AN_IMPORT = 800  # as many as import torch 2.13 for CPUs


class Machine:
    """This one. Every time is in seconds."""

    def __init__(self) -> None:
        has_affinity = hasattr(os, "sched_getaffinity")
        self.cores = len(os.sched_getaffinity(0)) if has_affinity else os.cpu_count() or 1

    def now(self) -> float:
        """The clock's."""
        return time.perf_counter()

    def process_seconds(self) -> float:
        """Processor time of the whole process."""
        return time.process_time()

    def thread_seconds(self) -> float:
        """Processor time of the calling thread."""
        return time.thread_time()

    def interpreter_seconds(self) -> float:
        """Processor seconds that importing torch's Python code takes, without its libraries, of
        which a build for GPUs loads many: as a short loop shows it."""
        before, texts = time.thread_time(), dict[int, str]()
        for number in range(_TURNS):
            texts[number & 255] = str(number)
        return (time.thread_time() - before) * _LOOPS_OF_AN_IMPORT

    def sleep(self, seconds: float) -> None:
        """The calling thread rests."""
        time.sleep(seconds)

    def is_crowded(self) -> bool:
        """Whether more threads want to run than there are cores: then the worker's are the
        user's."""
        try:
            return os.getloadavg()[0] > self.cores
        except (AttributeError, OSError):
            return True


MACHINE = Machine()
