"""Calls are looked at late, in turns, and from the outermost one on."""

import pytest
from dynfix.runtime import watching
from dynfix.runtime.pacing import Account
from dynfix.runtime.watching import Watch
from simulated import Simulated


@pytest.fixture
def machine():
    return Simulated()


def call(watch, depth=0):
    return call(watch, depth - 1) if depth else watch.sleeps()


def test_turns(machine):
    watch = Watch(Account(started=machine.now(), machine=machine), lambda: 4.0, call.__code__)
    assert call(watch)
    machine.clock += 49  # 4% of it are less than 2 s
    assert call(watch)
    machine.clock += 2
    assert not call(watch) and watch.share() == 1.0
    machine.clock += watching.AWAKE + 0.1
    assert call(watch)
    machine.clock += watching.ASLEEP - 0.1
    assert call(watch)
    share = watch.share()
    turn = watching.AWAKE + watching.ASLEEP
    assert watching.AWAKE / turn <= share < 1.5 * watching.AWAKE / turn
    machine.clock += 0.2
    assert not call(watch)
    machine.clock += 0.4 * watching.AWAKE
    assert not call(watch) and watch.share() > share
    watch.always = True
    machine.clock += watching.AWAKE
    assert not call(watch)


def test_it_does_not_wake_inside_a_call(machine):
    watch = Watch(
        Account(started=machine.now() - 1000, machine=machine), lambda: 4.0, call.__code__
    )
    assert call(watch, depth=1)
    assert not call(watch)
    assert not call(watch, depth=2)  # awake: the hook itself knows what is inside
