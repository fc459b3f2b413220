"""Modes of the user's, which see each call of torch's or each operator, around a call and in it."""

import operator

import dynfix
import pytest
import torch
from helpers import Case, X, Y, same
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode


class Doubling(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        return result * 2 if func in (torch.relu, torch.Tensor.relu) else result


class Names(TorchFunctionMode):
    """What was called, by name."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.seen.append(func.__name__)
        return func(*args, **(kwargs or {}))


def test_a_function_mode_that_changes_results():
    def make():
        def f(x):
            y = torch.relu(x)
            with Doubling():
                z = torch.relu(x)
            return y, z

        return f

    same(make, (X,), (Y,), (X,))
    f = lambda x: torch.relu(x)  # noqa: E731
    compiled = dynfix.compile(f, backend="eager")
    for _ in range(2):
        assert torch.equal(compiled(X), f(X))
        with Doubling():
            assert torch.equal(compiled(X), f(X))


def test_a_function_mode_sees_what_eager_calls():
    """And nothing of what compiling does."""
    compiled = dynfix.compile(lambda x: torch.relu(x) + 1, backend="eager")
    for _ in range(3):
        with Names() as names:
            compiled(X)
        assert names.seen == ["relu", "add"]
        compiled(X)


def test_a_function_mode_in_modules_that_are_called_in_parts():
    class Counted(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = torch.nn.Linear(3, 3)

        def forward(self, x):
            with Names() as names:
                y = torch.relu(self.linear(x))
            self.seen = names.seen
            return y + 1

    def make():
        torch.manual_seed(0)
        layers = [Counted(), Counted()]
        fn = torch.nn.Sequential(*layers)
        return Case(fn=fn, watch=lambda: [getattr(each, "seen", None) for each in layers])

    rows = [torch.full((2, 3), float(i), requires_grad=True) for i in range(4)]
    same(make, *((row,) for row in rows))


def test_dispatch_mode_of_the_user():
    class Log(TorchDispatchMode):
        def __init__(self):
            super().__init__()
            self.seen = []

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            self.seen.append(str(func))
            return func(*args, **(kwargs or {}))

    compiled = dynfix.compile(lambda x: torch.relu(x) + 1, backend="eager")
    for _ in range(3):
        compiled(X)
        with Log() as log:
            compiled(X)
        assert any("relu" in name for name in log.seen)
    seen = []

    def f(x):
        with Log() as inner:
            y = x * 2
        seen.append(len(inner.seen))
        return y

    inside = dynfix.compile(f, backend="eager")
    for _ in range(3):
        inside(X)
    assert len(seen) == 3 and len(set(seen)) == 1


class Answering:
    """No tensor, but torch asks it before its own reflected operators are."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        return f"asked for {function.__name__}"

    def __radd__(self, other):
        return "reflected"

    __rmul__ = __rsub__ = __rmatmul__ = __radd__


@pytest.mark.parametrize("op", [operator.add, operator.mul, operator.sub, operator.matmul])
def test_an_object_that_torch_asks_is_asked_by_torch(op):
    other = Answering()
    compiled = dynfix.compile(lambda x: (x * 2, op(x, other)), backend="eager")
    for x in (torch.ones(3), torch.zeros(3)):
        doubled, answer = compiled(x)
        assert torch.equal(doubled, x * 2) and answer == op(x, other)
