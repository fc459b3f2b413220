"""Calls are looked at late, in turns, and from the outermost one on."""

import pytest
from dynfix.runtime import call_sampling
from dynfix.runtime.background_budget import Account
from dynfix.runtime.call_sampling import CallSampler
from simulated import Simulated


@pytest.fixture
def machine():
    return Simulated()


def call(watch, depth=0):
    return call(watch, depth - 1) if depth else watch.sleeps()


def test_turns(machine):
    watch = CallSampler(Account(started=machine.now(), machine=machine), lambda: 4.0, call.__code__)
    assert call(watch)
    machine.clock += 19  # a tenth of it is less than 2 s
    assert call(watch)
    machine.clock += 2
    assert not call(watch) and watch.share() == 1.0
    machine.clock += call_sampling.AWAKE + 0.1
    assert call(watch)
    machine.clock += call_sampling.ASLEEP - 0.1
    assert call(watch)
    share = watch.share()
    turn = call_sampling.AWAKE + call_sampling.ASLEEP
    assert call_sampling.AWAKE / turn <= share < 1.5 * call_sampling.AWAKE / turn
    machine.clock += 0.2
    assert not call(watch)
    machine.clock += 0.4 * call_sampling.AWAKE
    assert not call(watch) and watch.share() > share
    watch.always = True
    machine.clock += call_sampling.AWAKE
    assert not call(watch)


def test_it_does_not_wake_inside_a_call(machine):
    watch = CallSampler(
        Account(started=machine.now() - 1000, machine=machine), lambda: 4.0, call.__code__
    )
    assert call(watch, depth=1)
    assert not call(watch)
    assert not call(watch, depth=2)  # awake: the hook itself knows what is inside


def test_it_stays_awake_for_what_is_known_to_come(machine):
    expecting = [True]
    account = Account(started=machine.now() - 1000, machine=machine)
    watch = CallSampler(account, lambda: 4.0, call.__code__, lambda: expecting[0])
    assert not call(watch)
    for _ in range(5):
        machine.clock += call_sampling.AWAKE + 0.1
        assert not call(watch)
    expecting[0] = False
    machine.clock += call_sampling.AWAKE + 0.1
    assert call(watch)
