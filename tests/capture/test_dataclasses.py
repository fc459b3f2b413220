"""Dataclasses: what their generated methods call of the user's, and what those compare."""

import dataclasses
import functools
from typing import Any

import pytest
import torch
from helpers import Case, X, Y, one_graph, same


@pytest.fixture(params=["eager", "native"])
def backend(request):
    return request.param


def counted():
    count = [0]

    def fresh():
        count[0] += 1
        return count[0]

    @dataclasses.dataclass
    class Made:
        x: Any
        number: int = dataclasses.field(default_factory=fresh)
        kept: list = dataclasses.field(default_factory=list)
        hidden: int = dataclasses.field(default_factory=lambda: fresh() * 10, init=False)
        fixed: int = dataclasses.field(default=7, init=False)

    def f(x, given):
        made = Made(x * 2, *given)
        made.kept.append(made.number)
        return made.x * made.number + made.hidden, made

    return Case(fn=f, watch=lambda: count[0])


def test_default_factories_of_the_user(backend):
    same(counted, (X, ()), (Y, ()), (X, (5,)), (Y, ()), (X, (5, [1])), (Y, ()), backend=backend)


def stored():
    log = []

    @dataclasses.dataclass
    class Made:
        x: Any
        factor: float = 2.0

        def __setattr__(self, name, value):
            log.append(name)
            object.__setattr__(self, name, value * 2)

    def f(x, factor):
        made = Made(x, factor)
        made.factor = 5
        return made.x * made.factor, made

    return Case(fn=f, watch=lambda: log)


def test_setattr_of_the_user(backend):
    same(stored, *[(X, k) for k in (1.0, 2.0, 2.0, 3)], backend=backend)


def with_slots():
    @dataclasses.dataclass(slots=True)
    class Made:
        x: Any
        factor: dataclasses.InitVar[float] = 2.0
        y: Any = dataclasses.field(init=False, default=None)
        z: Any = 3

        def __post_init__(self, factor):
            self.y = self.x * factor

    def f(x, factor):
        try:
            made = Made(x, factor, *[4] * int(factor), z=x) if factor > 2 else Made(x, factor)
        except TypeError as error:
            return str(error)
        return made.y, made

    return f


def test_post_init_of_a_class_with_slots():
    fn = same(with_slots, (X, 1.0), (Y, 1.5), (X, 1.0), (X, 3.0), (Y, 1.0))
    one_graph(fn)


def frozen():
    @dataclasses.dataclass(frozen=True, order=True)
    class Key:
        a: int
        b: str = "x"
        note: Any = dataclasses.field(default=None, compare=False)

    class Sub(Key):
        pass

    table = {Key(1): 2.0, Key(2, "y"): 3.0}

    def f(x, a, b):
        key, told = Key(a, b, x), []
        for change in (setattr, lambda *where: delattr(*where[:2])):
            try:
                change(key, "a", 5)
            except dataclasses.FrozenInstanceError as error:
                told.append(str(error))
        sub = Sub(a)
        sub.other = x
        compared = (key == Key(1), key != Key(a, b), key < Key(2), Key(1) >= key, key == a)
        return x * table.get(Key(a, b), 1.0), compared, told, hash(key) == hash(Key(a, b)), sub

    return f


def test_generated_methods():
    steps = [(X, a, b) for a, b in ((1, "x"), (2, "y"), (2, "z"), (1, "x"))]
    one_graph(same(frozen, *steps))


def test_comparison_of_fields_that_are_tensors():
    @dataclasses.dataclass
    class Pair:
        a: Any
        b: Any = 1

    def f(x, y):
        try:
            return Pair(x) == Pair(y), Pair(1, x) == Pair(2, y)
        except RuntimeError as error:
            return type(error)

    one = torch.ones(1)
    same(lambda: f, (one, one), (one, one + 1), (one, one.clone()), (X, X), (X, Y), (one, one))


def test_a_key_that_holds_a_number_of_the_call():
    @dataclasses.dataclass(frozen=True)
    class Key:
        n: int

    def make():
        table = {}

        def f(x, n):
            table[Key(n + 1)] = x * n
            return len(table)

        return Case(fn=f, watch=lambda: [type(key.n) for key in table])

    same(make, *[(X, n) for n in (1, 2, 3, 2, 9)])


class Wrapping(type):
    """Replaces `__init__` by one that also takes an older name of a field."""

    def __setattr__(cls, name, value):
        if name == "__init__":
            init = value

            @functools.wraps(init)
            def __init__(self, *args, **kwargs):
                if "old" in kwargs:
                    kwargs["new"] = kwargs.pop("old")
                init(self, *args, **kwargs)

            value = __init__
        super().__setattr__(name, value)


def wrapped(frozen):
    def make():
        log = []

        @dataclasses.dataclass(frozen=frozen)
        class Made(metaclass=Wrapping):
            x: Any
            new: Any = None
            kept: list = dataclasses.field(default_factory=list)

            def __post_init__(self):
                log.append(self.new)

        @dataclasses.dataclass(frozen=frozen)
        class More(Made):
            last: int = 3

        outside = Made(1)

        def f(x, n):
            try:
                Made(x, older=n)
            except TypeError as error:
                log.append(str(error))
            made, more = Made(x, old=n), More(x * 2, last=n, old=x)
            outside.__init__(x + n, n)
            made.kept.append(n)
            return made.x * more.last + more.new, made, more

        return Case(fn=f, watch=lambda: (log, outside))

    return make


@pytest.mark.parametrize("frozen", [False, True])
def test_initialisers_that_a_metaclass_wraps(frozen, backend):
    steps = [(X, 1), (Y, 1), (X, 2), (Y, 3), (X, 3)]
    one_graph(same(wrapped(frozen), *steps, backend=backend))
