"""The clocks, the cores and the load that decisions about time rest on. Tests hand in a machine of
their own, whose clocks they move."""

import os
import time


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
