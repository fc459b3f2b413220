"""Waiting for other threads and processes, however long a busy machine takes: nothing is said of
time, and only what hangs is given up."""

import threading
import time

HANGS = 600  # seconds, after which a test fails instead of holding up all others


def until(condition):
    """Return when `condition()` is true."""
    end = time.monotonic() + HANGS
    while not condition():
        assert time.monotonic() < end, "nothing happens any more"
        time.sleep(0.002)


class Loading:
    """The `load` of a `Background`, which ends when the test says so. `asked`: with what."""

    def __init__(self):
        self.asked, self._may_end = [], threading.Event()

    def __call__(self, stored):
        assert self._may_end.wait(HANGS)
        self.asked.append(stored)

    def end(self):
        self._may_end.set()


def join(thread):
    """Return when it has ended."""
    thread.join(HANGS)
    assert not thread.is_alive(), "it does not end"
