"""Programs of one graph: what Python and the standard library do for them is known."""

import contextvars
import enum
import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from helpers import X, Y, one_graph, same

FOUR = [(X,), (Y,), (X,), (Y,)]


class Colour(enum.Enum):
    RED = 1
    BLUE = 2


class Level(enum.IntEnum):
    LOW = 0
    HIGH = 1


class Indexed:
    def __init__(self, values):
        self.values = values

    def __getitem__(self, index):
        return self.values[index] * 2

    def __len__(self):
        return len(self.values)


@functools.cache
def table(n):
    return torch.arange(n) * 2, n


NET = torch.nn.Linear(3, 1)


def enumerations(x):
    told = list(Colour), len(Colour), list(reversed(Colour)), [level + 1 for level in Level]
    return x * sum(each.value for each in Colour), told, max(Colour, key=lambda c: c.value)


def indexed(x):
    values = Indexed([x, x + 1])
    first, *rest = values
    return first, rest, list(reversed(values)), sum(values), list(zip(values, values, strict=True))


def methods_of_builtin_types(x):
    values, names = [x], {"a": x}
    list.append(values, 1)
    dict.__setitem__(names, "b", list.pop(values))
    text = str.join(",", sorted(["b", "A"], key=str.lower)), list(map(str.strip, [" a"]))
    return x * dict.get(names, "z", 5), values, dict.copy(names), text, slice(1, -1).indices(5)


class Measure:
    def __init__(self, value):
        self.value = value

    def __divmod__(self, other):
        return (self.value / other).floor(), self.value % other

    def __rdivmod__(self, other):
        return NotImplemented if isinstance(other, str) else divmod(Measure(self.value + other), 2)

    def __index__(self):
        raise AssertionError


def quotients_of_objects(x):
    measure = Measure(x)
    try:
        divmod("text", measure)
    except TypeError as error:
        text = str(error)
    return divmod(measure, 2), divmod(3, measure), divmod(-7, 2), divmod(x.shape[0], 2.5), text


def cached_tensors(x):
    values, n = table(x.shape[0])
    return x * values + n, values is table(x.shape[0])[0]


def gradients_of_parameters(x):
    loss, named = NET(x).sum(), dict(NET.named_parameters())
    first = torch.autograd.grad(loss, NET.parameters(), create_graph=True)
    return first, torch.autograd.grad(NET(x).pow(2).sum(), named.values())


PROGRAMS: list[Callable[..., Any]] = [
    enumerations,
    indexed,
    methods_of_builtin_types,
    quotients_of_objects,
    cached_tensors,
    gradients_of_parameters,
]


@pytest.mark.parametrize("program", PROGRAMS)
def test_program(program):
    table.cache_clear()
    one_graph(same(lambda: program, *FOUR))


def test_context_variables():
    variable = contextvars.ContextVar("variable", default=1.0)
    unset: contextvars.ContextVar[float] = contextvars.ContextVar("unset")

    def f(x):
        try:
            extra = unset.get()
        except LookupError:
            extra = 0.0
        return x * variable.get() + extra + unset.get(5.0)

    def to(value):
        return lambda _: variable.set(value)

    same(lambda: f, (X,), to(2.0), (X,), (Y,), lambda _: unset.set(3.0), (X,), to(1.0), (Y,))
