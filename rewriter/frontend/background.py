"""When `dynrun` records and builds, so that no run gets slower: the policy, and the worker that it
drives.

How long a run will last is not known. So nothing begins before all that it takes to compile a
module, from loading the compiler to its kernels, is affordable at once
(`runtime.background_budget`): a shorter run loses nothing, and a longer one at most that part of
itself. Then the compiler is imported beside the user's code, the next call of a module that matters
is recorded, its kernels are
built beside the calls that eager serves, and `switchover` decides by time. This module loads no
torch.
"""

import atexit
import os
import sys
import warnings
from collections.abc import Callable
from typing import Any

from ...runtime.background_budget import SHARE, Account, RestingFinder, Worker, in_background, keep
from ...runtime.cache import entries
from ...runtime.cache.run_lengths import RunLengths
from ...runtime.diagnostics import log

CALLS = 8  # eager calls of a module before anything is done for it
SHORT = 4e-5  # seconds: a call that takes less in eager gains nothing from guards and a program
GAIN = 0.3  # of the forward's time is expected to be saved: 0.1 of it with its backward
SLOWER = 12  # a recorded call takes that many times an eager one, besides rewriting

# What is expected, as parts of the time that importing torch took, until it was measured.
LOAD = 1.0  # the compiler
DYNAMO = 1.0  # and, where the script has no optimizer, parts of torch that it stands on
RECORD = 0.1
BUILD = 1.2

# The same where the programs are expected to be stored: then no compiler is loaded.
STORED_CALLS = 2
STORED_LOAD = 0.25
STORED_BUILD = 0.1


class Background:
    """The account, the worker, and what is known of the cost of recording. `load(stored)` imports
    what compiling needs: little where the programs are expected to be stored. `unbuilt()`: what
    compilers have to build for that on this machine, in imports of torch."""

    def __init__(
        self,
        load: Callable[[bool], None],
        account: Account | None = None,
        unbuilt: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self.account = account or Account()
        self._unbuilt, self._to_build = unbuilt, -1.0
        self.worker = Worker(self.account)
        self.loaded = False
        self.broken = False
        self._load = load
        self._asked = False
        self.stored = False  # whether an earlier run of this command stored its programs
        self.lengths: RunLengths | None = None  # of earlier runs of this command
        self.torch_took(1.0)

    def torch_took(self, seconds: float) -> None:
        """torch was imported, in so many seconds of processor time: how fast this machine is."""
        self._torch_seconds = self.account.torch_seconds = seconds
        if self.lengths is not None:
            self._remember(self.lengths)
        self._cost = RECORD * seconds
        self._build_cost = (STORED_BUILD if self.stored else BUILD) * seconds

    def _remember(self, lengths: RunLengths) -> None:
        """Expect of this run what earlier ones took, and note its own length at its end."""
        self.account.expected, self.stored = lengths.expected(), lengths.stored()
        owner, machine = os.getpid(), self.account.machine

        def note() -> None:
            if os.getpid() == owner:
                seconds = min(self.account.elapsed(), machine.process_seconds())
                lengths.note(seconds, bool(entries.used))

        atexit.register(note)

    def start(self) -> None:
        """Keep the account, and out of forks."""
        keep(self.account)
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

    def cost(self) -> float:
        """Seconds that one more module is expected to take until it is compiled."""
        return self._load_cost() + self._cost + self._build_cost

    def wants(self, calls: int, seconds: float, watched: float = 1.0) -> bool:
        """Whether a module with that many eager calls, which took `seconds`, is worth a recording
        now: it would pay in a run of twice the length, and may be lost in one that ends here.
        `watched`: the part of the time in which calls were counted."""
        self.look_ahead()
        enough = STORED_CALLS if self.stored else CALLS
        if self.broken or calls < enough or seconds < SHORT * calls or not self.nothing_builds():
            return False
        cost = self.cost() + SLOWER * seconds / calls
        gain = GAIN * seconds / watched * self.account.share / SHARE
        if gain < cost and self.account.expected:
            gain *= max(1.0, self.account.expected / self.account.elapsed())
        if gain < cost or not self.account.allows(cost):
            return False
        if not self.loaded and self._can_build(cost):
            self._prepare()
        return self.loaded

    def _can_build(self, cost: float) -> bool:
        """Whether, besides `cost`, the time of compilers is affordable that the first run on a
        machine needs. Where a core is free it is nobody's."""
        if not self.account.machine.is_crowded():
            return True
        if self._to_build < 0:
            self._to_build = self._unbuilt()
        return self.account.allows(cost + self._to_build * self._torch_seconds)

    def look_ahead(self) -> None:
        """Modules are called: what loads stored programs is imported before one is asked for, if
        the run can afford that."""
        if self.stored and not self._asked and self.account.allows(self._load_cost()):
            self._prepare()

    def _load_cost(self) -> float:
        if self.loaded:
            return 0.0
        if self.stored:
            return STORED_LOAD * self._torch_seconds
        return (LOAD if "torch._dynamo" in sys.modules else LOAD + DYNAMO) * self._torch_seconds

    def _prepare(self) -> None:
        if not self._asked:
            self._asked = True
            self.worker.submit(self._import)

    def _import(self) -> None:
        with RestingFinder(self.worker):
            self._load(self.stored)
        self.loaded = True
        log.debug("the compiler was loaded beside the script")

    # -- what a compiled function asks

    def may_record(self) -> bool:
        """Whether a call may be recorded now."""
        free = not self.broken and self.nothing_builds()
        return free and self.account.allows(self._cost + self._build_cost)

    def recorded(self, seconds: float) -> None:
        """A call was recorded, which took so much longer than in eager."""
        self.account.lost += seconds
        self._cost = max(0.02, 0.5 * seconds)

    def build(self, job: Callable[[], None]) -> None:
        """Compile a recording, beside the calls to come."""

        def timed() -> None:
            start = self.account.machine.thread_seconds()
            job()
            took = self.account.machine.thread_seconds() - start
            self._build_cost = 0.5 * (self._build_cost + took)

        self.worker.submit(timed)

    def nothing_builds(self) -> bool:
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
