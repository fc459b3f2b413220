"""Whatever changes in the classes of what a call uses is seen: methods, bases, descriptors,
metaclasses. Never a stale answer."""

import dataclasses
import inspect
import types
import typing

import pytest
import torch
from helpers import Case, X, call, one_graph, same, tensor


def test_base_method_replaced():
    def make():
        class Base(torch.nn.Module):
            def forward(self, x):
                return x + 1

            def __call__(self, x):
                return super().__call__(x)

        class Child(Base):
            def forward(self, x):
                return super().forward(x) * 2

        return Child()

    def base(net):
        type(net).__mro__[1].forward = lambda self, x: x + 10

    def entry(net):
        type(net).__mro__[1].__call__ = lambda self, x: x - 7

    same(make, (X,), (X,), base, (X,), entry, (X,))


@pytest.mark.parametrize("name", ["__call__", "_call_impl"])
def test_call_of_all_modules_replaced(name, monkeypatch):
    original = getattr(torch.nn.Module, name)

    def doubled(module, *args):
        return original(module, *args) * 2

    def replaced(net):
        monkeypatch.setattr(torch.nn.Module, name, doubled)

    def back(net):
        monkeypatch.undo()

    def make():
        return torch.nn.Sequential(torch.nn.ReLU(), torch.nn.Tanh())

    same(make, (X,), (X,), replaced, (X,), (X,), back, (X,))
    monkeypatch.setattr(torch.nn.Module, name, doubled)
    same(make, (X,), (X,))


def test_special_methods_replaced_on_class():
    def make():
        class Box:
            def __init__(self):
                self.v = 2.0

            def __call__(self, x):
                return x * self.v

            def __getitem__(self, i):
                return self.v + i

            def __len__(self):
                return 3

            def __add__(self, other):
                return other + self.v

            def __bool__(self):
                return True

            def __eq__(self, other):
                return True

            def __contains__(self, v):
                return True

            @property
            def prop(self):
                return 1.0

            @staticmethod
            def static(x):
                return x

        box = Box()

        def f(x):
            y = (box + box(x)) * box[1] + len(box) + box.prop
            y = y + 1 if box else y - 1
            y = y + 2 if box == 3 else y - 2
            y = y + 4 if 5 in box else y - 4
            return box.static(y)

        return Case(fn=f, cls=Box)

    for name, value in {
        "__call__": lambda s, x: x - 3,
        "__getitem__": lambda s, i: 7.0,
        "__len__": lambda s: 9,
        "__add__": lambda s, o: o - 1,
        "__bool__": lambda s: False,
        "__eq__": lambda s, o: False,
        "__contains__": lambda s, v: False,
        "prop": property(lambda s: 4.0),
        "static": staticmethod(lambda x: -x),
    }.items():
        same(make, (X,), (X,), lambda case, n=name, v=value: setattr(case.cls, n, v), (X,))


def test_bases_and_descriptors_replaced():
    def make():
        class Reads:
            def __get__(self, obj, owner):
                return obj.v

        class First:
            scale = 2.0

        class Second:
            scale = 20.0

        class Own(First):
            read = Reads()

            def factor(self):
                return super().scale

        own = Own()
        own.v = 1.0
        return Case(fn=lambda x: x * own.factor() + own.read, cls=Own, second=Second, reads=Reads)

    def bases(case):
        case.cls.__bases__ = (case.second,)

    def getter(case):
        case.reads.__get__ = lambda self, obj, owner: obj.v * 10

    same(make, (X,), (X,), (X,), bases, (X,), getter, (X,), (X,))


def test_a_module_class_becomes_callable():
    def make():
        class Own(torch.nn.Module):
            def forward(self, x):
                return x + 1

        return torch.nn.Sequential(Own(), Own())

    def gains(net):
        type(net[0]).__call__ = lambda self, x: x + 1000

    def loses(net):
        del type(net[0]).__call__

    same(make, (X,), (X,), (X,), gains, (X,), loses, (X,))


def _kinds():
    """Classes whose metaclass decides what belongs to them, and one that is asked for."""

    class Meta(type):
        answer = True

        def __instancecheck__(cls, obj):
            return Meta.answer

        def __subclasscheck__(cls, other):
            return Meta.answer

    class Asked(metaclass=Meta):
        pass

    class Base:
        size = 2.0

    class Other:
        size = 3.0

    class Own(Base):
        pass

    return types.SimpleNamespace(
        meta=Meta, asked=Asked, base=Base, other=Other, own=Own, it=Own(), one=1
    )


def _by_metaclass(x, k):
    return x + isinstance(k.it, k.asked) + issubclass(k.own, k.asked) * 10


def _by_bases(x, k):
    return x + isinstance(k.it, k.other | int) + issubclass(k.own, k.other) * 10


def _by_match(x, k):
    match k.it:
        case k.other(size=size):
            return x * size
    return x


@pytest.mark.parametrize("asks", [_by_metaclass, _by_bases, _by_match])
def test_what_belongs_to_a_class_changes(asks):
    def make():
        kinds = _kinds()
        return Case(fn=lambda x: asks(x, kinds), **vars(kinds))

    def bases(case):
        case.own.__bases__ = (case.other,)

    def no_more(case):
        case.meta.answer = False

    def other_method(case):
        case.meta.__instancecheck__ = case.meta.__subclasscheck__ = lambda cls, obj: True
        case.other.size = 7.0

    steps = (step for change in (bases, no_more, other_method) for step in (change, (X,)))
    same(make, (X,), (X,), (X,), *steps)


def test_a_property_comes_before_what_an_instance_holds():
    def make():
        class Holds(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.layer = torch.nn.ReLU()

            def forward(self, x):
                return self.layer(x) * kinds.it.scale

        kinds, net = _kinds(), Holds()
        kinds.it.scale = 2.0
        return Case(fn=lambda x: net(x), cls=kinds.base, net=Holds)

    def scale(case):
        case.cls.scale = property(lambda self: 9.0)

    def layer(case):
        case.net.layer = property(lambda self: torch.sin)

    def restore(case):
        del case.net.layer

    same(make, (X,), (X,), (X,), scale, (X,), layer, (X,), restore, (X,))


class _Runs(typing.Protocol):
    def run(self): ...


_ASKED = {
    "run": (lambda own, made: isinstance(own, typing.runtime_checkable(_Runs)), lambda self: 1),
    "__iter__": (lambda own, made: 5 in own, lambda self: iter((5,))),
    "__post_init__": (lambda own, made: made(3.0).right, lambda self: setattr(self, "right", 50.0)),
    "right": (lambda own, made: made(3.0).right, property(lambda s: 7.0, lambda s, v: None)),
}


@pytest.mark.parametrize("name", _ASKED)
def test_what_a_class_gains(name):
    asked, value = _ASKED[name]

    def make():
        @dataclasses.dataclass
        class Own:
            left: float

            def __post_init__(self):
                self.right = self.left * 2

            def __iter__(self):
                return iter((1, 2))

        own = Own(1.0)
        return Case(fn=lambda x: x + asked(own, Own), cls=Own)

    def gains(case):
        setattr(case.cls, name, value)

    same(make, (X,), (X,), (X,), gains, (X,), (X,))


def test_an_object_becomes_callable():
    def make():
        class Own:
            pass

        own = Own()
        return Case(fn=lambda x: x + 1 if callable(own) else x - 1, cls=Own)

    def gains(case):
        case.cls.__call__ = lambda self: 1

    same(make, (X,), (X,), (X,), gains, (X,), (X,))


def test_inequality_and_text_of_an_object():
    class Setting:
        def __init__(self, value):
            self.value = value

        def __eq__(self, other):
            return self.value == other.value if isinstance(other, Setting) else NotImplemented

        def __repr__(self):
            return f"<{self.value}>"

    def program(a, b, x):
        return x * (2 if a != b else 3), b != a, repr(a) + str(b)

    pairs = ((1, 2), (1, 2), (2, 2), (2, 1))
    calls = (call(Setting(a), Setting(b), tensor(a, b)) for a, b in pairs)
    one_graph(same(lambda: program, *calls))


def test_truth_of_an_object():
    class Plain:
        def __init__(self, value):
            self.value = value

    class Kept:
        value = 2

    def program(x, plain, kept=None):
        made = Kept()
        first = plain and plain.value
        return x * first if not kept else x + (made or plain).value

    x, plain = tensor(1, 2), Plain(3)
    calls = (call(x, plain), call(x, Plain(4)), call(x, plain, Kept()), call(x, plain, None))
    fn = same(lambda: program, *calls)
    one_graph(fn)

    def falsy(program):
        Kept.__bool__ = lambda self: False

    try:
        same(lambda: program, call(x, plain, Kept()), call(x, plain), falsy, *calls)
    finally:
        del Kept.__bool__


KINDS: object = (int, float)
CAUGHT: object = (ValueError,)


def by_isinstance(x, value):
    return x * 2 if isinstance(value, KINDS) else x


def by_isinstance_nested(x, value):
    return x * 2 if isinstance(value, (bytes, KINDS)) else x


def by_except(x, value):
    try:
        return x * int(value)
    except CAUGHT:
        return x - 1
    except Exception:
        return x + 1


@pytest.mark.parametrize("run", [by_isinstance, by_isinstance_nested, by_except])
def test_a_tuple_of_classes_is_replaced(run):
    def to(kinds, caught):
        return lambda _: globals().update(KINDS=kinds, CAUGHT=caught)

    first, second = to((int, float), (ValueError,)), to((str,), (KeyError,))
    steps = [first, (X, "s"), second, (X, "s"), first, (X, "s"), second, (X, 1), (X, "s"), first]
    same(lambda: run, *steps)


def test_what_making_a_class_runs_is_done_at_every_call():
    def make():
        registry = []

        class Base:
            def __init_subclass__(cls, **kwargs):
                registry.append(cls.__name__)

        class Meta(type):
            def __new__(mcs, name, bases, table):
                registry.append(f"meta {name}")
                return super().__new__(mcs, name, bases, table)

        def fn(x):
            class Made(Base):
                pass

            class Other(metaclass=Meta):
                pass

            return x * len(registry)

        return Case(fn=fn, watch=lambda: list(registry))

    same(make, *[(X,)] * 4)


def test_members_that_a_class_gains():
    def make():
        class Holder:
            a = 1

        held = Holder()

        def fn(x):
            return x * len([name for name, _ in inspect.getmembers(held) if name[0] != "_"])

        return Case(fn=fn, kind=Holder, held=held)

    steps = (lambda case: setattr(case.held, "b", 1)), (lambda case: setattr(case.kind, "c", 1))
    same(make, (X,), (X,), steps[0], (X,), (X,), steps[1], (X,), (X,))
