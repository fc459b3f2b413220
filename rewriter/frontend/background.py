"""When `dynrun` records and builds, so that no run gets slower: the policy, and the worker that it
drives.

How long a run will last is not known. What earlier runs of the same command learnt is: what paid
in the last one is compiled from its first calls on, and what did not is left alone. In a first run
nothing begins before what the script itself loses by it (loading the recorder, and a recorded
call: `runtime.background_budget`) is a small part of the run so far. Kernels are built by another
process, on a core that is free; `switchover` decides by time. This module loads no torch.
"""

import atexit
import os
import sys
import warnings
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from ...runtime.background_budget import SHARE, Account, RestingFinder, Worker, in_background, keep
from ...runtime.cache import entries
from ...runtime.cache.run_history import (
    COMPILED,
    EAGER,
    FORGOTTEN_AFTER,
    MET,
    RECORDED,
    CommandHistory,
    RunHistory,
    SiteFacts,
)
from ...runtime.diagnostics import log

CALLS = 8  # eager calls of a module before anything is done for it
KNOWN_CALLS = 1  # the same where an earlier run says that it pays
EXPECTED_WITHIN = 60.0  # seconds of the run, in which what is known to pay begins
CLEARLY = 1.3  # times eager: what is that slow is not tried again soon, less may be noise
SHORT = 4e-5  # seconds: a call that takes less in eager gains nothing from guards and a program
GAIN = 0.3  # of the forward's time is expected to be saved: 0.1 of it with its backward
SLOWER = 12  # a recorded call takes that many times an eager one, besides rewriting
RECORDINGS_AHEAD = 8  # after which more is lost only where something was gained

# What the script is expected to lose, as parts of the time that importing torch took, until it was
# measured.
LOAD = 0.6  # the recorder
DYNAMO = 0.5  # and, where the script has no optimizer, parts of torch that it stands on
RECORD = 0.2
RECORD_MOST = 0.3  # a recorded call, besides: what is slow per operator ends somewhere


class SiteUse(NamedTuple):
    """Of one training step or module of this run: its eager calls, their seconds, what compiles it,
    if something does, and whether it was given up."""

    name: str
    calls: int
    seconds: float
    entry: Any
    given_up: bool


class Background:
    """The account, the worker, and what is known of the cost of recording. `load(stored)` imports
    what recording needs: little where the programs are expected to be stored."""

    def __init__(self, load: Callable[[bool], None], account: Account | None = None) -> None:
        self.account = account or Account()
        self.worker = Worker(self.account)
        self.loaded = self.broken = self._asked = False
        self._load = load
        self._recordings = 0
        self._expected: set[str] = set()  # known to pay, and not seen yet
        self.history: RunHistory | None = None  # of earlier runs of this command
        self.known = CommandHistory()  # what it says
        self.uses: list[Callable[[], Iterable[SiteUse]]] = []  # what this run has met so far
        self.torch_took(1.0)

    def torch_took(self, seconds: float) -> None:
        """torch was imported, in so many seconds of processor time: how fast this machine is."""
        self._torch_seconds = self.account.torch_seconds = seconds
        self._cost = RECORD * seconds
        if self.history is not None:
            self._remember(self.history)

    def _remember(self, history: RunHistory) -> None:
        """Expect of this run what earlier ones took and gained, and note this one at its end."""
        self.known = history.known()
        self.account.expected = self.known.expected()
        sites = self.known.sites
        self._expected = {name for name, facts in sites.items() if self.would_pay(facts)}
        self.account.promised = sum(sites[name].gain(GAIN) for name in self._expected)
        owner = os.getpid()

        def note() -> None:
            if os.getpid() == owner:
                history.note(self.account.elapsed(), bool(entries.used), self.learnt())

        atexit.register(note)
        if self.account.promised:
            self._prepare()

    def met(self) -> dict[str, SiteFacts]:
        """What this run has learnt so far."""
        found: dict[str, SiteFacts] = {}
        for use in (use for uses in self.uses for use in uses()):
            facts, before = _facts(use), self.known.sites.get(use.name)
            if before is not None and before.state == EAGER and use.entry is None:
                facts = before.skipped()
            other = found.get(use.name)
            if other is None or other.seconds < facts.seconds:
                found[use.name] = facts
        return found

    def learnt(self) -> dict[str, SiteFacts]:
        """What a later run of the same command should know: also of what this one, which may have
        ended early, has not met or not timed."""
        found = self.met()
        for name, before in self.known.sites.items():
            facts = found.setdefault(name, before)
            undecided = facts.state in (MET, RECORDED) and before.state != EAGER
            if undecided and (before.state == COMPILED or before.seconds > facts.seconds):
                found[name] = before
        return found

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
        """Seconds that the script is expected to lose until one more module is compiled."""
        return self._load_cost() + self._cost

    def wants(self, name: str, calls: int, seconds: float, watched: float = 1.0) -> bool:
        """Whether a module with that many eager calls, which took `seconds`, is worth a recording
        now: it paid in an earlier run; or it would pay in a run of twice the length, and what is
        lost by it is little of the run so far. The compiler is loaded before. `watched`: the part
        of the time in which calls were counted."""
        facts = self.known.sites.get(name)
        known = 0.0 if facts is None else facts.gain(GAIN)
        if self.broken or self.is_known_as_eager(name):
            return False
        if calls < (KNOWN_CALLS if known else CALLS) or seconds < SHORT * calls:
            return False
        gain = GAIN * seconds / watched * self.account.share / SHARE
        if facts is None and self.account.expected:
            gain *= max(1.0, self.account.expected / self.account.elapsed())
        if not self.loaded:
            if max(gain, known) >= self.cost():
                self._prepare()  # which rests where more than a part of the run is lost
            return False
        cost = self._cost + min(SLOWER * seconds / calls, RECORD_MOST * self._torch_seconds)
        if max(gain, known) < cost or not self.nothing_builds() or not self.account.allows(cost):
            return False
        self._expected.discard(name)
        return True

    def would_pay(self, facts: SiteFacts) -> bool:
        """Whether a run like the one that these are of is the sooner for compiling at once."""
        return facts.gain(GAIN) > 2 * self.cost()

    def is_known_as_eager(self, name: str) -> bool:
        """Whether compiling it did not pay in earlier runs, or was not possible."""
        facts = self.known.sites.get(name)
        return facts is not None and facts.state == EAGER

    def is_expecting(self) -> bool:
        """Whether calls that are known to pay are about to come, or about to be recorded."""
        begins = self.account.elapsed() < EXPECTED_WITHIN
        return begins and bool(self._expected) and not self.broken

    def _load_cost(self) -> float:
        if self.loaded:
            return 0.0
        return (LOAD if "torch._dynamo" in sys.modules else LOAD + DYNAMO) * self._torch_seconds

    def _prepare(self) -> None:
        if not self._asked:
            self._asked = True
            self.worker.submit(self._import)

    def _import(self) -> None:
        with RestingFinder(self.worker):
            self._load(self.known.stored)
        self.loaded = True
        log.debug("the compiler was loaded beside the script")

    # -- what a compiled function asks

    def may_record(self) -> bool:
        """Whether a call may be recorded now."""
        return not self.broken and self.nothing_builds() and self.account.allows(self._cost)

    def pays(self, calls: int, seconds: float) -> bool:
        """Whether compiling so many calls more would have been worth another recording; `seconds`:
        of one in eager, 0 where none was timed yet."""
        gain = GAIN * calls * seconds * self.account.share / SHARE
        return gain >= self._cost if seconds else calls >= CALLS

    def recorded(self, seconds: float) -> None:
        """A call was recorded, which took so much longer than in eager."""
        self.account.lost += seconds
        self._cost = max(0.02, 0.5 * seconds)
        self._recordings += 1
        self.account.settled |= self._recordings >= RECORDINGS_AHEAD

    def build(self, job: Callable[[], None], ask: Callable[[], None]) -> None:
        """Compile a recording, beside the calls to come. `ask` has the other process begin with it
        where the worker waits for an earlier one."""
        if self.worker.busy:
            self.worker.do_in_next_wait(ask)
        self.worker.submit(job)

    def nothing_builds(self) -> bool:
        """Whether nothing is built in this process now."""
        return not self.worker.works

    def gained(self, seconds: float) -> None:
        """A call took that much less than eager would have."""
        self.account.gained += seconds
        self.account.settled = True


def _facts(use: SiteUse) -> SiteFacts:
    tried = [] if use.entry is None else use.entry.switchovers
    served = sum(each.compiled_calls for each in tried)
    timed = max((each for each in tried if each.trials), default=None, key=_calls_of)
    calls, eager, compiled = use.calls + served, 0.0, 0.0
    state = MET
    runs = 0
    if timed is not None:
        state = COMPILED if timed.state.name != "EAGER" else EAGER
        eager, compiled = timed.eager_seconds, timed.compiled_seconds
        runs = 0 if compiled > CLEARLY * eager else FORGOTTEN_AFTER - 1
    elif use.given_up:
        state = EAGER
    elif tried:
        state = RECORDED
    seconds = use.seconds + served * eager
    return SiteFacts(state, calls, seconds, eager, compiled, runs if state == EAGER else 0)


def _calls_of(tried: Any) -> int:
    return int(tried.compiled_calls)


def _keep_own_warnings() -> None:
    """What libraries warn of on the worker's thread is not said to the user."""
    show = warnings.showwarning

    def showwarning(message: Any, *where: Any, **more: Any) -> None:
        if in_background():
            log.debug("a warning of background work: %s", message)
        else:
            show(message, *where, **more)

    warnings.showwarning = showwarning
