"""What Python reads by itself: match patterns, class bodies, imports, `super()`, special methods
that C code calls, names of functions, bounds of ranges."""

import abc
import dataclasses
import math
import sys
import types

import dynfix
import pytest
import torch
from helpers import Case, X, call, one_graph, same

SCALE = [2.0]


@dataclasses.dataclass
class Point:
    x: float
    y: float


class Kinds:
    A, B = 1, 2


class Always(type):
    wanted = True

    def __instancecheck__(cls, instance):
        return Always.wanted


class Any(metaclass=Always):
    pass


class Number:
    def __init__(self, v):
        self.v = v

    def __add__(self, other):
        return Number(self.v + (other.v if isinstance(other, Number) else other))

    __radd__ = __add__

    def __eq__(self, other):
        return self.v == other.v and SCALE[0] > 1

    def __hash__(self):
        return hash(self.v)

    def __str__(self):
        return f"{self.v * SCALE[0]}"


def by_class(t, p):
    match p:
        case Point(x=0, y=y):
            return t * y
        case Point(x=x):
            return t + x


def by_value(t, n):
    match n:
        case Kinds.A:
            return t + 1
        case Kinds.B:
            return t * 2
    return t


def by_shape(t, value):
    match value:
        case []:
            return t
        case [first, *_] if first > 1:
            return t * first
        case {"k": k, **rest}:
            return t * k + len(rest)
        case (_, str(s)):
            return t + len(s)
    return -t


def test_match_of_a_class():
    points = (Point(0, 1.0), Point(0, 2.0), Point(1.0, 2.0), Point(0, 1.0))
    fn = same(lambda: by_class, *(call(X, point) for point in points))
    one_graph(fn)


def test_match_of_a_value(monkeypatch):
    fn = dynfix.compile(by_value, backend="eager")
    assert torch.equal(fn(X, 1), X + 1)
    monkeypatch.setattr(Kinds, "A", 2)
    monkeypatch.setattr(Kinds, "B", 1)
    assert torch.equal(fn(X, 1), X * 2)


def test_match_of_a_structure():
    values = ([], [2, 3], [2, 4], [1], {"k": 2}, {"k": 3}, {"k": 3, "l": 1}, (1, "ab"), (1, 2), [2])
    same(lambda: by_shape, *(call(X, value) for value in values))


def changing(fn, changes, *args):
    """Compare eager and compiled before and after each change."""
    compiled = dynfix.compile(fn, backend="eager")
    for change in (lambda: None, *changes):
        change()
        for _ in range(2):
            assert torch.equal(compiled(*args), fn(*args))


def test_class_body(monkeypatch):
    namespace = {"__name__": __name__, "K": 2.0, "__builtins__": __builtins__}

    def f(x):
        class Inner:
            k = K  # noqa: F821

        return x * Inner.k

    fn = types.FunctionType(f.__code__, namespace)
    changes = [lambda value=value: namespace.update(K=value) for value in (5.0, 7.0, 2.0)]
    changing(fn, changes, X)


def test_class_body_with_bases_and_methods():
    def f(x):
        class Inner(Number):
            extra: int = 3

            def total(self, y):
                return y * self.v + self.extra

        return Inner(2.0).total(x)

    same(lambda: f, (X,), (X,), (X,))


def test_import_inside(monkeypatch):
    made = types.ModuleType("read_inside")
    made.K = 2.0
    monkeypatch.setitem(sys.modules, "read_inside", made)

    def f(x):
        import read_inside as module
        from read_inside import K

        return x * K + module.K

    def replace():
        other = types.ModuleType("read_inside")
        other.K = 7.0
        sys.modules["read_inside"] = other

    changing(f, [lambda: setattr(made, "K", 5.0), replace], X)


class Base:
    b = 2.0

    @property
    def p(self):
        return self.b


class Derived(Base):
    def read(self, x):
        return x * super().b * super().p


def test_super(monkeypatch):
    obj = Derived()
    changes = [
        lambda: monkeypatch.setattr(Base, "b", 5.0),
        lambda: monkeypatch.setattr(Base, "p", property(lambda self: 3.0)),
    ]
    changing(lambda x: obj.read(x), changes, X)


def test_names_of_functions_and_classes():
    class Named:
        pass

    def named():
        pass

    changes = [
        lambda: setattr(named, "__name__", "longer_than_before"),
        lambda: setattr(Named, "__name__", "N"),
    ]
    changing(lambda x: x * len(named.__name__) + len(Named.__name__), changes, X)


def test_class_methods_are_recorded_once():
    class Maker:
        k = 2

        @classmethod
        def make(cls, x):
            return x * cls.k

    fn = same(lambda: lambda x: Maker.make(x), (X,), (X,), (X,))
    one_graph(fn, count=1)


def test_bounds_of_equal_ranges():
    ranges = (range(0, 3, 2), range(0, 4, 2), range(0), range(5, 5))
    same(lambda: lambda r, x: (x * r.stop, r.start), *(call(r, X) for r in ranges))


def test_length_after_a_caught_index_error():
    def f(x, values):
        try:
            return x * values[2]
        except IndexError:
            return x - 1

    same(lambda: f, call(X, [1]), call(X, [1, 2, 3]), call(X, [1, 2]), call(X, [1, 2, 5]))


@pytest.mark.covering
@pytest.mark.parametrize("kind", [list, tuple, sorted])
@pytest.mark.parametrize("name", ["__len__", "__length_hint__"])
@pytest.mark.parametrize("answer", [2, ValueError("none"), TypeError("none")])
def test_lists_ask_how_long_what_they_take_is(kind, name, answer):
    def asked(self):
        self.asked += 1
        if isinstance(answer, Exception):
            raise answer
        return answer

    made = type("Made", (), {name: asked, "__iter__": lambda self: iter([2, 1])})

    def f(x):
        one = made()
        one.asked = 0
        try:
            return kind(one), one.asked, x + 1
        except ValueError as error:
            return str(error), one.asked, x + 1

    same(lambda: f, *[(X,)] * 4)


def test_a_nan_is_found_by_identity():
    def f(x):
        value = (x.sum() * math.nan).item()
        return len(dict.fromkeys((value, value))), value in {value}, value in [value], x + 1

    same(lambda: f, *[(X,)] * 4)


def test_recursion_limit():
    before = sys.getrecursionlimit()
    try:
        changing(
            lambda x: x * sys.getrecursionlimit(), [lambda: sys.setrecursionlimit(before + 7)], X
        )
    finally:
        sys.setrecursionlimit(before)


@pytest.mark.parametrize(
    "read",
    [
        lambda a, b, x: x * sum([a, b]).v,
        lambda a, b, x: x + ([a] == [b]),
        lambda a, b, x: x + (a in [b, b]),
        lambda a, b, x: x + len({a: 1, b: 2}),
        lambda a, b, x: x + len("%s" % b),
        lambda a, b, x: x + len(f"{b}"),
        lambda a, b, x: x + [b, b].count(a),
        lambda a, b, x: x + isinstance(a, Any),
    ],
)
def test_special_methods_that_c_code_calls(read, monkeypatch):
    a, b = Number(1.0), Number(1.0)
    monkeypatch.setattr(Always, "wanted", True)

    def scale(value):
        SCALE[0] = value

    try:
        changes = [
            lambda: setattr(b, "v", 2.0),
            lambda: scale(1.0),
            lambda: setattr(a, "v", 2.0),
            lambda: scale(20.0),
            lambda: monkeypatch.setattr(Always, "wanted", False),
        ]
        changing(read, changes, a, b, X)
    finally:
        scale(2.0)


def test_lists_of_what_dataclass_compares():
    p, q = Point(1.0, 1.0), Point(1.0, 1.0)
    changes = [lambda: setattr(q, "x", 2.0), lambda: setattr(p, "x", 2.0)]
    changing(lambda a, b, x: x + 1 if [a] == [b] else x - 1, changes, p, q, X)


def test_attributes_that_torch_stores():
    norm = torch.nn.utils.weight_norm(torch.nn.Linear(2, 3)).requires_grad_(False)
    fn = dynfix.compile(norm, backend="eager")
    for value in (1.0, 1.0, 10.0):
        norm.weight_g.fill_(value)
        fn(torch.ones(1, 2))
        found = norm.weight.clone()
        torch.nn.Linear.forward(norm, torch.ones(1, 2))
        norm(torch.ones(1, 2))
        assert torch.equal(found, norm.weight)


class _Bare:
    __slots__ = ("flag",)


class _Plain:
    pass


@pytest.mark.parametrize(
    "holder",
    [types.ModuleType("empty"), type("Empty", (), {}), _Bare(), _Plain(), torch.ones(1)],
    ids=["module", "class", "slot", "object", "tensor"],
)
def test_what_was_not_there_is_guarded(holder):
    """An attribute that a later call finds, and one after that does not."""

    def asked(x):
        return x * 2 if hasattr(holder, "flag") else x - 1

    def given(x):
        return x * 2 if getattr(holder, "flag", None) is None else x - 1

    def caught(x):
        try:
            holder.flag  # noqa: B018
        except AttributeError:
            return x * 2
        return x - 1

    x = torch.full((2,), 3.0)
    for fn in (asked, given, caught):
        compiled = dynfix.compile(fn, backend="eager")
        for change in (None, lambda: setattr(holder, "flag", 1), lambda: delattr(holder, "flag")):
            if change is not None:
                change()
            for _ in range(2):
                assert torch.equal(compiled(x), fn(x))


def test_names_that_a_namespace_lacks():
    class Held:
        pass

    tensor = torch.ones(1)

    def of_class(x):
        return x * 2 if "flag" in Held.__dict__ else x - 1

    def of_tensor(x):
        return x * 2 if "flag" in tensor.__dict__ else x - 1

    x = torch.full((2,), 3.0)
    for fn, holder in ((of_class, Held), (of_tensor, tensor)):
        compiled = dynfix.compile(fn, backend="eager")
        for _ in range(2):
            assert torch.equal(compiled(x), fn(x))
        holder.flag = 1
        assert torch.equal(compiled(x), fn(x))


def test_attributes_that_a_call_sets_on_a_tensor():
    def make():
        tensor = torch.ones(3)

        def counted(x):
            x.tag = getattr(x, "tag", 0) + 1
            x.last = x * x.tag
            return x.last + 1

        return counted, tensor

    (fn, one), (other, two) = make(), make()
    compiled = dynfix.compile(other, backend="eager", fullgraph=True)
    for _ in range(5):
        assert torch.equal(compiled(two), fn(one))
        assert two.tag == one.tag and torch.equal(two.last, one.last)


def test_attributes_set_by_object_itself():
    class Kept(torch.nn.Module):
        def forward(self, x):
            object.__setattr__(self, "last", x * 2)
            return x + 1

    module = Kept()
    compiled = dynfix.compile(module, backend="eager", fullgraph=True)
    for i in range(4):
        x = torch.full((2,), float(i))
        compiled(x)
        assert torch.equal(module.last, x * 2)


def test_a_class_that_is_registered_later():
    def make():
        class Base(abc.ABC):
            @abc.abstractmethod
            def scale(self):
                pass

        class Other:
            pass

        def program(x, obj):
            return x + isinstance(obj, Base) + 2 * issubclass(type(obj), (Base, int))

        return Case(fn=program, base=Base, other=Other)

    register = lambda case: case.base.register(case.other)  # noqa: E731
    case = make()
    compiled = dynfix.compile(case.fn, backend="eager")
    obj = case.other()
    for change in (None, None, register, None):
        if change is not None:
            change(case)
        assert torch.equal(compiled(X, obj), case.fn(X, obj))


def test_which_operand_is_asked_first():
    class Left:
        def __add__(self, other):
            return 1.0

        def __radd__(self, other):
            return 2.0

        def __lt__(self, other):
            return True

        def __gt__(self, other):
            return False

    class Right(Left):
        def __radd__(self, other):
            return 3.0

    class Number(int):
        def __radd__(self, other):
            return 4.0

    left, right, number = Left(), Right(), Number(5)

    def program(x):
        told = [left + right, right + left, 1 + number, 1.5 + number, left + number, left < right]
        return x + number, told

    same(lambda: program, (X,), (X * 2,), (X,))
