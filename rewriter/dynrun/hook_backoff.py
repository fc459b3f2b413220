"""A hook that is taken away while nobody looks: even one that answers None at once costs a
microsecond a call, a tenth of a small layer's."""

import _thread
import contextlib
import os
import sys
import time
from collections.abc import Callable

LONGEST = 10.0  # seconds of one rest: nobody looks for less than that (`runtime.watching`)


class Doze:
    """`rest(seconds)` calls `take`, and `put` when they are over. Not where other threads run: one
    of them may be asking the hook. `own`: the thread that never does."""

    def __init__(
        self, take: Callable[[], None], put: Callable[[], None], own: Callable[[], int | None]
    ) -> None:
        self._take, self._put, self._own = take, put, own
        self._resting = self._ended = False
        self._alarm = _thread.allocate_lock()
        os.register_at_fork(before=self.end)  # a fork is to find one thread

    def rest(self, seconds: float) -> None:
        """Begin a rest, if it is worth one."""
        if self._ended or self._resting or seconds < 0.01 or self._has_company():
            return
        self._resting = True
        self._alarm = _thread.allocate_lock()
        self._alarm.acquire()
        self._take()
        try:
            _thread.start_new_thread(self._wait, (min(seconds, LONGEST),))
        except RuntimeError:  # no thread can be had
            self._ended = True
            self._wake()

    def end(self) -> None:
        """No more rests; the one at hand is over."""
        self._ended = True
        with contextlib.suppress(RuntimeError):
            self._alarm.release()
        end = time.monotonic() + 1.0
        while self._resting and time.monotonic() < end:
            time.sleep(0.0002)

    def _wait(self, seconds: float) -> None:
        self._alarm.acquire(timeout=seconds)
        self._wake()

    def _wake(self) -> None:
        self._put()
        self._resting = False

    def _has_company(self) -> bool:
        return bool(sys._current_frames().keys() - {_thread.get_ident(), self._own()})
