"""Calls are looked at late, in turns, and from the outermost one on."""

import time

import pytest
from dynfix.runtime import pacing, watching
from dynfix.runtime.pacing import Account
from dynfix.runtime.watching import Watch


class Clock:
    now = 1000.0


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(time, "perf_counter", lambda: clock.now)
    monkeypatch.setattr(pacing, "is_crowded", lambda: False)
    return clock


def call(watch, depth=0):
    return call(watch, depth - 1) if depth else watch.sleeps()


def test_turns(clock):
    watch = Watch(Account(started=clock.now), lambda: 4.0, call.__code__)
    assert call(watch)
    clock.now += 49  # 4% of it are less than 2 s
    assert call(watch)
    clock.now += 2
    assert not call(watch) and watch.share() == 1.0
    clock.now += watching.AWAKE + 0.1
    assert call(watch)
    clock.now += watching.ASLEEP - 0.1
    assert call(watch)
    share = watch.share()
    turn = watching.AWAKE + watching.ASLEEP
    assert watching.AWAKE / turn <= share < 1.5 * watching.AWAKE / turn
    clock.now += 0.2
    assert not call(watch)
    clock.now += 0.4 * watching.AWAKE
    assert not call(watch) and watch.share() > share
    watch.always = True
    clock.now += watching.AWAKE
    assert not call(watch)


def test_it_does_not_wake_inside_a_call(clock):
    watch = Watch(Account(started=clock.now - 1000), lambda: 4.0, call.__code__)
    assert call(watch, depth=1)
    assert not call(watch)
    assert not call(watch, depth=2)  # awake: the hook itself knows what is inside
