"""A function that runs in parts is timed as a whole, and goes back to eager where that is faster."""

import types

import pytest
from dynfix.rewriter.frontend.switchover import AGAIN, TIMED, WARM, ServingState
from dynfix.rewriter.graph_breaks.split_benchmark import (
    MAX_CALLS_IN_PARTS,
    SETTLED,
    PartTrial,
    SplitTrial,
    is_dropped,
)
from simulated import Simulated


class Judge:
    busy, allowed, total = False, True, 0.0

    def nothing_builds(self):
        return not self.busy

    def may_record(self):
        return self.allowed and not self.busy

    def gained(self, seconds):
        self.total += seconds


class Function:
    """Runs in parts in `parts` seconds, and in eager in `eager`."""

    def __init__(self, parts, eager):
        self.calls = {"parts": 0, "eager": 0}
        self.seconds = {"parts": parts, "eager": eager}
        self.judge, self.machine = Judge(), Simulated()
        self.member = types.SimpleNamespace(recordings=[], switchovers=[])
        self.whole = SplitTrial(
            lambda x: self.run("parts", x),
            lambda x: self.run("eager", x),
            self.judge,
            [self.member, len],
            machine=self.machine,
        )

    def run(self, how, x):
        self.calls[how] += 1
        self.machine.work(self.seconds[how])
        return x + 1

    def called(self, times):
        """How it was run in so many more calls: in parts, in eager."""
        before = dict(self.calls)
        for n in range(times):
            assert self.whole(n) == n + 1
        return tuple(self.calls[how] - before[how] for how in ("parts", "eager"))


@pytest.mark.parametrize(
    ("parts", "eager", "state"),
    [(0.0, 0.01, ServingState.COMPILED), (0.01, 0.0, ServingState.EAGER)],
)
def test_the_faster_way_stays(parts, eager, state):
    fn = Function(parts, eager)
    assert fn.called(SETTLED) == (SETTLED, 0)
    fn.called(2 * TIMED + WARM + 2)
    assert fn.whole.state is state and is_dropped(fn.whole) == (state is ServingState.EAGER)
    assert fn.called(3) == ((3, 0) if state is ServingState.COMPILED else (0, 3))


def test_it_waits_until_nothing_is_to_be_settled():
    fn = Function(0.0, 0.0)
    for _ in range(4):
        fn.called(SETTLED - 1)
        fn.member.recordings.append("one more")
    fn.judge.busy = True
    assert fn.called(5) == (0, 5)  # while something is built
    fn.judge.busy, fn.judge.allowed = False, False
    assert fn.called(5) == (0, 5)  # nothing more may be recorded now
    fn.member.switchovers.append(types.SimpleNamespace(state=ServingState.TRIAL))
    assert fn.called(5) == (5, 0)  # which times a part
    assert fn.whole.state is ServingState.WAITING
    fn.called(SETTLED)
    assert fn.whole.state is not ServingState.WAITING  # the part is not called any more


def test_it_does_not_wait_for_ever():
    fn = Function(0.0, 0.0)
    for _ in range(MAX_CALLS_IN_PARTS + 2):
        fn.member.recordings.append("one more")
        fn.called(1)
    assert fn.whole.state is not ServingState.WAITING


def test_it_is_tried_again():
    fn = Function(0.0, 0.002)
    fn.called(SETTLED + 2 * TIMED + WARM + 2)
    assert fn.whole.state is ServingState.COMPILED
    fn.seconds = {"parts": 0.002, "eager": 0.0}
    fn.called(AGAIN + 2 * TIMED + WARM + 2)
    assert fn.whole.state is ServingState.EAGER


def test_gains_of_parts_are_not_counted_twice():
    judge = Judge()
    part = PartTrial(judge)
    part.gained(5.0)
    assert judge.total == 0.0 and part.nothing_builds()
    judge.busy = True
    assert not part.nothing_builds()
