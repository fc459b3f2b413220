"""Every kind of access path: what it reads, how it is written, when it cannot be read."""

import collections
import copy
import gc
import types

import pytest
import torch
from dynfix.runtime.guards.guard import (
    Arg,
    Attr,
    Cell,
    DictKey,
    Guard,
    InstDict,
    Is,
    Item,
    Kwarg,
    Obj,
    Path,
    TypeOf,
)


class Plain:
    pass


class Slotted:
    __slots__ = ("x",)


def counted(start):
    count = start

    def step():
        return count

    def rebind(value):
        nonlocal count
        count = value

    return step, rebind


def fetch(engine, path, *args, **kwargs):
    """What the engine fetches for `path`, as a one-element list, or None."""
    return engine([], [path], len(args), tuple(kwargs)).match(args, kwargs)


def root(value):
    return Obj(value, "root")


def test_arguments(engine):
    assert fetch(engine, Arg(1), 10, 20) == [20]
    assert fetch(engine, Kwarg("b"), 10, a=1, b=2) == [2]


def test_argument_that_is_not_there_is_refused(engine):
    with pytest.raises(IndexError, match="positional"):
        engine([], [Arg(2)], 2)
    with pytest.raises(IndexError, match="keyword"):
        engine([], [Kwarg("c")], 0, ("a",))


def test_another_number_or_order_of_arguments_does_not_match(engine):
    guards = engine([], [Arg(0)], 1, ("a", "b"))
    assert guards.holds(1, a=1, b=2)
    assert "positional" in guards.why(1, 2, a=1, b=2)
    assert "keyword" in guards.why(1, a=1)
    assert "keyword" in guards.why(1, b=2, a=1)
    assert "keyword" in guards.why(1, a=1, c=2)
    assert guards.holds(1, **{"".join(["a"]): 1, "b": 2})


def test_object_attribute_and_dict(engine):
    owner = Plain()
    owner.x = marker = object()
    assert fetch(engine, root(owner)) == [owner]
    assert fetch(engine, Attr(root(owner), "x"))[0] is marker
    assert fetch(engine, InstDict(root(owner)))[0] is owner.__dict__
    assert fetch(engine, Attr(root(owner), "y")) is None
    assert fetch(engine, InstDict(root(Slotted()))) is None
    assert fetch(engine, InstDict(root(torch)))[0] is torch.__dict__


def test_attribute_through_property_slot_and_getattr(engine):
    class Odd:
        __slots__ = ("slot",)
        at_class = 5

        @property
        def twice(self):
            return 2 * self.slot

        def __getattr__(self, name):
            if name == "made":
                return 7
            raise AttributeError(name)

    odd = Odd()
    odd.slot = 4
    for name, expected in (("slot", 4), ("twice", 8), ("made", 7), ("at_class", 5)):
        assert fetch(engine, Attr(root(odd), name)) == [expected]
    assert fetch(engine, Attr(root(odd), "other")) is None


def test_a_property_that_raises_anything_is_a_miss(engine):
    class Bad:
        @property
        def x(self):
            raise RuntimeError("no")

    guards = engine([Guard(Attr(root(Bad()), "x"), Is(1), "m.py:3")])
    assert "root.x (m.py:3) cannot be read: RuntimeError: no" in guards.why()


def test_keyboard_interrupt_passes(engine):
    class Bad:
        @property
        def x(self):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetch(engine, Attr(root(Bad()), "x"))


class Net(torch.nn.Module):
    by_class = 3

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(2, 2, bias=False)
        self.scale = 2.0
        self.register_buffer("seen", torch.zeros(1))
        self.register_parameter("absent", None)


@pytest.mark.parametrize(
    "name", ["layer", "scale", "seen", "absent", "by_class", "training", "forward", "nothing"]
)
def test_module_attributes_as_getattr_finds_them(engine, name):
    net = Net()
    found = fetch(engine, Attr(root(net), name))
    assert found == ([getattr(net, name)] if hasattr(net, name) else None)


def test_module_attribute_shadowing(engine):
    """The instance dict comes before the registered ones, data descriptors of the class before
    both."""
    net = Net()
    net.__dict__["layer"] = "shadow"
    assert fetch(engine, Attr(root(net), "layer")) == ["shadow"]

    class Guarded(Net):
        seen = property(lambda self: "class")

    assert fetch(engine, Attr(root(Guarded.__new__(Guarded)), "seen")) == ["class"]
    assert fetch(engine, Attr(root(Net.__new__(Net)), "layer")) is None  # no __init__, no tables


def test_module_with_its_own_getattr(engine):
    class Delegating(Net):
        def __getattr__(self, name):
            return "delegated" if name == "layer" else super().__getattr__(name)

    class Intercepting(Net):
        def __getattribute__(self, name):
            return "intercepted" if name == "layer" else super().__getattribute__(name)

    assert fetch(engine, Attr(root(Delegating()), "layer")) == ["delegated"]
    assert fetch(engine, Attr(root(Intercepting()), "layer")) == ["intercepted"]


def test_items(engine):
    table, row = {"a": 1, 2: "two", None: 3}, [10, 20, 30]
    for base, key in (
        (table, "a"),
        (table, 2),
        (table, None),
        (row, 0),
        (row, -1),
        ((5, 6), 1),
        ((5, 6), -2),
    ):
        assert fetch(engine, Item(root(base), key)) == [base[key]]
    for base, key in ((table, "b"), (row, 3), (row, -4), ((), 0), (5, 0)):
        assert fetch(engine, Item(root(base), key)) is None
    assert fetch(engine, Item(root(collections.defaultdict(list, a=1)), "a")) == [1]
    assert fetch(engine, Item(root(types.MappingProxyType(table)), "a")) == [1]
    assert fetch(engine, Item(root(row), 10**30)) is None
    assert fetch(engine, Item(root(row), slice(1, 3))) == [[20, 30]]
    assert fetch(engine, Item(root(row), True)) == [20]


def test_items_of_module_containers(engine):
    a, b, c = (torch.nn.Linear(1, 1) for _ in range(3))
    listed, sequential = (
        torch.nn.ModuleList([a, b]),
        torch.nn.Sequential(collections.OrderedDict(x=a, y=b)),
    )
    for container in (listed, sequential):
        for index in (0, 1, -1):
            assert fetch(engine, Item(root(container), index))[0] is container[index]
        assert fetch(engine, Item(root(container), 2)) is None
        container[1] = c
        assert fetch(engine, Item(root(container), 1))[0] is c

    class Reversed(torch.nn.ModuleList):
        def __getitem__(self, index):
            return super().__getitem__(len(self) - 1 - index)

    class Short(torch.nn.Sequential):
        def __len__(self):
            return 1

    assert fetch(engine, Item(root(Reversed([a, b])), 0))[0] is b
    assert fetch(engine, Item(root(Short(a, b)), 1)) is None
    assert fetch(engine, Item(root(torch.nn.ModuleDict({"k": a})), "k"))[0] is a


def test_keys_that_are_objects(engine):
    key = object()
    table = {"a": 1, key: 2}
    assert fetch(engine, DictKey(root(table), 1))[0] is key
    assert fetch(engine, DictKey(root(collections.OrderedDict(table)), 0)) == ["a"]
    assert fetch(engine, DictKey(root({}), 0)) is None


def test_missing_dict_key_is_a_miss(engine):
    assert fetch(engine, DictKey(root({1: 2}), 1)) is None


def test_cells(engine):
    step, rebind = counted(5)
    path = Cell(root(step), 0)
    assert fetch(engine, path) == [5]
    assert path.source == "count"
    rebind(6)
    assert fetch(engine, path) == [6]
    assert fetch(engine, Cell(root(step), 1)) is None
    assert fetch(engine, Cell(root(len), 0)) is None


def test_empty_cell_is_a_miss(engine):
    def outer():
        def inner():
            return late

        yield inner
        late = 1
        yield inner

    steps = outer()
    path = Cell(root(next(steps)), 0)
    assert fetch(engine, path) is None
    next(steps)
    assert fetch(engine, path) == [1]


def test_types(engine):
    assert fetch(engine, TypeOf(root(3))) == [int]
    net = Net()
    assert fetch(engine, TypeOf(root(net))) == [Net]


def test_sources_read_like_python():
    net = Net()
    path = Attr(Item(Attr(Obj(net, "self"), "layers"), 3), "weight")
    assert path.source == "self.layers[3].weight"
    assert Item(Kwarg("options"), "a").source == "options['a']"
    assert Item(Obj(globals(), "globals"), "Net").source == "Net"
    assert TypeOf(Arg(0)).source == "type(args[0])"


def test_paths_are_interned_by_exact_key():
    base = Obj({}, "d")
    assert Item(base, 1) is Item(base, 1)
    different = [1, True, 1.0, "1", (1,), (True,), 0.0, -0.0, None]
    assert len({Item(base, key) for key in different}) == len(different)
    assert Item(base, "x") is not Attr(base, "x")
    assert Obj(base, "a") is not Obj(base, "b")
    nan = float("nan")
    assert Item(base, nan) is Item(base, float("nan"))


def test_an_interned_path_is_not_confused_after_its_object_died():
    def made():
        return Obj(Plain(), "x")

    first = id(made().arg)
    gc.collect()
    for _ in range(100):
        other = Plain()
        assert Obj(other, "x").arg is other
        if id(other) == first:
            break


def test_paths_are_frozen_and_shared_by_copies():
    path = Attr(Arg(0), "x")
    with pytest.raises(AttributeError):
        path.arg = "y"
    assert copy.deepcopy(path) is path
    assert isinstance(path, Path)
    assert path.value((types.SimpleNamespace(x=1),)) == 1
