"""Waiting for other threads and processes, however long a busy machine takes: nothing is said of
time, and only what hangs is given up."""

import time

HANGS = 600  # seconds, after which a test fails instead of holding up all others


def until(condition):
    """Return when `condition()` is true."""
    end = time.monotonic() + HANGS
    while not condition():
        assert time.monotonic() < end, "nothing happens any more"
        time.sleep(0.002)


def join(thread):
    """Return when it has ended."""
    thread.join(HANGS)
    assert not thread.is_alive(), "it does not end"
