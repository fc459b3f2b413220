"""Python's language in captured code: the compiled program computes, changes and prints what eager
does."""

import dataclasses
import functools
import itertools
import math
import operator

import pytest
import torch
from helpers import Case, X, Y, same
from language_objects import (
    Abstract,
    Base,
    Child,
    Color,
    Concrete,
    Data,
    Key,
    Meta,
    Mixin,
    Perm,
    Point,
    Typed,
    Vec,
    WithMeta,
    coroutine,
    dispatch,
    fib,
    helper,
)

THREE = [(X,), (Y,), (X,)]


def _sorts(x):
    parts = [x, x[:2], x[:1]]
    return (
        sorted(parts, key=len),
        sorted(parts, key=lambda p: -p.shape[0]),
        max(parts, key=len),
        list(map(torch.neg, parts)),
        list(filter(lambda p: len(p) > 1, parts)),
        list(zip(parts, range(3))),
        list(enumerate(parts, 1)),
        list(reversed(parts)),
        functools.reduce(operator.add, [x, x, x]),
        list(itertools.accumulate([x, x])),
        list(itertools.chain([x], (x + 1,))),
        [len(list(g)) for _, g in itertools.groupby(parts, key=len)],
        list(itertools.starmap(torch.mul, [(x, 2)])),
        min(parts, key=lambda p: p.numel()),
    )


def _strings(x):
    name = "layer"
    return (
        f"{name!r:>10}|{x.shape}|{x.dtype}|{x.ndim:03d}",
        "%s-%d" % (name, x.shape[0]),
        "{}/{n}".format(name, n=2),
        name.upper() + "_".join(["a", "b"]),
        name[1:3],
        "ay" in name,
        name.split("y"),
        repr(name),
        str(x.dtype),
        len(name),
    )


def _sets(x):
    s = {1, 2} | {3} & {3, 4} - {5}
    d = {**{"a": x}, "b": x + 1}
    d |= {"c": 1}
    a, *b, (c, e) = [1, 2, 3, (4, 5)]
    first, *_ = x
    return (
        sorted(s),
        d,
        {k: v for v, k in enumerate(d)},
        a,
        b,
        c,
        e,
        first,
        d.keys() & {"a"},
        [*range(3), *b],
        (*b, a),
        dict(zip("ab", [x, x])),
        dict(a=1, **{"z": 2}),
        {**d}.pop("a"),
    )


def _closures(x):
    count = 0
    fs = [lambda v, i=i: v * i for i in range(3)]

    def add(v):
        nonlocal count
        count += 1
        return v + count

    late = [lambda: i for i in range(3)]
    return (
        add(add(x)),
        count,
        [f(x) for f in fs],
        [f() for f in late],
        (lambda *a, **k: (len(a), sorted(k)))(1, 2, b=3, a=4),
    )


def _classes(x):
    c = Child.make(3.0)
    local = type("Local", (Base,), {"extra": 5})(1.0)

    class Inner(Child):
        def scale(self, x):
            return super().scale(x) * 2

    return (
        c.scale(x),
        c.twice,
        c.cached,
        c.cached,
        c.kind,
        Child.tagged,
        c.private(),
        c.dyn_abc,
        c.reads,
        getattr(c, "nope", None),
        hasattr(c, "dyn_x"),
        hasattr(c, "zz"),
        isinstance(c, Base),
        issubclass(Child, Mixin),
        local.scale(x) + local.extra,
        Inner(2.0).scale(x),
        Base.shift(x),
        c.shift(x),
        Concrete().go(x),
        isinstance(Concrete(), Abstract),
        callable(c.scale),
        type(c).__name__,
        c.__class__.__mro__[1].__name__,
    )


def _operators(x):
    v = Vec(x * 1)
    w = 1 + v + v * 2 + (-v)
    w += 3
    v[0] = 9.0
    with v as inner:
        y = inner * 2
    return (
        w.t,
        v[0],
        len(v),
        [e for e in v],
        5 in v,
        6 in v,
        v(x),
        v @ v,
        v < w,
        v == w,
        bool(v),
        abs(v).t,
        y,
        list(reversed(v)),
        [10, 20][v],
        sum([v, v]).t,
        max([v, w], key=len).t,
        {v: 1}[w],
        not v,
        sorted([v, w])[0].t,
        v != w,
        v and 1,
    )


def _meta(x):
    w = WithMeta(x * 2)
    return w.v, Meta.made, WithMeta.count, WithMeta.anything, len(WithMeta), list(WithMeta)


def _enums(x):
    return (
        x * Color.RED.value,
        Color.BLUE.k,
        Color(1) is Color.RED,
        Color["BLUE"].name,
        [c.value for c in Color],
        Color.RED in (Color.RED,),
        {Color.RED: x}[Color.RED],
        str(Color.RED),
        (Perm.R | Perm.W).value,
        Perm.R in Perm.R | Perm.W,
    )


def _dataclasses(x):
    d = Data(x)
    e = dataclasses.replace(d, n=5)
    return (
        d,
        e,
        Data.made,
        dataclasses.astuple(Key(1)),
        Key(1) < Key(2),
        Key(1) == Key(1),
        {Key(1): 2}[Key(1)],
        dataclasses.fields(d)[0].name,
        Point(1)._replace(x=x),
        Typed(x).total(),
        Typed(x)._asdict(),
        Point(*[1, 2]).y,
    )


def _functools(x):
    p = functools.partial(torch.add, other=2)
    q = functools.partial(p, alpha=3)
    return (
        p(x),
        q(x),
        helper(x, plus=1),
        helper.__name__,
        dispatch(3, x),
        dispatch("a", x),
        fib(10),
        operator.itemgetter(1)([x, x + 1]),
        operator.methodcaller("abs")(x),
        operator.attrgetter("T")(x[None]),
        functools.cmp_to_key(lambda a, b: 0)(1) is not None,
    )


def _mathematics(x):
    return (
        x * math.pi
        + math.sqrt(2)
        + math.floor(2.5)
        + 7 // 2
        + (-7) % 3
        + round(2.567, 2)
        + int("3")
        + float("1.5")
        + abs(-2)
        + max(1, 2)
        + sum([1, 2])
        + divmod(7, 2)[0]
        + pow(2, 3)
        + 1e3
        + 0x1F
        + (1 << 3)
        + (True + 1)
    )


def _assignments(x):
    a = b = x + 1
    c, d = a, b
    c += 1
    (e, f), g = (1, 2), [3]
    g[0] += 5
    h = {"k": [1]}
    h["k"][0] *= 3
    h["k"] += [2]
    x = x.view(3, 1)
    i: int = 3
    del e
    return a, b, c, d, f, g, h, x, i, a is b


def _iterators(x):
    class Count:
        def __init__(self, n):
            self.n = n

        def __iter__(self):
            return self

        def __next__(self):
            if self.n == 0:
                raise StopIteration
            self.n -= 1
            return self.n

    it = iter([x, x + 1, x + 2])
    first = next(it)
    rest = list(it)
    return (
        [i for i in Count(3)],
        next(Count(2)),
        next(iter([]), "default"),
        first,
        rest,
        dict(a=1).items() | set(),
        [y for row in [[x], [x, x]] for y in row if len(row) > 1],
        list(iter(Count(3).__next__, 0)),
        tuple(i * x for i in Count(2)),
        *itertools.islice(itertools.count(3), 2),
    )


def _errors(x):
    out = []
    for action in (
        lambda: {}["k"],
        lambda: [][1],
        lambda: 1 / 0,
        lambda: int("z"),
        lambda: x.nope,
        lambda: None.a,
        lambda: undefined_name,  # noqa: F821
        lambda: x(1),
        lambda: [1] + (1,),
        lambda: next(iter([])),
    ):
        try:
            action()
        except (KeyError, IndexError) as e:
            out.append(("lookup", repr(e)))
        except Exception as e:
            out.append((type(e).__name__, str(e)))
        finally:
            out.append(1)
    try:
        try:
            raise ValueError("a")
        except ValueError as e:
            raise RuntimeError("b") from e
    except RuntimeError as e:
        out.append((str(e), str(e.__cause__)))
    return x, out


def _imports(x):
    import math as m
    from collections import OrderedDict

    return x * m.e, OrderedDict(a=x)


BODIES = [
    coroutine,
    _sorts,
    _strings,
    _sets,
    _closures,
    _classes,
    _operators,
    _meta,
    _enums,
    _dataclasses,
    _functools,
    _mathematics,
    _assignments,
    _iterators,
    _errors,
    _imports,
]


@pytest.mark.parametrize("body", BODIES, ids=lambda body: body.__name__)
def test_language(body):
    def reset(_):
        Meta.made = Data.made = 0

    def make():
        return Case(fn=lambda x: body(x))

    import dynfix
    from helpers import call, observe, step_of

    results = []
    for compiled in (False, True):
        reset(None)
        fib.cache_clear()
        case = make()
        fn = dynfix.compile(case.fn, backend="eager") if compiled else case.fn
        results.append(
            [
                observe(fn, step_of(call(*args)), None, lambda: (Meta.made, Data.made), n)
                for n, args in enumerate([*THREE, (Y,)])
            ]
        )
    for n, (expected, got) in enumerate(zip(*results, strict=True)):
        for key in expected:
            from helpers import difference

            assert got[key] == expected[key], (
                f"call {n}, {key}: {difference(got[key], expected[key])}"
            )


def test_object_from_outside():
    def make():
        c = Child(2.0)
        return Case(
            fn=lambda x: (c.scale(x) + c.twice + c.cached + c.dyn_a + c.private(), c.memo(3)),
            c=c,
            watch=lambda: vars(c),
        )

    same(
        make,
        *THREE,
        lambda case: setattr(case.c, "k", 5.0),
        *THREE,
        lambda case: case.c.__dict__.pop("cached"),
        *THREE,
    )


def test_user_vectors_from_outside():
    def make():
        v = Vec(torch.ones(3))

        def f(x):
            nonlocal v
            v += x
            v[0] = 3.0
            return sum([v, v]).t, v

        return Case(fn=f, watch=lambda: v)

    same(make, *THREE)


def test_shallow_copies_and_reprs_read():
    import copy

    class Thing:
        def __init__(self):
            self.k = 2.0

        def __repr__(self):
            return f"{self.k}"

    def make():
        t = Thing()
        bodies = {
            "copy": lambda x: x * copy.copy(t).k,
            "repr": lambda x: x * float(repr(t)),
            "str": lambda x: x * float(str(t)),
            "f": lambda x: x * float(f"{t}"),
            "percent": lambda x: x * float("%s" % t),
            "format": lambda x: x * float("{}".format(t)),
            "list": lambda x: x * float(str([t])[1:-1]),
            "vars": lambda x: x * vars(t)["k"],
            "dict": lambda x: x * t.__dict__["k"],
            "join": lambda x: x * float("".join([str(t)])),
        }
        return t, bodies

    for name in make()[1]:

        def case(name=name):
            t, bodies = make()
            return Case(fn=bodies[name], t=t)

        same(
            case,
            (X,),
            lambda c: setattr(c.t, "k", 3.0),
            (X,),
            lambda c: setattr(c.t, "k", 4.0),
            (X,),
        )
