"""What signal handlers raise reaches the user, whatever is at work in the main thread."""

import functools
import os
import signal
import threading

import dynfix
import pytest
import torch
from dynfix.lowering.graph import operator_trace
from dynfix.rewriter.tracing_ops.operators import Forms
from dynfix.runtime.signals import is_of_a_handler, reach_the_user


class TooSlow(Exception):
    pass


def too_slow(number, frame, *more):
    raise TooSlow


def interrupt():
    os.kill(os.getpid(), signal.SIGUSR1)


@pytest.fixture(autouse=True)
def handled():
    before = signal.signal(signal.SIGUSR1, too_slow)
    yield
    signal.signal(signal.SIGUSR1, before)
    dynfix.reset()


def go_on_after(work):
    try:
        work()
    except Exception:
        return "went on"


def test_nothing_inside_catches_it():
    assert go_on_after(interrupt) == "went on"
    with pytest.raises(TooSlow), reach_the_user(), reach_the_user():
        go_on_after(interrupt)
    assert signal.getsignal(signal.SIGUSR1) is too_slow
    with pytest.raises(ValueError, match="another"), reach_the_user():
        raise ValueError("another one")


def test_a_handler_that_is_set_inside_stays():
    with reach_the_user():
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    assert signal.getsignal(signal.SIGUSR1) is signal.SIG_IGN


def test_other_threads_leave_handlers_alone():
    seen = []

    def work():
        with reach_the_user():
            seen.append(signal.getsignal(signal.SIGUSR1))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [too_slow]


class Handler:
    def __call__(self, number, frame):
        raise TooSlow

    def method(self, number, frame):
        raise TooSlow


@pytest.mark.parametrize(
    "handler", [too_slow, Handler(), Handler().method, functools.partial(too_slow)]
)
def test_whose_error_it_is(handler):
    signal.signal(signal.SIGUSR1, handler)
    with pytest.raises(TooSlow) as caught:
        interrupt()
    assert is_of_a_handler(caught.value)
    with pytest.raises(TooSlow) as caught:
        raise TooSlow
    assert not is_of_a_handler(caught.value)


def test_while_it_is_compiled():
    left = [1]

    def backend(gm, inputs):
        if left:
            left.pop()
            interrupt()
        return gm.forward

    f = dynfix.compile(lambda x: x * 2 + 1, backend=backend)
    with pytest.raises(TooSlow):
        f(torch.ones(3))
    for k in range(3):
        assert f(torch.full((3,), float(k))).tolist() == [2.0 * k + 1] * 3


def test_while_it_is_recorded():
    left = [1]

    def helper(x):
        if left:
            left.pop()
            interrupt()
        return x

    f = dynfix.compile(lambda x: helper(x) * 2, backend="eager")
    with pytest.raises(TooSlow):
        f(torch.ones(3))
    for k in range(3):
        assert f(torch.full((3,), float(k))).tolist() == [2.0 * k] * 3


@pytest.mark.parametrize("writes", [False, True])
def test_while_a_graph_runs(writes):
    left = []

    def backend(gm, inputs):
        def program(*tensors):
            if left:
                left.pop()
                interrupt()
            return gm.forward(*tensors)

        return program

    def fn(x, y):
        if writes:
            y.add_(1)
        return x * 2

    f, y = dynfix.compile(fn, backend=backend), torch.zeros(3)
    for _ in range(3):
        f(torch.ones(3), y)
    left.append(1)
    with pytest.raises(TooSlow):
        f(torch.ones(3), y)
    assert not left
    assert y.tolist() == [3.0 * writes] * 3
    assert f(torch.full((3,), 5.0), y).tolist() == [10.0] * 3
    assert y.tolist() == [4.0 * writes] * 3


def test_the_users_own_code_may_catch_it():
    def fn(x):
        try:
            made = x * 2
            interrupt()
            return made
        except TooSlow:
            return x + 1

    f = dynfix.compile(fn)
    for k in range(3):
        assert f(torch.full((3,), float(k))).tolist() == [k + 1.0] * 3


def test_a_call_of_several_graphs_is_not_tried_again():
    left = []

    def backend(gm, inputs):
        def program(*tensors):
            if left:
                left.pop()
                interrupt()
            return gm.forward(*tensors)

        return program

    def fn(x):
        y = x * 2
        return y * len(range(int(y.sum())))

    f = dynfix.compile(fn, backend=backend)
    for _ in range(3):
        f(torch.ones(3))
    left.append(1)
    with pytest.raises(TooSlow):
        f(torch.ones(3))
    assert not left and f(torch.ones(3)).tolist() == [12.0] * 3


def computing(seen):
    """Something of the library's that computes at every turn, as a handler that saves does."""
    kept = torch.zeros(2, requires_grad=True)

    def handler(number, frame):
        with torch.no_grad():
            kept.add_(1)
        seen.append(kept.detach().clone())

    return handler


def test_what_a_handler_computes_is_not_recorded(monkeypatch):
    seen, binary = [], Forms.binary
    signal.signal(signal.SIGUSR1, computing(seen))

    def interrupted(*given):
        interrupt()
        return binary(*given)

    monkeypatch.setattr(Forms, "binary", interrupted)
    double = dynfix.compile(lambda x: x * 2, backend="eager")
    for _ in range(3):
        assert torch.equal(double(torch.ones(2)), torch.full((2,), 2.0))
    assert [each.tolist() for each in seen] == [[1.0, 1.0]]
    (recording,) = double._dynfix_entry.recordings
    assert len(recording.segments) == 1 and not recording.sites


@pytest.mark.parametrize("learns", [False, True])
def test_what_a_handler_computes_is_not_traced(learns, monkeypatch, tmp_path):
    monkeypatch.setenv("DYNFIX_CACHE_DIR", str(tmp_path))  # no program of an earlier run
    seen, x = [], torch.ones(3, requires_grad=learns)
    signal.signal(signal.SIGUSR1, computing(seen))
    traced = operator_trace.OperatorTracer.__torch_dispatch__

    def interrupted(self, *given):
        interrupt()
        return traced(self, *given)

    monkeypatch.setattr(operator_trace.OperatorTracer, "__torch_dispatch__", interrupted)
    compiled = dynfix.compile(lambda x: x.sin() * 2)
    for _ in range(3):
        assert torch.allclose(compiled(x), x.sin() * 2)
    assert seen and [each[0].item() for each in seen] == [*range(1, len(seen) + 1)]


def test_what_a_handler_computes_is_real_while_fake_tensors_are():
    seen = []
    signal.signal(signal.SIGUSR1, computing(seen))
    with reach_the_user():
        torch._C._set_meta_in_tls_dispatch_include(True)  # as around an operator's fake result
        try:
            interrupt()
        finally:
            torch._C._set_meta_in_tls_dispatch_include(False)
    assert seen[0].tolist() == [1.0, 1.0]


def test_modes_of_the_users_stay_on_for_a_handler():
    made = []
    signal.signal(signal.SIGUSR1, lambda number, frame: made.append(torch.empty(1)))
    with torch.device("meta"), reach_the_user():
        interrupt()
        after = torch.empty(1)
    assert made[0].is_meta and after.is_meta
