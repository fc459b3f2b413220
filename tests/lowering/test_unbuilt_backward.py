"""A backward that cannot be built, whatever the reason: training goes on, in eager, with one message
that says why and where."""

import copy
import ctypes
import os
import signal
import warnings

import dynfix
import pytest
import torch
from dynfix.lowering import joint
from dynfix.runtime import compilers, diagnostics
from dynfix.runtime.cache import disk_cache
from dynfix.runtime.errors import BuildError
from torch import nn


@pytest.fixture(autouse=True)
def fresh(tmp_path, monkeypatch):
    monkeypatch.setenv("DYNFIX_CACHE_DIR", str(tmp_path / "cache"))
    diagnostics.reset()


def unbuilt(monkeypatch, error):
    """Whatever builds a backward raises."""

    def compile_unit(graph, kind, *rest, real=joint.compile_unit):
        if kind == "backward":
            raise error
        return real(graph, kind, *rest)

    monkeypatch.setattr(joint, "compile_unit", compile_unit)


def model(x, w):
    return torch.softmax(torch.relu(x @ w), -1)


def trained(fn, calls=3):
    """Gradients accumulated over calls, with what a hook saw."""
    w = torch.linspace(-1, 1, 12).reshape(4, 3).requires_grad_()
    seen = []
    w.register_hook(lambda grad: seen.append(grad.clone()))
    for call in range(calls):
        fn(torch.linspace(0, 1 + call, 8).reshape(2, 4), w).square().sum().backward()
    return w.grad, *seen


def check(monkeypatch=None, run=trained, fn=model, why=""):
    wanted = run(fn)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        got = run(dynfix.compile(fn))
    for one, other in zip(got, wanted, strict=True):
        torch.testing.assert_close(one, other)
    (message,) = [str(each.message) for each in said]
    assert message.startswith("a backward runs in eager: ") and why in message
    assert "test_unbuilt_backward.py:" in message


ERRORS = [
    OSError(28, "No space left on device"),
    MemoryError("no memory"),
    RuntimeError("can't start new thread"),
    BuildError("g++ was given up"),
    ImportError("undefined symbol"),
    RecursionError("too deep"),
    AssertionError(),
    UnicodeDecodeError("utf-8", b"x", 0, 1, "bad"),
    StopIteration(),
    KeyError("name"),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_whatever_goes_wrong(monkeypatch, error):
    unbuilt(monkeypatch, error)
    check(why=str(error))


def test_a_disk_that_fills_up(monkeypatch):
    def replace(source, target, real=os.replace):
        if ".backward." in str(target):
            raise OSError(28, "No space left on device")
        return real(source, target)

    monkeypatch.setattr(os, "replace", replace)
    check(why="No space left")


def test_a_library_that_cannot_be_loaded(monkeypatch):
    loaded = []

    def load(name, *args, real=ctypes.CDLL, **kwargs):
        loaded.append(name)
        if len(loaded) > 1:
            raise OSError("failed to map segment from shared object")
        return real(name, *args, **kwargs)

    monkeypatch.setattr(ctypes, "CDLL", load)
    check(why="failed to map")


def test_a_fault_around_the_compiler(monkeypatch):
    """AOTAutograd copies the graph before it hands it over."""

    def deepcopy(value, *args, real=copy.deepcopy):
        if isinstance(value, torch.fx.GraphModule):
            raise MemoryError("no memory for a graph")
        return real(value, *args)

    compiled = dynfix.compile(model)
    compiled(torch.ones(2, 4), torch.ones(4, 3, requires_grad=True))  # in eager, recorded
    w = torch.ones(4, 3, requires_grad=True)
    loss = compiled(torch.ones(2, 4), w).square().sum()
    with monkeypatch.context() as patch, pytest.warns(UserWarning, match="no memory for a graph"):
        patch.setattr(copy, "deepcopy", deepcopy)
        loss.backward()
    other = torch.ones(4, 3, requires_grad=True)
    model(torch.ones(2, 4), other).square().sum().backward()
    torch.testing.assert_close(w.grad, other.grad)


def test_a_program_that_cannot_be_stored_serves(monkeypatch):
    def put(key, suffix, data, real=disk_cache.put):
        if suffix.endswith(".program"):
            raise MemoryError
        return real(key, suffix, data)

    monkeypatch.setattr(disk_cache, "put", put)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        got = trained(dynfix.compile(model))
    for one, other in zip(got, trained(model), strict=True):
        torch.testing.assert_close(one, other)


def test_dropout_draws_what_the_forward_drew(monkeypatch):
    unbuilt(monkeypatch, OSError("full"))

    def run(fn):
        torch.manual_seed(3)
        x = torch.ones(64, requires_grad=True)
        found = []
        for _ in range(3):
            result = fn(x)
            result.sum().backward()
            found += [result.detach(), x.grad.clone(), torch.rand(1)]
        return found

    check(run=run, fn=lambda x: nn.functional.dropout(x * 2, 0.5))


def test_second_derivatives_and_a_graph_that_is_kept(monkeypatch):
    unbuilt(monkeypatch, OSError("full"))

    def run(fn):
        x = torch.linspace(-1, 1, 6).requires_grad_()
        fn(x)
        result = fn(x).sum()
        result.backward(retain_graph=True)
        result.backward()
        with pytest.raises(RuntimeError, match="backward through the graph a second time"):
            result.backward()
        (grad,) = torch.autograd.grad(fn(x).sum(), x, create_graph=True)
        grad.sum().backward()
        return [x.grad]

    wanted = run(lambda x: torch.tanh(x) * x)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        got = run(dynfix.compile(lambda x: torch.tanh(x) * x))
    torch.testing.assert_close(got, wanted)
    assert sum("a backward runs in eager" in str(each.message) for each in said) == 1


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_what_ends_a_program_ends_it(monkeypatch, error):
    unbuilt(monkeypatch, error())
    with pytest.raises(error):
        trained(dynfix.compile(model))


def test_what_a_handler_raises_reaches_the_user(monkeypatch):
    class OutOfTime(Exception):
        pass

    def late(number, frame):
        raise OutOfTime

    def compile_unit(graph, kind, *rest, real=joint.compile_unit):
        if kind == "backward":
            signal.raise_signal(signal.SIGUSR1)
        return real(graph, kind, *rest)

    before = signal.signal(signal.SIGUSR1, late)
    try:
        monkeypatch.setattr(joint, "compile_unit", compile_unit)
        with pytest.raises(OutOfTime):
            trained(dynfix.compile(model))
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_a_second_program_for_large_missing_gradients(monkeypatch):
    """One for a gradient that is missing is there; that for both is not built."""

    def two(x):
        y = x * 2
        return torch.sin(y), torch.cos(y)

    def run(fn):
        x = torch.linspace(-1, 1, 1 << 19).requires_grad_()
        fn(x)[0].sum().backward()
        if fn is not two:
            unbuilt(monkeypatch, OSError("full"))
        for _ in range(2):
            sum(fn(x)).sum().backward()
        return [x.grad]

    check(run=run, fn=two)


@pytest.mark.parametrize("error", [OSError(28, "full"), BuildError("g++ was ended by SIGKILL")])
def test_a_call_that_cannot_be_made_again(monkeypatch, error):
    """It writes what is too large to be copied: its backward goes by what was saved."""
    unbuilt(monkeypatch, error)

    def run(fn):
        count = torch.zeros(300, 300)
        w = torch.linspace(-1, 1, 12).requires_grad_()
        for call in range(4):
            (torch.sigmoid(fn(w, count)) * (1 + call)).sum().backward()
        return [w.grad, count]

    def fn(w, count):
        count.add_(1)
        return torch.tanh(w) * w * count[0, :12]

    check(run=run, fn=fn, why=str(error))


def test_a_compiler_that_hangs_is_given_up(monkeypatch):
    def run(command, real=compilers.run):
        if any("backward" in word for word in command):
            raise BuildError("g++ was given up after 900 s")
        return real(command)

    monkeypatch.setattr(compilers, "run", run)
    check(why="given up after 900 s")
