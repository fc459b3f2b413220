"""What changes between two calls of a model that has been called often: its guards are sealed, and
its effects are printed. Each change is made to an eager twin, too."""

import collections
import copy
import dataclasses
import threading
import types

import dynfix
import pytest
import torch
from dynfix.runtime.guards import guard_native
from torch import nn

OFTEN = 40
GAIN = 1.0


def helper(x, by=2.0, *, more=0.5):
    return x * GAIN * by + more


def other_helper(x, by=2.0, *, more=0.5):
    return x - by


class Config:
    level = 1.0

    def __init__(self):
        self.scale, self.names, self.table = 2.0, ["up", "down"], {"k": 1.0}

    def __getattribute__(self, name):
        return object.__getattribute__(self, name)


@dataclasses.dataclass
class Result(collections.OrderedDict):
    out: torch.Tensor = None
    total: float = 0.0

    def __post_init__(self):
        self["out"] = self.out


class Block(nn.Module):
    bias = 0.25

    def __init__(self):
        super().__init__()
        self.lin, self.norm = nn.Linear(4, 4), nn.LayerNorm(4)
        self.config, self.calls = Config(), 0

    @property
    def gain(self):
        return self.config.level + 1

    def act(self, x):
        return torch.relu(x)

    def forward(self, x):
        self.last = "ran"
        if self.training:
            x = x * 3
        for name in self.config.names:
            x = x + 1 if name == "up" else x - 2
        y = self.act(self.norm(self.lin(x))) * self.config.scale + self.bias
        return helper(y) * self.gain + self.config.table["k"]


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.tail = nn.Sequential(nn.Linear(4, 4), nn.Tanh())

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        out = self.tail(x)
        return Result(out=out, total=self.blocks[0].config.scale)


def other_forward(self, x):
    return x * 7


class Loud(Block):
    def act(self, x):
        return x.abs() + 5


class Proxy(nn.Linear):
    def forward(self, x):
        return super().forward(x) - 1


def toggled(model, turn):
    """Hooks, there at even turns."""
    if turn % 2:
        model.handle.remove()
    else:
        model.handle = model.blocks[1].register_forward_hook(lambda m, args, out: out * 10)


def pre_hook(model, turn):
    hook = model.blocks[0].register_forward_pre_hook(lambda m, args: (args[0] + turn,))
    model.blocks[0].handle = hook


def resized(model, turn):
    width = 4 + turn % 2
    model.blocks[0].lin.weight.data = torch.ones(4, 4)
    first, second = nn.Linear(4, width), nn.Linear(width, 4)
    with torch.no_grad():
        for parameter in (*first.parameters(), *second.parameters()):
            parameter.fill_(0.5)
    model.tail = nn.Sequential(first, second)


def other_parameter(model, turn):
    model.blocks[1].lin.weight = nn.Parameter(torch.full((4, 4), 0.1 + turn))


def in_place(model, turn):
    with torch.no_grad():
        model.blocks[0].lin.weight.add_(turn)
        model.blocks[0].norm.bias.copy_(torch.full((4,), float(turn)))


def own_dict(model, turn):
    block = model.blocks[0]
    block.__dict__ = {**block.__dict__, "bias": 0.5 + turn}


def own_forward(model, turn):
    block = model.blocks[0]
    if turn % 2:
        block.__dict__.pop("forward", None)
    else:
        block.forward = types.MethodType(other_forward, block)


CHANGES = {
    "attribute": lambda m, t: setattr(m.blocks[0].config, "scale", 3.0 + t),
    "deleted": lambda m, t: m.blocks[0].__dict__.pop("last"),
    "shadows the class": lambda m, t: m.blocks[1].__dict__.update(bias=t + 0.5),
    "in __dict__": lambda m, t: m.blocks[0].config.__dict__.update(scale=t - 1.0),
    "another __dict__": own_dict,
    "list": lambda m, t: m.blocks[0].config.names.append("up" if t % 2 else "down"),
    "list item": lambda m, t: m.blocks[0].config.names.__setitem__(0, ("up", "down")[t % 2]),
    "dict": lambda m, t: m.blocks[1].config.table.update(k=t + 2.0),
    "parameter": other_parameter,
    "in place": in_place,
    "resized": resized,
    "requires_grad": lambda m, t: [p.requires_grad_(t % 2 == 1) for p in m.blocks.parameters()],
    "half of it": lambda m, t: m.double() if t % 2 == 0 else m.float(),
    "hook": toggled,
    "pre-hooks": pre_hook,
    "eval": lambda m, t: m.train(t % 2 == 1),
    "eval of a block": lambda m, t: m.blocks[1].train(t % 2 == 1),
    "class": lambda m, t: setattr(m.blocks[0], "__class__", Block if t % 2 else Loud),
    "class of a layer": lambda m, t: setattr(m.tail[0], "__class__", nn.Linear if t % 2 else Proxy),
    "forward": own_forward,
    "layer": lambda m, t: m.tail.__setitem__(1, nn.ReLU() if t % 2 else nn.Identity()),
    "layers": lambda m, t: m.blocks.append(m.blocks[0]),
    "order": lambda m, t: m.blocks._modules.update({"0": m.blocks[1], "1": m.blocks[0]}),
    "config": lambda m, t: setattr(m.blocks[0], "config", Config()),
}

SHARED = {
    "class attribute": lambda t: setattr(Block, "bias", 0.25 if t is None else t + 1.0),
    "class of a config": lambda t: setattr(Config, "level", 1.0 if t is None else t + 2.0),
    "method": lambda t: setattr(Block, "act", ACT if t is None else other_forward),
    "global": lambda t: globals().update(GAIN=1.0 if t is None else t + 2.0),
    "defaults": lambda t: setattr(helper, "__defaults__", (2.0 if t is None else t + 3.0,)),
    "keyword defaults": lambda t: helper.__kwdefaults__.update(more=0.5 if t is None else t),
    "code": lambda t: setattr(helper, "__code__", CODE if t is None else other_helper.__code__),
}
ACT, CODE = Block.act, helper.__code__


def seen(result, x):
    """What a caller sees of a result: values, types, history; and that gradients arrive."""
    out = result.out
    given = x.grad if x.requires_grad else None
    return (
        type(result),
        list(result),
        result["out"] is out,
        result.total,
        out.dtype,
        out.requires_grad,
        out.detach().clone(),
        None if given is None else given.clone(),
    )


def equal(a, b):
    return all(
        torch.equal(x, y) if isinstance(x, torch.Tensor) else x == y
        for x, y in zip(a, b, strict=True)
    )


def called(fn, model, seed):
    x = torch.full((2, 4), seed / 10).to(next(model.parameters()).dtype)
    x = (x + torch.arange(4)).requires_grad_(seed % 2 == 1)
    result = fn(x)
    if result.out.requires_grad:
        result.out.sum().backward()
    return seen(result, x), model.blocks[0].__dict__.get("last")


def pair():
    model, twin = Model(), Model()
    fn = dynfix.compile(model, backend="eager", recompile_limit=64)
    for seed in range(OFTEN):
        same(fn, model, twin, seed)
    guard_native.wait()
    for seed in range(OFTEN):
        same(fn, model, twin, seed)
    assert all(len(recording.segments) == 1 for recording in fn._dynfix_entry.recordings)
    return fn, model, twin


def same(fn, model, twin, seed):
    ours, eager = called(fn, model, seed), called(twin, twin, seed)
    assert equal(ours[0], eager[0]) and ours[1] == eager[1]


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_of_one_model(name):
    fn, model, twin = pair()
    for turn in range(4):
        CHANGES[name](model, turn)
        CHANGES[name](twin, turn)
        for seed in range(3):
            same(fn, model, twin, seed)


@pytest.mark.parametrize("name", SHARED)
def test_a_change_of_what_models_share(name):
    fn, model, twin = pair()
    try:
        for turn in (0, 1, None, 2):
            SHARED[name](turn)
            for seed in range(3):
                same(fn, model, twin, seed)
    finally:
        SHARED[name](None)


def test_changes_of_every_kind_in_turn():
    fn, model, twin = pair()
    kinds = [each for each in CHANGES if each not in ("layers", "pre-hooks", "list", "half of it")]
    for turn in range(2):
        for name in kinds:
            CHANGES[name](model, turn)
            CHANGES[name](twin, turn)
            same(fn, model, twin, turn)


def test_hooks_on_all_modules():
    fn, model, twin = pair()
    for _ in range(2):
        handle = nn.modules.module.register_module_forward_hook(lambda m, args, out: out)
        log = []
        other = nn.modules.module.register_module_forward_pre_hook(lambda m, args: log.append(m))
        try:
            called(fn, model, 0)
            compiled, log[:] = len(log), []
            called(twin, twin, 0)
            assert compiled == len(log) > 0
        finally:
            handle.remove()
            other.remove()
        same(fn, model, twin, 1)


def test_a_setter_that_raises_leaves_what_eager_leaves():
    class Store:
        def __init__(self):
            self.kept, self.fails = [], False

        def __setattr__(self, name, value):
            if name == "value" and self.fails:
                raise ValueError("no more")
            object.__setattr__(self, name, value)

    def make():
        store = Store()

        def program(x):
            store.before = "set"
            y = x * 2
            store.value = y
            store.after = "set"
            return y

        return store, program

    states = []
    for compile_it in (False, True):
        store, program = make()
        fn = dynfix.compile(program, backend="eager") if compile_it else program
        for _ in range(OFTEN):
            fn(torch.ones(2))
        store.fails, store.before, store.after = True, "clear", "clear"
        for _ in range(3):
            with pytest.raises(ValueError, match="no more"):
                fn(torch.zeros(2))
        states.append((store.before, store.after, store.value.tolist()))
        store.fails = False
        states[-1] += (fn(torch.full((2,), 3.0)).tolist(), store.after)
    assert states[0] == states[1]


def test_a_read_that_raises_at_every_point():
    class Loudly:
        """Raises at the `left`-th read from now."""

        left = None

        def __init__(self):
            self.a, self.b = 2.0, 3.0

        def __getattribute__(self, name):
            cls = type(self)
            if name in ("a", "b") and cls.left is not None:
                cls.left -= 1
                if cls.left < 0:
                    raise RuntimeError(f"read of {name}")
            return object.__getattribute__(self, name)

    def make(log):
        box = Loudly()

        def program(x):
            log.append("begin")
            y = x * box.a
            log.append("middle")
            return y + box.b + box.a

        return program

    def outcome(fn, log, left):
        log.clear()
        Loudly.left = left
        try:
            return fn(torch.ones(2)).tolist(), list(log)
        except RuntimeError as error:
            return str(error), list(log)
        finally:
            Loudly.left = None

    logs = [], []
    eager, compiled = make(logs[0]), dynfix.compile(make(logs[1]), backend="eager")
    for _ in range(OFTEN):
        compiled(torch.ones(2))
    for left in (0, 1, 2, 3, 0, 2):
        assert outcome(eager, logs[0], left) == outcome(compiled, logs[1], left)
        assert outcome(eager, logs[0], None) == outcome(compiled, logs[1], None)


def test_threads_that_change_what_they_alone_call():
    fn, *_ = pair()
    wrong, done, barrier = [], [], threading.Barrier(3)

    def work(number):
        mine = Model()
        twin = copy.deepcopy(mine)
        entry = dynfix.compile(mine, backend="eager", recompile_limit=64)
        barrier.wait()
        for turn in range(25):
            for each in (mine, twin):
                each.blocks[0].config.scale = float(turn % 3)
                each.train(turn % 2 == 1)
                if turn % 5 == number:
                    other_parameter(each, turn % 2)
            ours, eager = called(entry, mine, turn % 4), called(twin, twin, turn % 4)
            if not equal(ours[0], eager[0]):
                wrong.append((number, turn))
            fn(torch.ones(2, 4))
        done.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
    [thread.start() for thread in threads], [thread.join() for thread in threads]
    assert not wrong and len(done) == 3


def test_a_change_while_another_thread_calls():
    """A call sees the scale before or after a change, never a result of both."""
    fn, model, twin = pair()
    with torch.no_grad():
        x = torch.ones(2, 4)
        expected = []
        for scale in (2.0, 5.0):
            for block in twin.blocks:
                block.config.scale = scale
            expected.append(twin(x).out)
        shared = Config()
        for block in model.blocks:
            block.config = shared
        stop, wrong = threading.Event(), []

        def change():
            with torch.no_grad():
                while not stop.is_set():
                    shared.scale = 5.0
                    shared.scale = 2.0

        other = threading.Thread(target=change)
        other.start()
        try:
            for _ in range(300):
                out = fn(x).out
                wrong += [out] * (not any(torch.equal(out, each) for each in expected))
        finally:
            stop.set()
            other.join()
    assert all(is_mixed(twin, x, out) for out in wrong)


def is_mixed(twin, x, out):
    """Eager, too, reads the scale once for each block: one may see the old and one the new."""
    for scales in ((2.0, 5.0), (5.0, 2.0)):
        for block, scale in zip(twin.blocks, scales, strict=True):
            block.config.scale = scale
        with torch.no_grad():
            if torch.equal(twin(x).out, out):
                return True
    return False
