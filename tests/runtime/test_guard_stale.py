"""Attempts at a stale answer: every change that a program can make between two calls, against
guards like those that a recording makes."""

import contextlib
import types

import pytest
import torch
from dynfix.runtime.guards.guard import (
    Arg,
    Attr,
    Cell,
    ClassAttr,
    Equals,
    Guard,
    GuardState,
    InstDict,
    Is,
    Item,
    Keys,
    Length,
    Missing,
    Obj,
    Tensor,
    TensorMeta,
    TypeIs,
    TypeOf,
)
from torch import nn

GLOBAL_SCALE = 2.0
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.norm = nn.LayerNorm(4)
        self.eps = 1e-5
        self.options = {"mode": "fast"}
        self.factors = [1, 2]
        self.extra = None

    def forward(self, x):
        return self.linear(x)


def closed_over(value):
    variable = value

    def read():
        return variable

    def rebind(new):
        nonlocal variable
        variable = new

    return read, rebind


class World:
    """A module, an input, a closure, and guards over all that they hold."""

    def __init__(self, engine):
        self.net, self.x = nn.Sequential(Block(), Block()), torch.randn(2, 4)
        self.read, self.rebind = closed_over(3)
        self.globals = {"SCALE": 2.0, "__builtins__": {}}
        state = GuardState.now()
        guards, inputs = list(self.guards()), [Arg(0), *self.parameters]
        self.guarded = engine(
            guards, inputs, 1, (), distinct=range(len(inputs)), disjoint=[0], state=state
        )

    def guards(self):
        root = Obj(self.net, "self")
        self.parameters = []
        for index, block in enumerate(self.net):
            yield from self.of_block(Item(root, index), block)
        yield Guard(Arg(0), Tensor(TensorMeta.of(self.x)), "m.py:1")
        yield Guard(Item(Obj(self.globals, "globals"), "SCALE"), Equals(2.0), "m.py:2")
        yield Guard(Cell(Obj(self.read, "read"), 0), Equals(3), "m.py:3")

    def of_block(self, path, block):
        yield Guard(path, TypeIs(Block))
        yield from self.of_module(path, block)
        for name in ("linear", "norm"):
            child, sub = Attr(path, name), getattr(block, name)
            yield from self.of_module(child, sub)
            for parameter in ("weight", "bias"):
                self.parameters.append(Attr(child, parameter))
                yield Guard(
                    Attr(child, parameter), Tensor(TensorMeta.of(getattr(sub, parameter))), "m.py:5"
                )
        yield Guard(Attr(path, "eps"), Equals(1e-5), "m.py:6")
        yield Guard(Attr(path, "options"), Keys(("mode",)), "m.py:7")
        yield Guard(Item(Attr(path, "options"), "mode"), Equals("fast"), "m.py:8")
        yield Guard(Attr(path, "factors"), Length(2), "m.py:9")
        yield Guard(Item(Attr(path, "factors"), 1), Equals(2), "m.py:9")
        yield Guard(Attr(path, "extra"), Is(None), "m.py:10")

    def of_module(self, path, module):
        yield Guard(path, Is(module), "m.py:4")
        yield Guard(path, Missing("forward"), "m.py:4")
        yield Guard(path, ClassAttr("forward", type(module).__dict__["forward"]), "m.py:4")
        yield Guard(path, ClassAttr("__call__", nn.Module.__dict__["__call__"]), "m.py:4")
        yield Guard(Attr(path, "training"), Equals(True), "m.py:4")
        for name in HOOKS:
            yield Guard(Item(InstDict(path), name), Length(0), "m.py:4")

    @property
    def block(self):
        return self.net[0]

    def holds(self, x=None):
        return self.guarded.holds(self.x if x is None else x)


@pytest.fixture
def world(engine):
    made = World(engine)
    assert made.holds()
    return made


def set_item(container, key, value):
    container[key] = value


def with_subclass(w):
    class Odd(nn.Parameter):
        pass

    w.block.linear.weight = Odd(w.block.linear.weight.detach())


CHANGES = {
    "half": lambda w: w.net.half(),
    "double": lambda w: w.net.double(),
    "to meta": lambda w: w.net.to("meta"),
    "data of another dtype": lambda w: setattr(
        w.block.linear.weight, "data", torch.zeros(4, 4, dtype=torch.float64)
    ),
    "data of another shape": lambda w: setattr(w.block.linear.weight, "data", torch.zeros(8, 4)),
    "data of other strides": lambda w: setattr(
        w.block.linear.weight, "data", torch.zeros(4, 4).t()
    ),
    "requires_grad_": lambda w: w.block.norm.weight.requires_grad_(False),
    "input resized in place": lambda w: w.x.resize_(1, 4),
    "input transposed in place": lambda w: w.x.set_(torch.zeros(4, 2).t()),
    "input unsqueezed in place": lambda w: w.x.unsqueeze_(0),
    "parameter set to other memory": lambda w: torch.no_grad()(w.block.linear.bias.set_)(
        torch.zeros(9)
    ),
    "parameter set to None": lambda w: setattr(w.block.linear, "bias", None),
    "parameter deleted": lambda w: delattr(w.block.linear, "bias"),
    "parameter of a subclass": with_subclass,
    "tied parameters": lambda w: setattr(w.net[1].linear, "weight", w.block.linear.weight),
    "submodule replaced by an equal one": lambda w: setattr(w.block, "linear", nn.Linear(4, 4)),
    "block replaced": lambda w: set_item(w.net, 0, Block()),
    "blocks swapped": lambda w: w.net._modules.update({"0": w.net[1], "1": w.net[0]}),
    "blocks swapped by order": lambda w: w.net._modules.update({"0": w.net._modules.pop("0")}),
    "eval": lambda w: w.net.eval(),
    "one module eval": lambda w: w.block.norm.eval(),
    "class of an object changed": lambda w: setattr(
        w.block, "__class__", type("Other", (Block,), {})
    ),
    "method on the instance": lambda w: setattr(w.block.linear, "forward", lambda x: x),
    "hook": lambda w: w.block.linear.register_forward_hook(lambda *a: None),
    "pre-hook": lambda w: w.block.register_forward_pre_hook(lambda *a: None),
    "backward hook": lambda w: w.net[1].norm.register_full_backward_hook(lambda *a: None),
    "number": lambda w: setattr(w.block, "eps", 1e-6),
    "number of another type": lambda w: w.block.factors.__setitem__(1, 2.0),
    "bool for int": lambda w: w.block.factors.__setitem__(1, True),
    "list grown": lambda w: w.block.factors.append(3),
    "list shrunk": lambda w: w.block.factors.pop(),
    "list replaced by a tuple": lambda w: setattr(w.block, "factors", (1, 3)),
    "dict key added": lambda w: w.block.options.update(more=1),
    "dict value changed": lambda w: w.block.options.update(mode="slow"),
    "dict key renamed": lambda w: set_item(w.block.options, "mood", w.block.options.pop("mode")),
    "None to tensor": lambda w: setattr(w.block, "extra", torch.zeros(1)),
    "attribute moved to a buffer": lambda w: (
        delattr(w.block, "extra") or w.block.register_buffer("extra", torch.ones(1))
    ),
    "attribute shadowing a parameter": lambda w: w.block.linear.__dict__.update(
        weight=torch.zeros(4, 4)
    ),
    "global rebound": lambda w: w.globals.update(SCALE=3.0),
    "global deleted": lambda w: w.globals.pop("SCALE"),
    "cell rebound": lambda w: w.rebind(4),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_is_noticed(world, change):
    CHANGES[change](world)
    assert not world.holds()
    assert not world.holds()  # and goes on being noticed


HARMLESS = {
    "values written in place": lambda w: w.block.linear.weight.data.add_(1),
    "data of the same kind": lambda w: setattr(w.block.linear.weight, "data", torch.ones(4, 4)),
    "a new parameter of the same kind": lambda w: setattr(
        w.block.linear, "weight", nn.Parameter(torch.ones(4, 4))
    ),
    "gradients": lambda w: w.net(torch.randn(1, 4)).sum().backward(),
    "an attribute nobody read": lambda w: setattr(w.block, "unread", 5),
    "a value set to an equal one": lambda w: setattr(w.block, "eps", float("1e-5")),
    "a list replaced by an equal one": lambda w: setattr(w.block, "factors", [9, 2]),
    "a hook that comes and goes": lambda w: w.block.register_forward_hook(lambda *a: None).remove(),
    "half and back": lambda w: w.net.half().float(),
}


@pytest.mark.parametrize("change", HARMLESS)
def test_a_change_that_matters_to_nobody_matches(world, change):
    HARMLESS[change](world)
    assert world.holds()


def test_a_replaced_parameter_is_the_one_that_is_fetched(world):
    new = nn.Parameter(torch.ones(4, 4))
    world.block.linear.weight = new
    assert world.guarded.match((world.x,), {})[1] is new


def test_change_and_return(world):
    world.block.eps = 2.0
    assert not world.holds()
    world.block.eps = 1e-5
    assert world.holds()


def test_method_replaced_on_the_class(world, monkeypatch):
    monkeypatch.setattr(nn.Linear, "forward", lambda self, x: x)
    assert not world.holds()
    monkeypatch.undo()
    assert world.holds()
    monkeypatch.setattr(nn.Module, "__call__", lambda self, x: x)
    assert not world.holds()


def test_module_getattr_replaced_for_all(world, monkeypatch):
    """The native reading of registered attributes must give way to another `__getattr__`."""
    original = nn.Module.__getattr__
    fake = nn.Linear(4, 4)
    monkeypatch.setattr(
        nn.Module, "__getattr__", lambda s, n: fake if n == "linear" else original(s, n)
    )
    assert not world.holds()


def test_subclass_overrides_lookup_later(engine):
    class Late(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("b", torch.zeros(2))

    net = Late()
    guards = engine(
        [Guard(Attr(Obj(net, "self"), "b"), Tensor(TensorMeta.of(net.b)))],
        [Attr(Obj(net, "self"), "b")],
    )
    assert guards.holds()
    Late.b = property(lambda self: torch.zeros(3))
    assert not guards.holds()
    del Late.b
    assert guards.holds()
    Late.__getattribute__ = lambda self, name: (
        torch.zeros(5) if name == "b" else object.__getattribute__(self, name)
    )
    assert not guards.holds()


@contextlib.contextmanager
def changed(read, write, value):
    before = read()
    write(value)
    try:
        yield
    finally:
        write(before)


STATES = {
    "no_grad": torch.no_grad,
    "inference mode": torch.inference_mode,
    "autocast": lambda: torch.autocast("cpu"),
    "autocast fp16": lambda: torch.autocast("cpu", dtype=torch.float16),
    "autocast of another device": lambda: (
        torch.autocast("cuda") if torch.cuda.is_available() else torch.autocast("cpu")
    ),
    "autocast dtype alone": lambda: changed(
        lambda: torch.get_autocast_dtype("cpu"),
        lambda v: torch.set_autocast_dtype("cpu", v),
        torch.float16,
    ),
    "autocast cache": lambda: changed(
        torch.is_autocast_cache_enabled, torch.set_autocast_cache_enabled, False
    ),
    "default dtype": lambda: changed(
        torch.get_default_dtype, torch.set_default_dtype, torch.float64
    ),
    "default device": lambda: torch.device("meta"),
    "deterministic": lambda: changed(
        torch.are_deterministic_algorithms_enabled,
        lambda on: torch._C._set_deterministic_algorithms(
            on, warn_only=False
        ),  # the public way imports all of Inductor
        True,
    ),
    "cudnn deterministic": lambda: changed(
        lambda: torch.backends.cudnn.deterministic,
        lambda v: setattr(torch.backends.cudnn, "deterministic", v),
        True,
    ),
    "fill of uninitialised memory": lambda: changed(
        lambda: torch.utils.deterministic.fill_uninitialized_memory,
        lambda v: setattr(torch.utils.deterministic, "fill_uninitialized_memory", v),
        False,
    ),
    "tf32": lambda: changed(
        torch.get_float32_matmul_precision, torch.set_float32_matmul_precision, "high"
    ),
    "torch functions off": torch._C.DisableTorchFunction,
    "subclass functions off": torch._C.DisableTorchFunctionSubclass,
    "function mode": lambda: type("Mode", (torch.overrides.TorchFunctionMode,), {})(),
    "dispatch mode": lambda: type("Mode", (torch.utils._python_dispatch.TorchDispatchMode,), {})(),
    "forward-mode AD": torch.autograd.forward_ad.dual_level,
}


@pytest.mark.parametrize("name", STATES)
def test_a_change_of_the_global_state_is_noticed(world, name):
    for _ in range(3):  # the third time answers from what the native engine remembered
        with STATES[name]():
            assert not world.holds()
        assert world.holds()


def test_threads_number_is_nobodys_matter(world):
    with changed(torch.get_num_threads, torch.set_num_threads, torch.get_num_threads() + 1):
        assert world.holds()


def test_function_transforms_are_noticed(engine):
    seen = []
    guards = engine([], [], 0)

    def inner(x):
        seen.append(guards.match((), {}))
        return x.sum()

    torch.func.grad(inner)(torch.ones(3))
    torch.func.vmap(inner)(torch.ones(3, 2))
    assert seen == [None, None]
    assert guards.match((), {}) == []


def test_a_batched_input_is_not_the_plain_one(engine):
    x = torch.zeros(3)
    guards = engine([Guard(Arg(0), Tensor(TensorMeta.of(x)))], [Arg(0)], 1)
    seen = []
    torch.func.vmap(lambda row: seen.append(guards.match((row,), {})) or row)(torch.zeros(2, 3))
    assert seen == [None] and guards.holds(x)


def test_guards_made_under_a_mode_want_that_mode(engine):
    class Mode(torch.overrides.TorchFunctionMode):
        pass

    mode = Mode()
    with mode:
        guards = engine([], [], 0)
        assert guards.holds()
    assert not guards.holds()
    with Mode():
        assert "torch function modes" in guards.why()
    with mode:
        assert guards.holds()
        with mode:
            assert not guards.holds()


def test_device_contexts_are_compared_by_device(engine):
    with torch.device("meta"):
        guards = engine([], [], 0)
    with torch.device("meta"):
        assert guards.holds()
    with torch.device("cpu"):
        assert not guards.holds()
    assert not guards.holds()


def test_state_taken_before_the_guards_were_made(engine):
    before = GuardState.now()
    with torch.no_grad():
        guards = engine([], [], 0, state=before)
        assert not guards.holds()
    assert guards.holds()


def test_global_of_this_module(engine):
    path = Item(Obj(globals(), "globals"), "GLOBAL_SCALE")
    guards = engine([Guard(path, Equals(2.0), "m.py:9")])
    assert guards.holds()
    globals()["GLOBAL_SCALE"] = 3.0
    try:
        assert guards.why() == "GLOBAL_SCALE (m.py:9) was 2.0, is 3.0"
    finally:
        globals()["GLOBAL_SCALE"] = 2.0
    assert guards.holds()


def test_nested_value_replaced_below_an_unchanged_dict(engine):
    """The dict that the path goes through never changes; what hangs below it does."""
    inner = types.SimpleNamespace(depth=[1, {"k": (1, 2.0)}])
    outer = types.SimpleNamespace(inner=inner)
    path = Item(Item(Attr(Attr(Obj(outer, "o"), "inner"), "depth"), 1), "k")
    guards = engine([Guard(path, Equals((1, 2.0)))], [path])
    assert guards.holds()
    inner.depth[1]["k"] = (1, 2)
    assert not guards.holds()
    inner.depth[1]["k"] = (1, float("2"))
    assert guards.holds()
    inner.depth[1] = {"k": (1, 3.0)}
    assert not guards.holds()


def test_type_of_an_argument(engine):
    guards = engine([Guard(TypeOf(Arg(0)), Is(int))], [], 1)
    assert guards.holds(1) and not guards.holds(True)
