"""What the user's code does is done as often as in eager: objects count the calls of their special
methods, also where the recorder fails in the middle of an operator."""

import contextlib
import functools
import random
import sys
import types
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import dynfix
import pytest
import torch
from dynfix.rewriter.capture import effects, provenance
from dynfix.rewriter.tracing_ops import attribute_ops, binaries, c_calls, items, iteration, lookup
from dynfix.rewriter.tracing_ops.calls import builtin_calls, call_ops, making, modules

CALLS: list[str] = []
note = CALLS.append


class Number:
    def __new__(cls, *given):
        note("new")
        return object.__new__(cls)

    def __init__(self, value):
        note("init")
        self.value = value

    def __add__(self, other):
        note("add")
        return self.value + other

    def __radd__(self, other):
        note("radd")
        return other + self.value

    def __iadd__(self, other):
        note("iadd")
        self.value = self.value + other
        return self

    def __eq__(self, other):
        note("eq")
        return self.value == other

    def __lt__(self, other):
        note("lt")
        return self.value < getattr(other, "value", other)

    def __hash__(self):
        note("hash")
        return 7

    def __bool__(self):
        note("bool")
        return self.value > 1

    def __len__(self):
        note("len")
        return 3

    def __iter__(self):
        note("iter")
        return iter([self.value, self.value + 1])

    def __contains__(self, other):
        note("contains")
        return other == self.value

    def __getitem__(self, key):
        note("getitem")
        return self.value * key

    def __setitem__(self, key, value):
        note("setitem")
        self.value = value

    def __delitem__(self, key):
        note("delitem")
        self.value = 0

    def __call__(self, x):
        note("call")
        return x * self.value

    def __enter__(self):
        note("enter")
        return self.value

    def __exit__(self, *error):
        note("exit")
        return True

    def __format__(self, spec):
        note("format")
        return "f" + spec

    def __str__(self):
        note("str")
        return "s"

    def __float__(self):
        note("float")
        return float(self.value)


class Refusing:
    def __init__(self, value):
        self.value = value

    def __eq__(self, other):
        note("eq")
        return NotImplemented

    def __add__(self, other):
        note("add")
        return NotImplemented


class Answering:
    def __getattr__(self, name):
        note(f"getattr {name}")
        if name.startswith("a"):
            return 2.0
        raise AttributeError(name)

    def __call__(self, x):
        note("call")
        return x + 1


class Storing:
    def __setattr__(self, name, value):
        note("setattr")
        object.__setattr__(self, name, value * 2)

    def __delattr__(self, name):
        note("delattr")
        object.__delattr__(self, name)


class Descriptor:
    def __get__(self, owner, kind):
        note("get")
        return 2.5

    def __set__(self, owner, value):
        note("set")
        owner.__dict__["stored"] = value

    def __delete__(self, owner):
        note("delete")


class OwnProperty(property):
    def __get__(self, owner, kind=None):
        note("own get")
        return super().__get__(owner, kind)


class Described:
    field = Descriptor()

    def _filled(self, value):
        note("filled")
        self.kept = value

    @OwnProperty
    def doubled(self):
        note("doubled")
        return self.kept * 2

    __init__ = functools.partialmethod(_filled)

    @functools.cached_property
    def cached(self):
        note("cached")
        return 3.0

    @functools.singledispatchmethod
    def chosen(self, value):
        note("chosen")
        return 1.0

    @staticmethod
    def __call__(x):
        note("static call")
        return x


class Meta(type):
    def __call__(cls, *given):
        note("meta call")
        return super().__call__(*given)

    def __instancecheck__(cls, obj):
        note("instancecheck")
        return True


class OfMeta(metaclass=Meta):
    def __init_subclass__(cls, **named):
        note("init_subclass")

    def __class_getitem__(cls, key):
        note("class_getitem")
        return key


class Missing(dict):
    def __missing__(self, key):
        note("missing")
        return 6.0


class Countdown:
    def __init__(self, start):
        self.left = start

    def __iter__(self):
        note("iter")
        return self

    def __next__(self):
        note("next")
        if self.left <= 0:
            raise StopIteration
        self.left -= 1
        return self.left


class Watched(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.ReLU()

    def __getattr__(self, name):
        note(f"module getattr {name}")
        return super().__getattr__(name)

    def forward(self, x):
        note("forward")
        return self.layer(x)


def _of_lazy(name: str) -> float:
    note(f"lazy {name}")
    if name == "there":
        return 2.0
    raise AttributeError(name)


number, answering, described, refusing = Number(2.0), Answering(), Described(2.0), Refusing(1.0)
missing, watched = Missing(), Watched()
lazy = types.ModuleType("lazy_module_of_the_test")
lazy.__getattr__ = _of_lazy  # type: ignore[method-assign]


def made(x):
    return x * Number(2.0).value


def added(x):
    return x * (number + 1) + (1 + number) + sum([number, 1.0])


def added_in_place(x):
    own = Number(1.0)
    own += 2
    return x * own.value


def compared(x):
    return x * (number == 2.0) + (number < 3) + (number in [1, number])


def refused(x):
    try:
        refusing + 2.0
    except TypeError:
        return x * (refusing == 3) + (refusing == refusing)


def hashed(x):
    return x * hash(number)


def truth(x):
    return x * (2 if number else 1) + (not number) + (1.0 if (number and True) else 3)


def iterated(x):
    for value in number:
        x = x * value
    one, two = number
    return x + one + two + len(list(number)) + any(value > 5 for value in number) + (2.0 in number)


def counted_down(x):
    first = Countdown(3)
    x = x + next(first) + sum(first) + any(value > 1 for value in Countdown(3))
    return x + sum(a * b for a, b in zip(Countdown(3), Countdown(3))) + max(Countdown(2))


def items_of(x):
    own = Number(1.0)
    own[0] = 5.0
    y = x * own[3]
    del own[0]
    return y * len(number) + missing["k"] + OfMeta[4]


def entered(x):
    with number as value:
        y = x * value
        raise ValueError
    return y


def shown(x):
    return x * len(f"{number:>3}{number!s}") + len(str(number)) + float(number)


def attributes(x):
    return answering(x) * answering.a1 + getattr(answering, "zz", 2.0) + hasattr(answering, "b")


def stored(x):
    own = Storing()
    own.kept = 2.0
    own.kept += 1.0
    y = x * own.kept
    del own.kept
    return y


def descriptors(x):
    own = Described(2.0)
    own.field = 3.0
    del own.field
    return x * own.field + own.stored + own.doubled + own.cached + own.chosen("a") + own(x)


def classes(x):
    class Inner(OfMeta):
        pass

    return x + isinstance(x, OfMeta) + (OfMeta() is None)


def of_module(x):
    return watched(x) + lazy.there + hasattr(lazy, "not_there")


def generated(x):
    def values():
        note("one")
        yield 1.0
        note("two")
        yield 2.0

    return x * sum(values()) + sorted([3.0, 1.0], key=lambda v: (note("key"), v)[1])[0]


PROGRAMS = [
    *(made, added, added_in_place, compared, refused, hashed, truth, iterated, counted_down),
    *(items_of, entered, shown, attributes, stored, descriptors, classes, of_module, generated),
]


def observed(function: Callable[..., Any], x: torch.Tensor) -> tuple[Any, list[str]]:
    CALLS.clear()
    result = function(x)
    return result.tolist(), list(CALLS)


def check(function: Callable[..., Any], compiled: Callable[..., Any]) -> None:
    for call in range(1, 5):
        x = torch.ones(2) * call
        assert observed(compiled, x) == observed(function, x), f"call {call}"


@pytest.mark.parametrize("function", PROGRAMS, ids=lambda function: function.__name__)
def test_special_methods_are_called_as_often_as_in_eager(function: Callable[..., Any]):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        check(function, dynfix.compile(function, backend="eager"))


# -- faults of the recorder


class Fault(Exception):
    pass


@contextlib.contextmanager
def failing(owner: Any, name: str, nth: int) -> Iterator[None]:
    """The `nth` call of a function of the recorder fails, whoever imported it."""
    function, count = getattr(owner, name), 0

    def fails(*args: Any, **kwargs: Any) -> Any:
        nonlocal count
        count += 1
        if count == nth:
            raise Fault(name)
        return function(*args, **kwargs)

    holders = [owner]
    if isinstance(owner, types.ModuleType):
        own = [each for name, each in list(sys.modules.items()) if name.startswith("dynfix.")]
        holders = [each for each in own if vars(each).get(name) is function]
    for holder in holders:
        setattr(holder, name, fails)
    try:
        yield
    finally:
        for holder in holders:
            setattr(holder, name, function)


OWNERS = [
    *(provenance.Provenance, lookup, items, c_calls, attribute_ops, binaries, iteration),
    *(making, modules, builtin_calls, call_ops),
]
TARGETS = [
    *[
        (owner, name)
        for owner in OWNERS
        for name, each in vars(owner).items()
        if isinstance(each, types.FunctionType) and not name.startswith("__")
    ],
    (effects.SideEffect, "__init__"),
]


@pytest.mark.parametrize("function", PROGRAMS, ids=lambda function: function.__name__)
def test_a_fault_of_the_recorder_repeats_nothing(function: Callable[..., Any]):
    rng = random.Random(function.__name__)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for owner, name in rng.sample(TARGETS, 14):
            compiled, nth = dynfix.compile(function, backend="eager"), rng.choice([1, 1, 2, 3, 5])
            with failing(owner, name, nth):
                check(function, compiled)
