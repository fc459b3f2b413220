"""Native guards that have been sealed see every change that the Python engine sees, and no other."""

import collections
import contextlib
import random
import sys
import threading
import types

import pytest
import torch
from dynfix.runtime.guards import guard_native
from dynfix.runtime.guards.guard import (
    Arg,
    Attr,
    Cell,
    ClassAttr,
    Equals,
    Guard,
    GuardSet,
    HasKey,
    InstDict,
    Is,
    Item,
    Keys,
    Kwarg,
    Length,
    Missing,
    Obj,
    Tensor,
    TensorMeta,
    TypeIs,
)
from torch import nn


class Layer(nn.Module):
    kind = "plain"

    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(3, 3)
        self.scale = 2.5
        self.names = ["a", "b"]
        self.config = Config()

    def forward(self, x):
        return self.lin(x) * self.scale


class Config:
    level = 3

    def __init__(self):
        self.hidden, self.table = 16, {"k": 1.5}

    def __getattribute__(self, name):
        return object.__getattribute__(self, name)


class OtherConfig(Config):
    pass


class NewConfig(Config):
    pass


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(Layer() for _ in range(3))
        self.seq = nn.Sequential(nn.Linear(2, 2), nn.ReLU())


def closed_over(variable):
    def function(a, b=1, *, c=2):
        return variable

    return function


class World:
    """A model, a function and a namespace, and guards on all of it."""

    def __init__(self):
        self.model, self.function = Model(), closed_over("held")
        self.space = types.ModuleType("space")
        self.space.flag, self.space.mode = True, "fast"
        self.args = (self.model, torch.zeros(2, 3))
        self.kwargs = {"cfg": Config()}
        self.guards = GuardSet([*self._modules(), *self._others()], self._inputs(), 2, ("cfg",))
        self.plan = self.guards.plan

    def _modules(self):
        for name, module in self.model.named_modules():
            path = self._path(name)
            yield Guard(path, TypeIs(type(module)))
            yield Guard(path, Missing("forward"))
            yield Guard(path, ClassAttr("forward", type(module).forward))
            yield Guard(Item(InstDict(path), "training"), Equals(True))
            yield Guard(Item(InstDict(path), "_forward_hooks"), Length(0))
            for key, value in module._parameters.items():
                yield Guard(
                    Item(Item(InstDict(path), "_parameters"), key), Tensor(TensorMeta.of(value))
                )
            if isinstance(module, Layer):
                yield Guard(Attr(path, "scale"), Equals(2.5))
                yield Guard(Attr(path, "kind"), Equals("plain"))
                yield Guard(Attr(path, "names"), Length(2))
                yield Guard(Item(Attr(path, "names"), 1), Equals("b"))
                yield Guard(Attr(Attr(path, "lin"), "weight"), TypeIs(nn.Parameter))

    def _path(self, name):
        path = Arg(0)
        for part in name.split(".") if name else ():
            path = Item(Item(InstDict(path), "_modules"), part)
        return path

    def _others(self):
        space, function = Obj(self.space, "space"), Obj(self.function, "function")
        config = Item(InstDict(self._path("layers.0")), "config")
        return [
            Guard(Arg(1), Tensor(TensorMeta.of(self.args[1]))),
            Guard(Item(Attr(Arg(0), "layers"), 2), TypeIs(Layer)),
            Guard(Item(Attr(Arg(0), "seq"), 0), TypeIs(nn.Linear)),
            Guard(Attr(space, "flag"), Equals(True)),
            Guard(space, Missing("len")),
            Guard(Item(Obj(self.space.__dict__, "globals"), "mode"), Equals("fast")),
            Guard(Attr(function, "__code__"), Is(self.function.__code__)),
            Guard(Attr(function, "__defaults__"), Is(self.function.__defaults__)),
            Guard(Attr(function, "__kwdefaults__"), Is(self.function.__kwdefaults__)),
            Guard(Cell(function, 0), Equals("held")),
            Guard(config, TypeIs(Config)),
            Guard(config, Missing("extra")),
            Guard(InstDict(config), Keys(("hidden", "table"))),
            Guard(Item(Item(InstDict(config), "table"), "k"), Equals(1.5)),
            Guard(Item(InstDict(config), "table"), HasKey("none", False)),
            Guard(Item(InstDict(config), "table"), HasKey("k", True)),
            Guard(Obj(Config, "Config"), Missing("extra")),
            Guard(Attr(Obj(OtherConfig, "OtherConfig"), "__mro__"), Is(OtherConfig.__mro__)),
            Guard(Attr(Obj(Layer, "Layer"), "forward"), Is(Layer.forward)),
            Guard(Attr(Kwarg("cfg"), "hidden"), Equals(16)),
        ]

    def _inputs(self):
        return [Arg(1), *(Attr(Attr(self._path(f"layers.{i}"), "lin"), "weight") for i in range(3))]

    def both(self):
        """What the native engine and the Python engine say, as which objects they give."""
        answers = self.guards.match(self.args, self.kwargs), self.plan.match(self.args, self.kwargs)
        return [None if found is None else [id(each) for each in found] for found in answers]


def class_attribute(cls, name, value):
    before = cls.__dict__.get(name, World)

    def back():
        delattr(cls, name) if before is World else setattr(cls, name, before)

    setattr(cls, name, value)
    return back


def put(obj, name, value):
    """Store an attribute; gives what puts it back."""
    before = vars(obj).get(name, World)
    setattr(obj, name, value)
    return lambda: delattr(obj, name) if before is World else setattr(obj, name, before)


def in_dict(table, key, value):
    before = table.get(key, World)
    table[key] = value
    return lambda: table.pop(key) if before is World else table.update({key: before})


def removed(table, key):
    before = dict(table)

    def back():
        table.clear()
        table.update(before)

    del table[key]
    return back


def other_dict(obj, **changes):
    before = obj.__dict__
    obj.__dict__ = {**before, **changes}
    return lambda: setattr(obj, "__dict__", before)


def other_bases(cls, *bases):
    before, cls.__bases__ = cls.__bases__, bases
    return lambda: setattr(cls, "__bases__", before)


def other_class(obj, cls):
    before = type(obj)
    obj.__class__ = cls
    return lambda: setattr(obj, "__class__", before)


def hooked(module):
    return module.register_forward_hook(lambda *_: None).remove


def trained(model):
    model.eval()
    return model.train


def resized(parameter):
    before = parameter.data
    parameter.data = torch.zeros(5, 3)
    return lambda: setattr(parameter, "data", before)


def frozen(parameter):
    parameter.requires_grad_(False)
    return lambda: parameter.requires_grad_(True)


def in_list(values, change):
    before = list(values)
    change(values)
    return lambda: values.__setitem__(slice(None), before)


def function_part(function, name, value):
    before = getattr(function, name)
    setattr(function, name, value)
    return lambda: setattr(function, name, before)


def in_cell(function, value):
    cell = function.__closure__[0]
    before, cell.cell_contents = cell.cell_contents, value
    return lambda: setattr(cell, "cell_contents", before)


def reordered(table, key):
    before = dict(table)
    table[key] = table.pop(key)

    def back():
        table.clear()
        table.update(before)

    return back


class Loud(nn.Linear):
    pass


CHANGES = {
    "attribute": lambda w: put(w.model.layers[1], "scale", 3.5),
    "equal number": lambda w: put(w.model.layers[1], "scale", float("2.5")),
    "other type": lambda w: put(w.model.layers[1], "scale", 2),
    "new attribute": lambda w: put(w.model.layers[1], "unrelated", 1),
    "forward of an instance": lambda w: put(w.model.layers[2].lin, "forward", len),
    "shadowed in __dict__": lambda w: in_dict(vars(w.model.layers[0]), "kind", "own"),
    "deleted": lambda w: removed(vars(w.model.layers[0]), "scale"),
    "class attribute": lambda w: class_attribute(Layer, "kind", "other"),
    "forward of a class": lambda w: class_attribute(nn.Linear, "forward", len),
    "unrelated class attribute": lambda w: class_attribute(Layer, "unrelated", 1),
    "name of a class": lambda w: class_attribute(Config, "extra", 1),
    "parameter": lambda w: in_dict(
        w.model.layers[0].lin._parameters, "weight", nn.Parameter(torch.zeros(3, 3))
    ),
    "no parameter": lambda w: in_dict(w.model.layers[0].lin._parameters, "weight", None),
    "removed parameter": lambda w: removed(w.model.layers[0].lin._parameters, "bias"),
    "resized": lambda w: resized(w.model.layers[1].lin.weight),
    "requires_grad": lambda w: frozen(w.model.layers[1].lin.weight),
    "shadowed parameter": lambda w: in_dict(vars(w.model.layers[0].lin), "weight", torch.ones(1)),
    "hook": lambda w: hooked(w.model.layers[2]),
    "eval": lambda w: trained(w.model),
    "eval of one": lambda w: trained(w.model.layers[1].lin),
    "another __dict__": lambda w: other_dict(w.model.layers[0], scale=9.0),
    "a copy of __dict__": lambda w: other_dict(w.model.layers[0]),
    "__class__": lambda w: other_class(w.model.layers[0].lin, Loud),
    "__class__ of a hooked one": lambda w: other_class(w.model.layers[0].config, OtherConfig),
    "another layer": lambda w: in_dict(w.model.layers._modules, "2", Layer()),
    "one layer less": lambda w: removed(w.model.layers._modules, "2"),
    "another of seq": lambda w: in_dict(w.model.seq._modules, "0", nn.ReLU()),
    "order of seq": lambda w: reordered(w.model.seq._modules, "0"),
    "list item": lambda w: in_list(w.model.layers[0].names, lambda n: n.__setitem__(1, "c")),
    "longer list": lambda w: in_list(w.model.layers[0].names, lambda n: n.append("c")),
    "keys": lambda w: in_dict(vars(w.model.layers[0].config), "more", 1),
    "order of keys": lambda w: reordered(vars(w.model.layers[0].config), "hidden"),
    "dict item": lambda w: in_dict(w.model.layers[0].config.table, "k", 2.5),
    "a key that was lacking": lambda w: in_dict(w.model.layers[0].config.table, "none", 1),
    "a key that was there": lambda w: removed(w.model.layers[0].config.table, "k"),
    "bases": lambda w: other_bases(OtherConfig, NewConfig),
    "odd key": lambda w: in_dict(w.model.layers[0].config.table, 7, 2.5),
    "code": lambda w: function_part(w.function, "__code__", closed_over(0).__code__.replace()),
    "defaults": lambda w: function_part(w.function, "__defaults__", (2,)),
    "kwdefaults": lambda w: function_part(w.function, "__kwdefaults__", None),
    "cell": lambda w: in_cell(w.function, "other"),
    "global": lambda w: put(w.space, "mode", "slow"),
    "namespace": lambda w: put(w.space, "flag", False),
    "shadowed builtin": lambda w: put(w.space, "len", len),
    "keyword argument": lambda w: in_dict(vars(w.kwargs["cfg"]), "hidden", 17),
    "another keyword argument": lambda w: in_dict(w.kwargs, "cfg", Config()),
    "odd dict": lambda w: other_dict(w.model.layers[0].config, **collections.OrderedDict(more=1)),
}


@pytest.fixture(params=["versions", "no versions"])
def world(request):
    native = guard_native.wait()
    if native is None:
        pytest.skip("no native engine here")
    native.use_versions(request.param == "versions")
    yield World()
    native.use_versions(True)
    native.use_versions(guard_native._counts_stores(native))


def sealed(world):
    for _ in range(100):
        first, second = world.both()
        assert first == second != None  # noqa: E711
    assert world.guards.match.__self__.live() is not None


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_is_seen_and_its_end_too(world, name):
    sealed(world)
    for _ in range(3):
        back = CHANGES[name](world)
        try:
            for _ in range(2):
                first, second = world.both()
                assert first == second
        finally:
            back()
        for _ in range(40):
            first, second = world.both()
            assert first == second


def test_most_steps_are_sealed(world):
    sealed(world)
    assert len(world.guards.match.__self__.live()) <= 3 < len(world.plan.steps) // 10


def test_random_changes(world):
    sealed(world)
    draw, undo = random.Random(0), []
    for turn in range(1500):
        if undo and draw.random() < 0.6:
            undo.pop()()
        elif len(undo) < 4:
            name = draw.choice(list(CHANGES))
            with contextlib.suppress(LookupError, AttributeError):  # it is gone already
                undo.append(CHANGES[name](world))
        first, second = world.both()
        assert first == second, (turn, name)
    while undo:
        undo.pop()()
    first, second = world.both()
    assert first == second


def test_a_number_at_the_address_of_another(world):
    layer = world.model.layers[1]
    for turn in range(400):
        layer.scale = 2.5 + 0.0 * turn  # a new object each time, often where the last one was
        first, second = world.both()
        assert first == second
        layer.scale = 2.5 + turn + 1
        first, second = world.both()
        assert first is None and second is None


def test_what_changes_always_is_read_always(world):
    sealed(world)
    layer = world.model.layers[1]
    for _ in range(300):
        layer.names = ["a", "b"]
        assert world.guards.match(world.args, world.kwargs) is not None
    live = world.guards.match.__self__.live()
    assert any(world.plan.steps[step].path.source.endswith("names") for step in live)
    layer.names = ["a", "c"]
    assert world.both() == [None, None]


def test_other_objects_at_each_call(world):
    sealed(world)
    model = world.model
    for turn in range(200):
        world.args = (model if turn % 3 else Model(), torch.zeros(2, 3))
        world.kwargs = {"cfg": Config()}
        first, second = world.both()
        assert first == second


def test_nothing_of_a_call_is_kept_alive(world):
    sealed(world)
    scale = object()
    world.model.layers[0].unrelated = scale
    for _ in range(100):
        world.both()
    del world.model.layers[0].unrelated
    assert sys.getrefcount(scale) == 2
    weights = [layer.lin.weight for layer in world.model.layers]
    before = [sys.getrefcount(each) for each in weights]
    for _ in range(500):
        world.guards.match(world.args, world.kwargs)
    assert [sys.getrefcount(each) for each in weights] == before


def test_threads_see_their_own_changes(world):
    """Each thread changes what it alone changes; matches in between must never be wrong for it."""
    sealed(world)
    wrong, layers = [], world.model.layers
    others = threading.Barrier(3)

    def work(number):
        layer, x = layers[number], torch.zeros(2, 3)
        others.wait()
        for turn in range(300):
            layer.scale = 3.0 + turn
            if world.guards.match((world.model, x), world.kwargs) is not None:
                wrong.append((number, turn))
            layer.scale = 2.5
            world.guards.match((world.model, x), world.kwargs)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert world.both()[0] is not None


def test_no_code_of_the_users_runs(engine):
    reads = []

    class Watched:
        def __init__(self):
            self.a = 1

        def __getattribute__(self, name):
            reads.append(name)
            return object.__getattribute__(self, name)

    watched = Watched()
    reads.clear()
    path = Obj(watched, "watched")
    guards = [Guard(Item(InstDict(path), "a"), Equals(1)), Guard(path, Missing("b"))]
    made = engine(guards, [Item(InstDict(path), "a")])
    assert all(made.match((), {}) == [1] for _ in range(3))
    assert not reads
    watched.b = 2
    assert not made.holds()
