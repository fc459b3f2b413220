"""Containers and objects that are made in the call come back exactly, whatever their classes do;
and a call that raises leaves what eager leaves."""

import collections
import copy
import dataclasses
import datetime
import decimal
import fractions
import functools
import typing

import dynfix
import pytest
import torch
from helpers import Case, X, Y, one_graph, same


class Counted(list):
    def __init__(self, *args):
        super().__init__(*args)
        self.n = len(self)

    def append(self, value):
        super().append(value)
        self.n += 100


class Turned(tuple):
    def __new__(cls, a, b):
        return super().__new__(cls, (b, a))


class Loud(dict):
    def __setitem__(self, key, value):
        super().__setitem__(key, (key, value))


class Grams(float):
    unit = "g"


class Slotted:
    __slots__ = ("a", "b")

    def __init__(self, a):
        self.a, self.b = a, 1


class Named(collections.namedtuple("Named", "a b")):
    def total(self):
        return self.a + self.b


class Lying:
    def __init__(self, x):
        self.x, self.label = x, "first"

    def __getstate__(self):
        return {"x": self.x, "label": "second"}


def ordered(x):
    made = collections.OrderedDict()
    made["b"], made["a"] = x * 2, x
    made.move_to_end("b")
    return made


def counted(x):
    made = Counted([x, x * 2])
    made.append(x + 1)
    return made


def loud(x):
    made = Loud()
    made["a"] = x * 2
    return made


MAKERS = {
    "ordered": ordered,
    "counted": counted,
    "loud": loud,
    "turned": lambda x: Turned(x, x * 2),
    "grams": lambda x: (Grams(2.5), x * 2),
    "slotted": lambda x: Slotted(x * 2),
    "named": lambda x: Named(x, 3),
    "lying": lambda x: Lying(x * 2),
    "deque": lambda x: collections.deque([x * 2, 1], maxlen=5),
    "defaultdict": lambda x: collections.defaultdict(list, a=[x * 2]),
    "partial": lambda x: (functools.partial(torch.add, x * 2)(x), datetime.date(2020, 1, 2)),
    "nested": lambda x: Turned(Counted([x * 2]), {"k": Turned(x, 1)}),
    "frozenset": lambda x: (frozenset({1, 2}), x * 2),
}


def shown(obj):
    """What an observer sees of a made object, below its class's own methods."""
    if isinstance(obj, torch.Tensor):
        return obj.tolist()
    fields = {name: shown(value) for name, value in getattr(obj, "__dict__", {}).items()}
    fields |= {name: shown(getattr(obj, name)) for name in getattr(obj, "__slots__", ())}
    if isinstance(obj, dict):
        return type(obj), list(obj), {k: shown(v) for k, v in dict.items(obj)}, fields
    if isinstance(obj, list | tuple | collections.deque):
        return type(obj), [shown(part) for part in obj], getattr(obj, "maxlen", None), fields
    return type(obj), fields or repr(obj)


@pytest.mark.parametrize("name", MAKERS)
def test_made_in_the_call(name):
    fn = dynfix.compile(MAKERS[name], backend="eager")
    for k in range(1, 4):
        assert shown(fn(X * k)) == shown(MAKERS[name](X * k))


def test_what_holds_itself():
    def f(x):
        made = [x * 2]
        made.append(made)
        return made

    fn = dynfix.compile(f, backend="eager")
    for _ in range(3):
        made = fn(X)
        assert made[1] is made and torch.equal(made[0], X * 2)


@pytest.mark.parametrize("backend", ["eager", "native"])
def test_effects_before_an_error_are_kept(backend):
    def make():
        log = []

        def f(x, i):
            log.append("before")
            x.add_(1)
            return x[i].sum()

        return log, f

    def outcome(fn, x, i):
        try:
            return fn(x, i).item()
        except (IndexError, RuntimeError) as error:
            return type(error).__name__

    index = torch.tensor([0])
    logs, results = [], []
    for compiled in (False, True):
        log, f = make()
        fn = dynfix.compile(f, backend=backend) if compiled else f
        xs = [torch.ones(2) for _ in range(4)]
        picks = (index, index, index + 5, index)
        results.append([outcome(fn, x, i) for x, i in zip(xs, picks, strict=True)])
        logs.append((log, [x.tolist() for x in xs]))
    assert logs[0] == logs[1]
    assert results[0] == results[1]


def test_fullgraph_names_what_is_found_at_the_end():
    def leaks_grad_mode(x):
        torch.set_grad_enabled(False)
        return x * 2

    try:
        with pytest.raises(dynfix.GraphBreakError):
            dynfix.compile(leaks_grad_mode, backend="eager", fullgraph=True)(X)
    finally:
        torch.set_grad_enabled(True)


class Effectful(torch.autograd.Function):
    calls = 0

    @staticmethod
    def forward(ctx, x):
        Effectful.calls += 1
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        return grad * 2


class Pure(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * 2 * torch.ones_like(x)


@pytest.mark.parametrize("backend", ["eager", "native"])
def test_effects_of_an_autograd_function_happen_once(backend):
    Effectful.calls = 0
    fn = dynfix.compile(lambda x: Effectful.apply(x).sin(), backend=backend)
    for count in range(1, 4):
        fn(torch.ones(2, requires_grad=True)).sum().backward()
        assert Effectful.calls == count


def test_an_autograd_function_that_only_computes_stays_in_the_graph():
    fn = same(lambda: lambda x: Pure.apply(x).sin(), (X.clone().requires_grad_(),), (X,))
    assert all(recording.segments for recording in fn._dynfix_entry.recordings)


class Settings:
    def __init__(self):
        self.scale, self.names = 2.0, ["a"]


def test_a_shallow_copy_of_an_object_from_outside():
    settings = Settings()

    def f(x):
        own = copy.copy(settings)
        own.scale += 1
        own.names.append("b")
        return x * own.scale + len(own.names)

    compiled = dynfix.compile(f, fullgraph=True, backend="eager")
    x = torch.ones(3)
    for length in (2, 3):
        assert torch.equal(compiled(x), x * 3 + length)
    settings.scale = 5.0
    assert torch.equal(compiled(x), x * 6 + 4)
    settings.other = 1
    assert torch.equal(compiled(x), x * 6 + 5)
    assert settings.scale == 5.0


class Scaled(torch.nn.Module):
    def __init__(self, k):
        super().__init__()
        self.k, self.act = k, torch.nn.ReLU()
        self.register_buffer("shift", torch.ones(3) * k)

    def forward(self, x):
        return self.act(x) * self.k + self.shift


def test_a_module_without_parameters_is_made_anew():
    def make():
        net = torch.nn.Sequential()

        def program(x):
            net.add_module(f"step{len(net)}", torch.nn.ReLU())
            made = Scaled(2)
            return net(x) + len(net), made(x), made

        return Case(fn=program, watch=lambda: (net, len(set(map(id, net)))))

    one_graph(same(make, (X,), (Y,), (X,), backend="eager"))


@pytest.mark.parametrize("backend", ["eager", "native"])
def test_a_parameter_made_in_the_call(backend):
    """A leaf on the memory of what it was made of, or of the graph that uses it."""

    def kept(x):
        y = x * 2
        made = torch.nn.Parameter(y)
        return {"made": made, "again": made}, y

    def used(x):
        return (torch.nn.Parameter(x) * x).sum()

    compiled = dynfix.compile(kept, backend=backend, fullgraph=True)
    in_use = dynfix.compile(used, backend=backend)
    for step in range(3):
        x = torch.full((2,), 1.0 + step)
        found, y = compiled(x)
        made = found["made"]
        assert found["again"] is made and type(made) is torch.nn.Parameter
        assert made.is_leaf and made.requires_grad and not y.requires_grad
        assert made.data_ptr() == y.data_ptr() and torch.equal(made, x * 2)
        (made * 3).sum().backward()
        assert torch.equal(made.grad, torch.full((2,), 3.0))
        assert in_use(x).requires_grad


def test_versions_of_inputs_and_of_what_the_call_makes():
    def program(x):
        before, made = x._version, x + 1
        x.add_(1)
        made.mul_(2)
        return x._version - before, before, made._version, made

    compiled = dynfix.compile(program, backend="eager", fullgraph=True)
    x, y = torch.ones(2), torch.ones(2)
    for _ in range(3):
        for found, wanted in zip(compiled(x), program(y), strict=True):
            assert torch.equal(found, wanted) if torch.is_tensor(found) else found == wanted
        x.add_(1)
        y.add_(1)


@pytest.mark.parametrize("backend", ["eager", "native"])
def test_attributes_of_tensors_made_in_the_call(backend):
    def program(x):
        y, unseen = x + 1, x * 2
        y.grad = unseen
        y.grad = x
        unseen.count = 3
        y.parent = {"made": x * unseen.count}
        y.parent["made"].child = y
        return y

    compiled = dynfix.compile(program, backend=backend, fullgraph=True)
    for step in range(4):
        x = torch.full((2,), 1.0 + step)
        y = compiled(x)
        assert torch.equal(y, x + 1) and y.grad is x
        assert torch.equal(y.parent["made"], x * 3) and y.parent["made"].child is y


@pytest.mark.parametrize("backend", ["eager", "native"])
def test_a_leaf_made_in_the_call_stays_a_leaf(backend):
    def program(x):
        leaf = torch.ones(2, requires_grad=True)
        return leaf, leaf * x

    compiled = dynfix.compile(program, backend=backend)
    for step in range(4):
        leaf, y = compiled(torch.full((2,), 1.0 + step))
        y.sum().backward()
        assert leaf.is_leaf and leaf.grad.tolist() == [1.0 + step] * 2


def test_finalizers():
    class Ends:
        def __init__(self, log, n):
            self.log, self.n = log, n

        def __del__(self):
            self.log.append((type(self.n), self.n))

    def make():
        log = []

        def f(x, n):
            ends = Ends(log, n)
            y = x * ends.n
            del ends
            return y, len(log)

        return Case(fn=f, watch=lambda: log)

    same(make, *[(X, n) for n in (1, 2, 2, 3, 1)])


class Pooled:
    pool: typing.ClassVar[dict] = {}

    def __new__(cls, name):
        if name not in cls.pool:
            cls.pool[name] = super().__new__(cls)
            cls.pool[name].asked = 0
        cls.pool[name].asked += 1
        return cls.pool[name]


class Metres(float):
    def __new__(cls, value, unit="m"):
        made = super().__new__(cls, value * 2)
        made.unit = unit
        return made


@dataclasses.dataclass
class Noted:
    a: object
    count = 0

    def __new__(cls, a):
        Noted.count += 1
        return super().__new__(cls)


def test_new_without_init():
    def make():
        Pooled.pool, Noted.count = {}, 0

        def f(x, n, name):
            pooled, metres = Pooled(name), Metres(n, unit="km")
            return x * pooled.asked + Noted(n).a, Pooled(name) is pooled, metres, metres.unit

        def watch():
            return {name: each.asked for name, each in Pooled.pool.items()}, Noted.count

        return Case(fn=f, watch=watch)

    for backend in ("eager", "native"):
        outcomes = []
        for compiled in (False, True):
            case = make()
            fn = dynfix.compile(case.fn, backend=backend) if compiled else case.fn
            steps = [(1, "a"), (2, "a"), (3, "b"), (2, "a"), (4, "c")]
            results = [(fn(X, n, name), case.watch()) for n, name in steps]
            outcomes.append(
                [
                    (y.tolist(), same, float(m), type(m), u, seen)
                    for (y, same, m, u), seen in results
                ]
            )
        assert outcomes[0] == outcomes[1]


def test_numbers_of_the_standard_library():
    def program(x, n):
        third, exact = fractions.Fraction(n, 3), decimal.Decimal(n) / 4
        days = datetime.timedelta(days=n).days
        queue = collections.deque([1, n, 3], n), collections.deque("abc", maxlen=n - 1)
        return x * float(third), third == 1, str(third), str(exact), x + days, queue

    same(lambda: program, *[(X, n) for n in (2, 3, 4, 5, 2)])

    def of_sizes(x):
        return program(x, x.shape[0])

    same(lambda: of_sizes, *[(torch.arange(n) + 1.0,) for n in (2, 3, 4, 5, 2)])


def test_classes_made_in_the_call():
    def program(x, n):
        class Local:
            shared = [n]  # noqa: RUF012
            k = n

            def __init__(self):
                self.shared.append(x)

        made = Local(), Local()
        return len(Local.shared), Local.shared, type(made[0]) is type(made[1]), made[0].k, made[0]

    compiled = dynfix.compile(program, backend="eager")
    seen = []
    for n in (1, 2, 2, 3, 3):
        count, shared, one_class, k, made = compiled(X, n)
        assert (count, shared[0], one_class, k, type(type(made).k)) == (3, n, True, n, int)
        seen.append((shared, type(made)))
    assert len({id(shared) for shared, _ in seen}) == len({cls for _, cls in seen}) == 5


def test_dicts_made_from_keys():
    def program(x, names):
        by_name = collections.OrderedDict.fromkeys(names, value=x + 1)
        made = collections.defaultdict.fromkeys(names, x * 2)
        return dict.fromkeys(names, x), by_name, made, made.default_factory

    one_graph(same(lambda: program, *[(X, names) for names in ("ab", ["q", "r"], "ab")]), 2)


class Remade(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = torch.nn.Linear(3, 3)
        self.register_buffer("seen", torch.zeros(3))

    def forward(self, x):
        y = self.lin(x)
        self.lin.weight = torch.nn.Parameter(self.lin.weight.detach() * 2)
        self.register_parameter("last", torch.nn.Parameter(y.detach()))
        self.shared = torch.nn.Parameter(x)
        self.seen = (self.seen + x).detach()
        return y * 2


@pytest.mark.parametrize("backend", ["eager", "native"])
def test_parameters_made_in_a_call_are_a_modules(backend):
    def make():
        torch.manual_seed(0)
        module = Remade()
        return Case(fn=module, watch=lambda: module)

    tolerance = None if backend == "eager" else (1e-5, 1e-6)
    steps = [(torch.arange(3.0) + n,) for n in range(4)]
    one_graph(same(make, *steps, backend=backend, tolerance=tolerance))
