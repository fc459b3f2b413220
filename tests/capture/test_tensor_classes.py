"""Tensors of a subclass, and modes, that answer torch's functions in Python: part of one graph."""

import copy
from typing import ClassVar

import dynfix
import pytest
import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode


class Tagged(torch.Tensor):
    """Its results have the unit of the first operand."""

    seen: ClassVar[list[str]] = []

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        cls.seen.append(getattr(func, "__name__", "?"))
        result = super().__torch_function__(func, types, args, kwargs or {})
        if isinstance(result, cls):
            units = [each.unit for each in args if isinstance(each, cls)]
            result.unit = units[0]
        return result


def tagged(rows, unit, learns=False):
    torch.manual_seed(rows)
    made = torch.randn(rows, 4).as_subclass(Tagged)
    made.unit = unit
    made.requires_grad_(learns)
    return made


class Quantised(torch.Tensor):
    """A weight in 8 bits, which linear layers take apart."""

    @staticmethod
    def __new__(cls, numbers, scale):
        shape, dtype = numbers.shape, scale.dtype
        return torch.Tensor._make_wrapper_subclass(cls, shape, dtype=dtype)

    def __init__(self, numbers, scale):
        self.numbers, self.scale = numbers, scale

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if func is F.linear:
            x, w = args[:2]
            return x @ (w.numbers.to(w.scale.dtype) * w.scale).t()
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        assert func is torch.ops.aten.detach.default
        return cls(args[0].numbers, args[0].scale)


W = torch.randn(4, 2, requires_grad=True)


def test_a_class_of_functions_is_inlined():
    def program(x):
        y = (x @ W).tanh() * 2
        return y, x.shape[0], y.sum()

    compiled = dynfix.compile(program, fullgraph=True)
    for rows, unit in ((3, "m"), (3, "m"), (5, "s"), (6, "s")):
        found = []
        for fn in (program, compiled):
            Tagged.seen.clear()
            W.grad, x = None, tagged(rows, unit, learns=True)
            y, size, total = fn(x)
            total.backward()
            with torch._C.DisableTorchFunctionSubclass():
                values = [v.as_subclass(torch.Tensor) for v in (y, total, x.grad)]
                found.append((values, W.grad, type(y), y.unit, type(x.grad), size, [*Tagged.seen]))
        (values, w, *other), (expected, expected_w, *others) = found
        torch.testing.assert_close((values, w), (expected, expected_w))
        assert other == others


def test_quantised_weights():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 6, bias=False), torch.nn.ReLU())
    numbers = torch.randint(-9, 9, (6, 4), dtype=torch.int8)
    weight = Quantised(numbers, torch.tensor(0.1))
    model[0].weight = torch.nn.Parameter(weight, requires_grad=False)
    compiled = dynfix.compile(model, fullgraph=True)
    for rows in (3, 3, 4, 5):
        x = torch.randn(rows, 4)
        torch.testing.assert_close(compiled(x), model(x))
    model[0].weight.scale = torch.tensor(0.2)
    torch.testing.assert_close(compiled(x), model(x))


class Pair(torch.Tensor):
    """Two tensors, each computed with by itself."""

    @staticmethod
    def __new__(cls, first, second):
        shape, dtype = first.shape, first.dtype
        return torch.Tensor._make_wrapper_subclass(cls, shape, dtype=dtype)

    def __init__(self, first, second):
        self.first, self.second = first, second

    def __tensor_flatten__(self):
        return ["first", "second"], None

    @staticmethod
    def __tensor_unflatten__(inner, meta, size, stride):
        return Pair(inner["first"], inner["second"])

    def both(self):
        return self.first + self.second

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        def of(name):
            return [getattr(each, name) if isinstance(each, cls) else each for each in args]

        first, second = func(*of("first")), func(*of("second"))
        return cls(first, second) if isinstance(first, torch.Tensor) else first


CONSTANT = Pair(torch.ones(4), torch.arange(4.0))


@pytest.mark.parametrize(
    "program",
    [
        lambda x: (Pair(x, x + 1) * 2).first + 1,
        lambda x: (CONSTANT * x).second.sin(),
        lambda x: (Pair(x, x * x).relu() + CONSTANT).both(),
        lambda x: Pair(x.detach(), x).t().detach().both().sum(),
        lambda x: (Pair(x, x) * 3, (Pair(x, x + 1) + 1).first),
    ],
)
@pytest.mark.parametrize("backend", ["native", "eager"])
def test_tensors_inside_of_what_operators_gave(program, backend):
    compiled = dynfix.compile(program, fullgraph=True, backend=backend)
    for number in range(3):
        x = torch.randn(4) * number
        got, expected = ([y for y in _inner(f(x))] for f in (compiled, program))
        torch.testing.assert_close(got, expected)


class Labelled(Pair):
    """Its results have the larger label of the operands."""

    def __init__(self, first, second, label=0):
        super().__init__(first, second)
        self.label = label

    __new__ = lambda cls, first, second, label=0: Pair.__new__(cls, first, second)  # noqa: E731

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        made = super().__torch_dispatch__(func, types, args, kwargs)
        made.label = max(each.label for each in args if isinstance(each, cls))
        return made


def test_what_such_tensors_hold_besides_is_compared():
    def program(a, b):
        made = a * b
        if made.label == 3:
            return made.first - 1
        return made.second * made.label

    compiled = dynfix.compile(program, fullgraph=True)
    for label in (1, 2, 3, 1, 5, 3):
        given = Labelled(torch.ones(3), torch.ones(3) * 2, label), Labelled(*torch.ones(2, 3), 2)
        torch.testing.assert_close(compiled(*given), program(*given))


class Named(torch.Tensor):
    @staticmethod
    def __new__(cls, data, names):
        made = torch.Tensor._make_subclass(cls, data)
        made.of = names
        return made

    def total(self, name):
        place = self.of.index(name)
        rest = tuple(each for each in self.of if each != name)
        return Named(self.as_subclass(torch.Tensor).sum(place), rest)


def test_a_class_that_makes_its_tensors_of_others():
    def program(x):
        made = Named(x * 2, ("a", "b")).total("a")
        made.add_(1)
        return made, made.of, made.as_subclass(torch.Tensor) + x

    compiled = dynfix.compile(program, fullgraph=True)
    for rows in (2, 2, 3):
        x = torch.randn(rows, 3, requires_grad=True)
        (got, names, total), (expected, others, sums) = compiled(x), program(x)
        assert type(got) is Named and names == others
        torch.testing.assert_close((torch.Tensor(got), total), (torch.Tensor(expected), sums))


def _inner(result):
    parts = result if isinstance(result, tuple) else (result,)
    return [each.both() if isinstance(each, Pair) else each for each in parts]


class Shifted(TorchFunctionMode):
    def __init__(self, by):
        super().__init__()
        self.by = by

    def __torch_function__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        return result + self.by if func is torch.sin else result


class Types(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = {**(kwargs or {})}
        if func is torch.ones:
            kwargs["dtype"] = torch.float64
        return func(*args, **kwargs)


def within(x, by):
    with Shifted(by):
        y = torch.sin(x)
        with Types(), Shifted(2):
            y = torch.sin(y) + torch.ones(3)
    return y, torch.sin(x)


def leaves_early(x, by):
    with Shifted(by):
        try:
            with Types():
                y = torch.sin(x)
                raise ValueError
        except ValueError:
            return y + torch.sin(x) + torch.ones(3)


@pytest.mark.parametrize("program", [within, leaves_early])
def test_a_mode_around_a_region(program):
    compiled = dynfix.compile(program, fullgraph=True)
    for by in (1, 1, 2, 3):
        x = torch.rand(3)
        torch.testing.assert_close(compiled(x, by), program(x, by))
    assert torch._C._len_torch_function_stack() == 0


def test_a_mode_in_what_ends_a_recording():
    def program(x):
        with Shifted(1):
            y = torch.sin(x)
            print(end="")
            y = torch.sin(torch.tensor(copy.copy(y).detach().numpy()))
        return y

    compiled = dynfix.compile(program)
    for _ in range(4):
        x = torch.rand(3)
        torch.testing.assert_close(compiled(x), program(x))
    assert torch._C._len_torch_function_stack() == 0
