"""Arguments of every kind: what a later call passes is what it computes with."""

import array
import collections
import dataclasses
import datetime
import decimal
import enum
import fractions
import functools
import operator
import pathlib
import re
import types

import numpy as np
import pytest
import torch
from helpers import Case, Fresh, X, Y, call, one_graph, same, tensor


class MyInt(int):
    pass


class MyStr(str):
    pass


class Color(enum.Enum):
    RED = 1.0
    BLUE = 2.0


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 5


@dataclasses.dataclass
class Config:
    scale: float = 1.0
    parts: list = dataclasses.field(default_factory=list)


@dataclasses.dataclass(frozen=True)
class Frozen:
    scale: float


class Slots:
    __slots__ = ("v",)

    def __init__(self, v):
        self.v = v


Pair = collections.namedtuple("Pair", "a b")


def use(x, v):
    return x * v


VALUES = {
    "int": (use, [2, 3, 2, True, 0]),
    "float": (use, [2.0, 3.0, 2, -0.0, float("inf")]),
    "bool": (lambda x, v: x + 1 if v else x - 1, [True, False, True]),
    "str": (lambda x, v: x * len(v) + (1 if v == "abc" else 0), ["abc", "de", "xyz", "abc"]),
    "none": (lambda x, v: x if v is None else x + v, [None, 1, None, tensor(1, 2, 3), None]),
    "complex": (use, [1j, 2j, 1 + 1j]),
    "bytes": (lambda x, v: x * v[0], [b"a", b"b", b"a"]),
    "int subclass": (use, [MyInt(2), MyInt(3), MyInt(2)]),
    "str subclass": (
        lambda x, v: x * len(v) if v == "ab" else x,
        [MyStr("ab"), MyStr("abc"), MyStr("x")],
    ),
    "enum": (
        lambda x, v: x * v.value if v is Color.RED else x - v.value,
        [Color.RED, Color.BLUE, Color.RED],
    ),
    "enum eq": (
        lambda x, v: x + (v == Color.RED) + (v in (Color.BLUE,)),
        [Color.RED, Color.BLUE, Color.RED],
    ),
    "int enum": (use, [Level.LOW, Level.HIGH, Level.LOW]),
    "np float64": (use, [np.float64(2), np.float64(3), np.float64(2)]),
    "np float32": (lambda x, v: x * float(v), [np.float32(2), np.float32(3)]),
    "np int64": (lambda x, v: x[: int(v)], [np.int64(2), np.int64(1)]),
    "np index": (lambda x, v: x[v], [np.int64(2), np.int64(1)]),
    "np bool": (lambda x, v: x if v else -x, [np.bool_(True), np.bool_(False)]),
    "np array item": (
        lambda x, v: x * float(v[0]),
        [np.array([2.0]), np.array([3.0]), np.array([2.0])],
    ),
    "np array math": (lambda x, v: x * float((v * 2 + 1)[0]), [np.array([2.0]), np.array([3.0])]),
    "np array sum": (lambda x, v: x * float(v.sum()), [np.array([2.0]), np.array([3.0, 4.0])]),
    "np array shape": (lambda x, v: x * v.shape[0] + len(v), [np.zeros(2), np.zeros(3)]),
    "np array tensor": (
        lambda x, v: x + torch.tensor(v) + torch.as_tensor(v),
        [np.ones(3), np.zeros(3)],
    ),
    "np from_numpy": (lambda x, v: x + torch.from_numpy(v), [np.ones(3), np.zeros(3)]),
    "np loop": (lambda x, v: x + sum(float(e) for e in v), [np.ones(3), np.zeros(3)]),
    "decimal": (lambda x, v: x * float(v), [decimal.Decimal("2.5"), decimal.Decimal("3.5")]),
    "decimal math": (lambda x, v: x * int(v + 1), [decimal.Decimal("2"), decimal.Decimal("3")]),
    "fraction": (lambda x, v: x * float(v), [fractions.Fraction(1, 2), fractions.Fraction(1, 4)]),
    "date": (
        lambda x, v: x * v.year + (v > datetime.date(2000, 1, 1)),
        [datetime.date(2001, 1, 1), datetime.date(1999, 1, 1)],
    ),
    "timedelta": (
        lambda x, v: x * v.total_seconds(),
        [datetime.timedelta(1), datetime.timedelta(2)],
    ),
    "path": (lambda x, v: x * len(str(v)) + len(v.parts), [pathlib.Path("a"), pathlib.Path("b/c")]),
    "regex": (lambda x, v: x if v.match("abc") else -x, [re.compile("a"), re.compile("b")]),
    "slice": (lambda x, v: x[v], [slice(0, 2), slice(1, 3), slice(0, 1)]),
    "slice in": (lambda x, v: x[v[0], ...], [(slice(0, 2),), (slice(1, 3),)]),
    "range": (lambda x, v: x + sum(v), [range(3), range(4)]),
    "ellipsis": (lambda x, v: x[v], [Ellipsis, 1, None, Ellipsis]),
    "list": (lambda x, v: x * v[0] + len(v), [[1, 2], [1, 3], [2], [1, 2, 3]]),
    "list sum": (lambda x, v: x * sum(v), [[1, 2], [1, 3], [2]]),
    "nested": (
        lambda x, v: x * v["a"][0][1],
        [{"a": [(1, 2)]}, {"a": [(1, 3)]}, {"a": [(1, 2)], "b": 1}],
    ),
    "dict loop": (
        lambda x, v: sum(x * w for k, w in v.items() if k != "c"),
        [{"a": 1}, {"a": 2}, {"b": 1, "c": 3}],
    ),
    "dict get": (lambda x, v: x * v.get("a", 5), [{"a": 1}, {}, {"b": 1}, {"a": 1}]),
    "dict int keys": (lambda x, v: x * v[1], [{1: 2.0}, {1: 3.0}, {True: 4.0}]),
    "defaultdict": (
        lambda x, v: x * v["a"] + len(v),
        [
            collections.defaultdict(int),
            collections.defaultdict(int, a=3),
            collections.defaultdict(int),
        ],
    ),
    "ordered": (
        lambda x, v: x * list(v.values())[0],
        [collections.OrderedDict(a=1, b=2), collections.OrderedDict(b=2, a=1)],
    ),
    "counter": (
        lambda x, v: x * v["a"] + v["zz"] + v.most_common(1)[0][1],
        [collections.Counter("aab"), collections.Counter("abb")],
    ),
    "deque": (lambda x, v: x * v[0] + len(v), [collections.deque([1]), collections.deque([2, 3])]),
    "set": (lambda x, v: x + 1 if "a" in v else x, [{"a"}, {"b"}, set()]),
    "frozenset": (
        lambda x, v: x + 1 if "a" in v else x,
        [frozenset("a"), frozenset("b"), frozenset()],
    ),
    "array": (
        lambda x, v: x * v[0] + len(v),
        [array.array("d", [2.0]), array.array("d", [3.0, 1.0])],
    ),
    "bytearray": (lambda x, v: x * v[0] + len(v), [bytearray(b"a"), bytearray(b"bc")]),
    "memoryview": (
        lambda x, v: x * v[0] + len(v),
        [Fresh(lambda: memoryview(b"a")), Fresh(lambda: memoryview(b"bc"))],
    ),
    "namedtuple": (lambda x, v: x * v.a + v[1], [Pair(1, 2), Pair(1, 3), Pair(2, 2)]),
    "dataclass": (
        lambda x, v: x * v.scale + len(v.parts),
        [Config(2.0), Config(3.0), Config(2.0, [1])],
    ),
    "dataclass eq": (
        lambda x, v: x if v == Config(2.0) else -x,
        [Config(2.0), Config(3.0), Config(2.0, [1])],
    ),
    "dataclass replace": (
        lambda x, v: x * dataclasses.replace(v, parts=[1]).scale,
        [Config(2.0), Config(3.0)],
    ),
    "dataclass asdict": (
        lambda x, v: x * dataclasses.asdict(v)["scale"],
        [Config(2.0), Config(3.0)],
    ),
    "dataclass fields": (
        lambda x, v: (
            x * len([getattr(v, f.name) for f in dataclasses.fields(v)]) * getattr(v, "scale")
        ),
        [Config(2.0), Config(3.0)],
    ),
    "frozen": (lambda x, v: x * v.scale if v == Frozen(2.0) else x, [Frozen(2.0), Frozen(3.0)]),
    "frozen key": (
        lambda x, v: x * {Frozen(2.0): 10, Frozen(3.0): 20}[v],
        [Frozen(2.0), Frozen(3.0)],
    ),
    "slots": (lambda x, v: x * v.v, [Slots(2.0), Slots(3.0)]),
    "copy": (lambda x, v: x * __import__("copy").copy(v).scale, [Config(2.0), Config(3.0)]),
    "deepcopy": (lambda x, v: x * __import__("copy").deepcopy(v).scale, [Config(2.0), Config(3.0)]),
    "namespace": (
        lambda x, v: x * v.a if hasattr(v, "a") else x,
        [types.SimpleNamespace(a=2), types.SimpleNamespace(b=1), types.SimpleNamespace(a=3)],
    ),
    "proxy": (
        lambda x, v: x * v["a"],
        [
            Fresh(lambda: types.MappingProxyType({"a": 1})),
            Fresh(lambda: types.MappingProxyType({"a": 2})),
        ],
    ),
    "repr": (
        lambda x, v: x * len(repr(v)) + len(str(v)) + len(f"{v}"),
        [[1], [1, 22], Config(1.0), Config(11.0), {"a": 1}],
    ),
    "repr eq": (lambda x, v: x if repr(v) == "[1]" else x * 2, [[1], [2], [1]]),
    "dtype": (lambda x, v: x.to(v), [torch.float32, torch.float64, torch.int32]),
    "device": (lambda x, v: x.to(v), [torch.device("cpu"), "cpu"]),
    "size": (lambda x, v: x.expand(v), [torch.Size([2, 3]), torch.Size([1, 3])]),
    "type": (lambda x, v: x * v(2), [int, float, Level.__mro__[1]]),
    "builtin": (lambda x, v: v(x), [torch.relu, torch.abs, torch.relu]),
    "partial": (
        lambda x, v: v(x),
        [
            functools.partial(torch.add, other=1),
            functools.partial(torch.add, other=2),
            functools.partial(torch.mul, other=2),
        ],
    ),
    "itemgetter": (
        lambda x, v: x * v({"a": 1, "b": 2}),
        [operator.itemgetter("a"), operator.itemgetter("b")],
    ),
    "attrgetter": (
        lambda x, v: x + len(v(x)),
        [operator.attrgetter("shape"), operator.attrgetter("data")],
    ),
    "methodcaller": (
        lambda x, v: v(x),
        [
            operator.methodcaller("abs"),
            operator.methodcaller("neg"),
            operator.methodcaller("add", 3),
        ],
    ),
    "lambda": (lambda x, v: v(x), [lambda x: x + 1, lambda x: x + 2, lambda x: x * 3]),
    "bound": (lambda x, v: v(x), [X.add, Y.mul]),
    "exception": (
        lambda x, v: x * len(v.args) + len(str(v)),
        [ValueError("a"), ValueError("b", 2)],
    ),
    "generator": (
        lambda x, v: x * sum(v),
        [Fresh(lambda: (i for i in [1, 2])), Fresh(lambda: (i for i in [3]))],
    ),
    "iterator": (
        lambda x, v: x * next(v),
        [Fresh(lambda: iter([1, 2])), Fresh(lambda: iter([3])), Fresh(lambda: iter([1, 2]))],
    ),
    "map": (
        lambda x, v: sum(x * e for e in v),
        [Fresh(lambda: map(float, [1, 2])), Fresh(lambda: map(float, [3]))],
    ),
    "tensor list": (lambda x, v: x + sum(v), [[X, Y], [Y], [X, X, Y], []]),
    "tensor dict": (
        lambda x, v: x + v["a"] * v.get("b", 2),
        [{"a": X}, {"a": Y, "b": X}, {"a": Y}],
    ),
    "keys": (
        lambda x, v: x * len(v) + list(v)[0],
        [Fresh(lambda: {1: 2}.keys()), Fresh(lambda: {2: 2, 3: 1}.keys())],
    ),
}


@pytest.mark.parametrize("name", VALUES)
def test_value(name):
    body, values = VALUES[name]

    def make():
        def f(x, v):
            return body(x, v)

        return f

    same(make, *[(X, v) for v in values], *[(Y, v) for v in values])


def test_object_identity_and_keys():
    """Objects that compare by identity: which one is passed matters."""

    class Mode:
        pass

    a, b = Mode(), Mode()
    table = {a: 2.0, b: 3.0}

    def make():
        def f(x, key):
            y = x * table[key] if key in table else x
            y = y + 1 if key == a else y - 1
            y = y + 10 if key is a else y
            return y * (2 if key in [b] else 1) + [a, b].index(key)

        return f

    same(
        make,
        (X, Fresh(lambda: a)),
        (X, Fresh(lambda: b)),
        (X, Fresh(lambda: a)),
        (X, Fresh(lambda: b)),
    )


def test_two_tensors_become_one():
    def make():
        def f(x, y):
            return (x * 2 if x is y else x + y), (x, y)

        return f

    same(make, (X, Y), (X, X), (X, Y), (Y, Y))
    same(make, (X, X), (X, Y), (X, X))


def test_two_written_tensors_become_one():
    def make():
        def f(x, y):
            x.add_(1)
            return x * y, y

        return f

    same(make, (X, Y), (X, X), (Y, X))


def test_overlapping_views():
    base = torch.arange(6.0)

    def make():
        def f(x, y):
            x.mul_(2)
            y.add_(x)
            return x + y

        return f

    same(make, (X, Y), (base[:3], base[1:4]), (base[:3], base[3:]), (base[::2], base[1::2]), (X, Y))


def test_positional_and_keywords():
    def make():
        def f(x, y=None, *rest, flag=False, **more):
            out = x if y is None else x + y
            for r in rest:
                out = out * r
            return out + sum(more.values()) if flag else (out, more)

        return f

    same(
        make,
        (X,),
        (X, Y),
        call(X, y=Y),
        call(x=X),
        call(y=Y, x=X),
        (X, Y, 2, 3),
        call(X, Y, 2, flag=True, a=1, b=2),
        call(X, flag=True, b=1, a=2),
        call(X, z=Y),
    )


def test_keywords_of_any_name():
    def body(x, self, rec, family=0):
        return x * self + dict(self=rec, rec=family)["rec"]

    steps = [call(x=X, self=n, rec=2, family=3) for n in (2, 3, 2)]
    one_graph(same(lambda: body, *steps), 2)


def test_shapes_and_dtypes():
    def make():
        def f(x):
            return x.sum(-1) * x.shape[0] + x.numel(), x.dtype, x.shape, x.view(-1), x.stride()

        return f

    sizes = [
        torch.ones(2, 3),
        torch.ones(4, 3),
        torch.ones(4, 5),
        torch.ones(1, 5),
        torch.ones(0, 2),
        torch.ones(2, 3, dtype=torch.int64),
        torch.ones(3, dtype=torch.float64),
        torch.ones(4, 2),
    ]
    same(make, *[(x,) for x in sizes])
    same(
        lambda: lambda x: (x.t() + 1, x.is_contiguous()),
        (torch.ones(2, 3),),
        (torch.ones(3, 2).t(),),
        (torch.ones(2, 3).expand(2, 3),),
    )


def test_metadata_that_no_size_tells():
    def make():
        def f(x):
            return (
                x + 1,
                x.storage_offset(),
                x.is_leaf,
                x.requires_grad,
                x.grad_fn is None,
                x._is_view(),
                x._base is None,
                x.grad is None,
                x.is_inference(),
            )

        return f

    base = torch.arange(6.0)
    views = [
        (base[:3],),
        (base[3:],),
        (X,),
        (tensor(1, 2, 3, grad=True),),
        (Fresh(lambda: tensor(1, 2, 3, grad=True) * 2),),
    ]
    same(make, *views)
    for read in ("storage_offset", "_is_view", "is_inference"):
        same(lambda read=read: lambda x: (x + 1, getattr(x, read)()), *views)
    for read in ("is_leaf", "grad_fn", "_base", "grad", "_version", "output_nr"):
        same(
            lambda read=read: lambda x: (x + 1, getattr(x, read) is None, getattr(x, read) == 0),
            *views,
        )

    def inference():
        with torch.inference_mode():
            return torch.ones(3)

    same(lambda: lambda x: (x * 2, x.is_inference()), (X,), (Fresh(inference),), (X,))


def test_object_that_arrives_with_other_class():
    class A:
        def go(self, x):
            return x + 1

    class B(A):
        def go(self, x):
            return x - 1

    same(lambda: lambda x, o: o.go(x), (X, A()), (X, B()), (X, A()))


def test_reading_an_object_of_another_class_happens_once():
    class Counted:
        def __init__(self):
            self.asked = []

        def __getitem__(self, index):
            self.asked.append(index)
            return tensor(index, 2.0)

    first, second = Counted(), Counted()
    same(lambda: lambda o, x: x * o[1], ([X[:2], Y[:2]], X[:2]), (first, X[:2]), (second, Y[:2]))


def test_one_graph_for_plain_values():
    fn = same(
        lambda: lambda x, v: x * v["k"] + len(v["n"]),
        (X, {"k": 1, "n": [1]}),
        (Y, {"k": 1, "n": [1]}),
    )
    one_graph(fn, 1)


def test_module_as_argument():
    def make():
        torch.manual_seed(0)
        nets = [torch.nn.Linear(3, 3), torch.nn.Linear(3, 3), torch.nn.ReLU()]
        return Case(fn=lambda x, i: nets[i](x), nets=nets)

    same(make, (X, 0), (X, 1), (X, 2), (X, 0))


@pytest.mark.parametrize("fn", [lambda x, s: x[s] + 1, lambda x, s: (x[0, s] * 2, s.step)])
def test_ends_of_a_slice_argument_are_seen(fn):
    x = torch.arange(36.0).view(6, 6)
    ends = ((0, 3), (1, 3), (None, None, 2), (0, 3), (1, 3))
    same(lambda: fn, *((x, slice(*end)) for end in ends))


def scaled(factor):
    return lambda x: x * factor


def by_either(one, other, x):
    return one(x) + (other(x) if one is not other else 0)


def by_a_held_one(holder, x):
    return holder.fn(x) - 1, holder.fn


def test_functions_that_are_made_anew():
    """What they close over is compared, not what they are."""
    fn = same(
        lambda: lambda f, x: f(x) + 1,
        *((scaled(torch.tensor(float(k))), X) for k in range(4)),
    )
    one_graph(fn, 1)
    same(lambda: lambda f, x: f(x) + 1, *((scaled(k), X) for k in (2.0, 3.0, 3.0, 2.0)))
    same(lambda: by_a_held_one, *((types.SimpleNamespace(fn=scaled(Y)), X) for _ in range(3)))
    own = scaled(3.0)
    same(lambda: by_either, (own, own, X), (own, scaled(3.0), X), (own, own, X))


def test_functions_that_are_made_anew_and_are_keys():
    def make():
        known = {}

        def call(f, x):
            known.setdefault(f, len(known))
            return f(x) * known[f]

        return call

    same(make, *((scaled(2.0), X) for _ in range(4)))


def test_a_length_that_a_tuple_holds_moves_with_the_sizes():
    def call(x, kept):
        total = (1, *x.shape[:1]) + kept
        return x.sum() * total[-1] + x.new_zeros(kept[0])

    fn = same(lambda: call, *((torch.rand(n), (n,)) for n in (4, 5, 6, 7)))
    one_graph(fn, 2)
