"""Whatever changes between two calls is seen: attributes, classes, globals, cells, hooks, modes.
Never a stale answer."""

import collections
import gc
import types
import weakref

import dynfix
import torch
from helpers import Case, X, one_graph, same, tensor

F = torch.nn.functional


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.lin = torch.nn.Linear(3, 3)
        self.drop = torch.nn.Dropout(0.5)
        self.scale, self.names, self.table = 2.0, ["a"], {"k": 1.0}
        self.act, self.none = F.relu, None
        self.register_buffer("shift", torch.ones(3))

    def helper(self, x):
        return x * self.scale

    def forward(self, x):
        y = self.drop(self.act(self.lin(x)))
        if self.none is not None:
            y = y + self.none
        return self.helper(y) + len(self.names) + self.table["k"] + self.shift


def change(**attributes):
    def step(net):
        for name, value in attributes.items():
            setattr(net, name, value)

    return step


def test_module_attributes():
    fn = same(
        Net,
        (X,),
        (X,),
        change(scale=3.0),
        (X,),
        change(act=torch.tanh),
        (X,),
        change(none=5),
        (X,),
        change(none=tensor(1, 2, 3)),
        (X,),
        change(names=["a", "b"]),
        (X,),
        change(table={"k": 7.0}),
        (X,),
    )
    one_graph(fn)


def test_containers_grown():
    same(
        Net,
        (X,),
        lambda m: m.names.append("z"),
        (X,),
        lambda m: m.table.update(k=9.0),
        (X,),
        lambda m: m.names.clear(),
        (X,),
    )


def test_train_eval():
    same(
        Net,
        (X,),
        lambda m: m.eval(),
        (X,),
        lambda m: m.train(),
        (X,),
        lambda m: m.drop.eval(),
        (X,),
        lambda m: setattr(m.drop, "p", 0.9),
        lambda m: m.train(),
        (X,),
    )


def test_sequential_train_eval():
    def make():
        torch.manual_seed(0)
        return torch.nn.Sequential(
            torch.nn.Linear(3, 4), torch.nn.Dropout(0.5), torch.nn.BatchNorm1d(4), torch.nn.ReLU()
        )

    batch = torch.randn(5, 3)
    fn = same(
        make,
        (batch,),
        lambda m: m.eval(),
        (batch,),
        lambda m: m.train(),
        (batch,),
        lambda m: setattr(m[2], "momentum", 0.5),
        (batch,),
        lambda m: m.append(torch.nn.Tanh()),
        (batch,),
        lambda m: m.__setitem__(3, torch.nn.GELU()),
        (batch,),
    )
    one_graph(fn)


def test_requires_grad_toggled():
    def frozen(net):
        net.lin.weight.requires_grad_(False)

    same(
        Net,
        (X,),
        frozen,
        (X,),
        lambda m: m.requires_grad_(True),
        (X,),
        (tensor(1, 2, 3, grad=True),),
        (X,),
    )


def test_half_double_data():
    same(
        Net,
        (X,),
        lambda m: m.double(),
        (X.double(),),
        lambda m: m.half(),
        (X.half(),),
        lambda m: m.float(),
        (X,),
    )
    same(
        Net,
        (X,),
        lambda m: setattr(m.lin.weight, "data", torch.ones(3, 3) * 2),
        (X,),
        lambda m: setattr(m.lin.bias, "data", torch.ones(3)),
        (X,),
    )


def test_parameter_replaced():
    def replaced(net):
        net.lin.weight = torch.nn.Parameter(torch.full((3, 3), 0.25))

    def removed(net):
        net.lin.register_parameter("bias", None)

    same(
        Net,
        (X,),
        replaced,
        (X,),
        removed,
        (X,),
        lambda m: setattr(m, "shift", torch.zeros(3)),
        (X,),
        lambda m: setattr(m, "lin", torch.nn.Identity()),
        (X,),
    )


def test_hooks_added_later():
    handles = []  # outside of the modules: a handle's id counts up in the whole process

    def add(net):
        net.lin.register_forward_hook(lambda mod, args, out: out * 10)

    def add_pre(net):
        handles.append(net.lin.register_forward_pre_hook(lambda mod, args: (args[0] + 1,)))

    def global_hook(net):
        handles.append(
            torch.nn.modules.module.register_module_forward_hook(lambda mod, args, out: out + 1)
        )

    same(Net, (X,), add, (X,), add_pre, (X,), lambda m: handles.pop().remove(), (X,))
    same(Net, (X,), global_hook, (X,), lambda m: handles.pop().remove(), (X,))


def test_hook_with_kwargs_added_later():
    import dynfix

    net = torch.nn.Linear(3, 2)
    compiled = dynfix.compile(net, backend="eager")
    before = [compiled(X), compiled(X)]
    net.register_forward_hook(
        lambda mod, args, kwargs, out: out - 1 - len(kwargs), with_kwargs=True
    )
    for given in ({"input": X}, {"input": -X}):
        torch.testing.assert_close(compiled(**given), net(**given), rtol=0, atol=0)
    torch.testing.assert_close(compiled(X), before[1] - 1, rtol=0, atol=0)


def test_backward_hook_added_later():
    def make():
        net = Net()
        net.seen = []
        return net

    def add(net):
        net.lin.weight.register_hook(lambda g: g * 3)

    def full(net):
        net.lin.register_full_backward_hook(lambda mod, gi, go: net.seen.append(len(go)))

    same(make, (X,), add, (X,), full, (X,), (X,))


def test_method_replaced():
    def make():
        class Own(Net):
            pass

        return Own()

    def on_instance(net):
        net.helper = lambda x: x - 100

    def on_class(net):
        type(net).helper = lambda self, x: x + 50

    def forward_on_instance(net):
        net.forward = lambda x: x * 0

    def on_child_class(net):
        net.lin.forward = types.MethodType(lambda self, x: x, net.lin)

    same(
        make,
        (X,),
        on_class,
        (X,),
        on_instance,
        (X,),
        lambda m: delattr(m, "helper"),
        (X,),
        on_child_class,
        (X,),
        forward_on_instance,
        (X,),
    )


def test_tables_that_a_first_call_fills():
    class Filled(torch.nn.Module):
        def forward(self, x):
            if not hasattr(self, "sum"):
                self.register_buffer("sum", torch.zeros(3), persistent=False)
            if getattr(self, "scale", None) is None:
                self.scale = torch.nn.Parameter(torch.ones(3))
            self.sum = self.sum + x
            return self.sum * self.scale

    same(Filled, (X,), (-X,), (X,), lambda m: delattr(m, "sum"), (X,), (-X,))


def test_a_queue_with_a_longest_length():
    def make():
        queue = collections.deque([X, -X], maxlen=3)

        def program(x):
            queue.append(x)
            first = queue.popleft()
            return first * queue[-1] + len(queue), [t + 1 for t in queue], queue.maxlen

        return Case(fn=program, watch=lambda: queue, queue=queue)

    def grow(case):
        case.queue.append(X)

    one_graph(same(make, (X,), (X + 1,), (X + 2,), grow, (X,), (-X,)), 2)
    lengths = [collections.deque([X], maxlen=most) for most in (1, 2, None, 1)]
    same(lambda: lambda queue, x: (queue.append(x), len(queue)), *((q, X) for q in lengths))


def test_what_was_compiled_is_let_go():
    def run():
        shared = torch.nn.Linear(3, 3)

        class Local(torch.nn.Module):
            def forward(self, x):
                assert x.sum() < 100
                return shared(x)

        compiled = dynfix.compile(Local(), backend="eager")
        for _ in range(3):
            compiled(X)
        return weakref.ref(shared), weakref.ref(Local)

    kept = run()
    gc.collect(), gc.collect()
    assert [reference() for reference in kept] == [None, None]


class Shadowed(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.weight = torch.nn.Linear(3, 3), torch.nn.Parameter(torch.ones(3))
        self.register_buffer("shift", torch.ones(3))

    def forward(self, x):
        return self.layer(x) * self.weight + self.shift


def test_attributes_of_a_module_that_come_before_its_tables():
    """`object.__setattr__` and `__dict__` put a name before a submodule, a parameter or a
    buffer."""
    others = {
        "layer": torch.nn.Linear(3, 3),
        "weight": torch.nn.Parameter(torch.full((3,), 2.0)),
        "shift": torch.full((3,), 3.0),
    }
    for name, other in others.items():
        module = Shadowed()
        compiled = dynfix.compile(module, backend="eager")
        for _ in range(2):
            assert torch.equal(compiled(X), module(X))
            object.__setattr__(module, name, other)
            assert torch.equal(compiled(X), module(X))
            assert torch.equal(compiled(X), module(X))
            del module.__dict__[name]
        assert torch.equal(compiled(X), module(X))


def test_what_containers_of_the_call_compare():
    """C code compares lists that were there before, in containers that the call makes."""
    pair, kept = [0, 0], (1, [0])

    def program(x):
        counted = [pair, [2, 2]].count([2, 2]), ([2, 2] in [pair]) and [pair].index([2, 2])
        return x + 1, counted, sorted([kept, (1, [1])]) == [kept, (1, [1])]

    compiled = dynfix.compile(program, backend="eager")
    for number in (1, 1, 2, 0, 2):
        pair[:], kept[1][0] = [number, number], number
        assert compiled(torch.ones(2))[1:] == program(torch.ones(2))[1:]
