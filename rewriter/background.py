"""When `dynrun` records and builds, so that no run gets slower: the policy, and the worker that it
drives.

Nothing is imported, recorded or built unless the account allows it (see `runtime.pacing`). Then the
compiler is imported beside the user's code, the next call of a module that matters is recorded, its
kernels are built beside the calls that eager serves, and `switchover` decides by time. This module
loads no torch.
"""

import atexit
import os
import time
import warnings
from collections.abc import Callable
from typing import Any

from ..runtime.pacing import Account, RestingFinder, Worker, in_background
from ..runtime.report import log

CALLS = 8  # eager calls of a module before anything is done for it
SHORT = 4e-5  # seconds: a call that takes less in eager gains nothing from guards and a program
MATTERS = 0.05  # of the run: what takes less of it is left alone
FIRST = 0.4  # seconds that a first recording is expected to cost, before one was made
SLOWER = 12  # a recorded call takes that many times an eager one, besides rewriting


class Background:
    """The account, the worker, and what is known of the cost of recording."""

    def __init__(self, load: Callable[[], None], account: Account | None = None) -> None:
        self.account = account or Account()
        self.worker = Worker(self.account)
        self.loaded = False
        self.broken = False
        self._load = load
        self._cost = FIRST
        self._asked = False
        self.module_seconds = 0.0

    def start(self) -> None:
        """Be ended with the process, and keep out of forks."""
        atexit.register(self.worker.stop)
        os.register_at_fork(
            before=self.worker.before_fork,
            after_in_parent=self.worker.after_fork,
            after_in_child=lambda: self.worker.after_fork(child=True),
        )
        _keep_own_warnings()

    def give_up(self) -> None:
        """Build nothing from now on: something else in the process does what a worker must not
        meet."""
        self.broken = True

    def wants(self, calls: int, seconds: float) -> bool:
        """Whether a module with that many eager calls, which took `seconds`, is worth a recording
        now."""
        if self.broken or calls < CALLS or seconds < SHORT * calls:
            return False
        if seconds < MATTERS * (time.perf_counter() - self.account.started):
            return False
        if not self.loaded:
            self._prepare()
            return False
        return self.quiet() and self.account.allows(self._cost + SLOWER * seconds / calls)

    def _prepare(self) -> None:
        if not self._asked and self.account.allows():
            self._asked = True
            self.worker.submit(self._import)

    def _import(self) -> None:
        with RestingFinder(self.worker):
            self._load()
        self.loaded = True
        log.debug("the compiler was loaded beside the script")

    # -- what a compiled function asks

    def may_record(self) -> bool:
        """Whether a call may be recorded now."""
        return not self.broken and self.quiet() and self.account.allows(self._cost)

    def recorded(self, seconds: float) -> None:
        """A call was recorded, which took so much longer than in eager."""
        self.account.lost += seconds
        self._cost = max(0.02, 0.5 * seconds)

    def build(self, job: Callable[[], None]) -> None:
        """Compile a recording, beside the calls to come."""
        self.worker.submit(job)

    def quiet(self) -> bool:
        """Whether nothing is built now."""
        return not self.worker.busy

    def gained(self, seconds: float) -> None:
        """A call took that much less than eager would have."""
        self.account.gained += seconds


def _keep_own_warnings() -> None:
    """What libraries warn of on the worker's thread is not said to the user."""
    show = warnings.showwarning

    def showwarning(message: Any, *where: Any, **more: Any) -> None:
        if in_background():
            log.debug("a warning of background work: %s", message)
        else:
            show(message, *where, **more)

    warnings.showwarning = showwarning
