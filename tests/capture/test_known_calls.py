"""Calls that are known to compute from their arguments alone do not break a graph; custom autograd
functions and TorchScript functions are one node of it."""

import collections
import contextlib
import functools
import inspect
import itertools
import os
import typing

import dynfix
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from dynfix.rewriter.frontend import segment_programs
from helpers import FOUR, Case, X, Y, one_graph, recordings, same, tensor

A = torch.arange(6.0).view(2, 3)
B = -A.flip(0) + 0.5


def annotated(a: int | None, b: typing.Optional[str] = None) -> int | str:  # noqa: UP045
    return b or str(a)


SIGNATURE = inspect.signature(annotated)
Pair = collections.namedtuple("Pair", "a b")


class Settings:
    def __init__(self):
        self.scale = 3


class Instances(collections.OrderedDict):
    """As transformers' ACT2FN: what is stored is a class, what is found an object of it."""

    def __getitem__(self, key):
        content = super().__getitem__(key)
        cls, kwargs = content if isinstance(content, tuple) else (content, {})
        return cls(**kwargs)


ACTIVATIONS = Instances(silu=torch.nn.SiLU, leaky=(torch.nn.LeakyReLU, {"negative_slope": 0.2}))
SETTINGS = Settings()


@functools.lru_cache(None)
def doubled(n):
    return n * 2


def generator():
    value = yield 1
    yield value * 2


def sent(x):
    it = generator()
    return x * next(it) + it.send(3)


def counted(x):
    count = itertools.count(2)
    return x * next(count) + next(count)


def counter(x):
    c = collections.Counter("aab")
    c.update(["b", "c"])
    return x * c["a"] + c.most_common(1)[0][1] + len(c)


def queue(x):
    d = collections.deque(maxlen=2)
    d.append(x), d.append(x * 2), d.append(x * 3)
    return d.popleft() + d[0]


def stack(x):
    with contextlib.ExitStack() as entered:
        entered.enter_context(torch.no_grad())
        y = x * 2
    return y


def labelled(x):
    with torch.profiler.record_function("one"):
        y = x * 2
    with torch.autograd.profiler.record_function("two"):
        return y * 2


def split(x):
    a, b = itertools.tee([1, 2])
    return x * sum(a) + sum(b)


def without_history(x):
    y = x.detach() * 2
    return y.requires_grad_(False) * 2


class Swish(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * torch.sigmoid(x)

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        s = torch.sigmoid(x)
        return grad * (s * (1 + x * (1 - s))) * 2  # not the true one: it shows that it is called


class Round(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, n, flag=True):
        ctx.n = n
        return torch.round(x * n) / n if flag else x.clone()

    @staticmethod
    def backward(ctx, grad):
        return grad.clone() * ctx.n, None, None


class Norm(torch.autograd.Function):
    """As NAFNet's LayerNorm2d."""

    @staticmethod
    def forward(ctx, x, weight, bias, eps):
        ctx.eps = eps
        mu = x.mean(1, keepdim=True)
        var = (x - mu).pow(2).mean(1, keepdim=True)
        y = (x - mu) / (var + eps).sqrt()
        ctx.save_for_backward(y, var, weight)
        return weight.view(1, -1) * y + bias.view(1, -1)

    @staticmethod
    def backward(ctx, grad):
        y, var, weight = ctx.saved_tensors
        g = grad * weight.view(1, -1)
        mean_g = g.mean(dim=1, keepdim=True)
        mean_gy = (g * y).mean(dim=1, keepdim=True)
        gx = 1.0 / torch.sqrt(var + ctx.eps) * (g - y * mean_gy - mean_g)
        return gx, (grad * y).sum(dim=0), grad.sum(dim=0), None


def binned(x):
    made = torch.histogramdd(x[:, :2].detach(), bins=[2, 3])
    return x.sum(), made.hist, made.bin_edges[1]


@torch.jit.script
def scripted(x, y):
    return x * 2 + torch.sigmoid(y)


PROGRAMS = {
    "os.getenv": lambda x: x * (2 if os.getenv("NOT_SET_AT_ALL") is None else 3),
    "os.environ": lambda x: x * len(os.environ["PATH"]) + ("PATH" in os.environ),
    "signature": lambda x: x * len(inspect.signature(annotated).parameters),
    "bind": lambda x: x * len(SIGNATURE.bind(x, b="s").arguments),
    "np.exp": lambda x: x * np.exp(2.0) + np.log(np.e) + np.pi,
    "np.sqrt": lambda x: x / np.sqrt(x.shape[1]),
    "np.lcm": lambda x: x + np.lcm(4, 6) + np.lcm.reduce([2, 3, 4]) + np.gcd(4, 6),
    "np.prod": lambda x: x.reshape(np.prod(x.shape)) + np.prod(x.shape[1:]),
    "np.ceil": lambda x: x[: int(np.ceil(x.shape[0] / 2))] * np.round(2.7),
    "np numbers": lambda x: x * np.float32(2) + np.int64(3) * x + np.finfo(np.float32).eps,
    "np dtype": lambda x: torch.tensor(np.float64(2)) + torch.tensor([np.float32(1)]) + x,
    "np.isinstance": lambda x: x * isinstance(x.shape[0], int | np.integer),
    "fromkeys": lambda x: sum(dict.fromkeys(["a", "b"], x).values()),
    "vars": lambda x: x * vars(SETTINGS)["scale"],
    "_replace": lambda x: Pair(x, 2)._replace(b=3).b * x,
    "_asdict": lambda x: sum(Pair(x, 2)._asdict().values()),
    "_make": lambda x: Pair._make([x, 3]).a * 2,
    "partial": lambda x: functools.partial(torch.add, alpha=2)(x, x),
    "lru_cache": lambda x: x * doubled(3),
    "min and max": lambda x: x[: min(x.shape[0], 2)] * max(x.shape[0], 3, x.shape[1]),
    "LongTensor": lambda x: x[torch.LongTensor([0, 1])] * torch.Tensor([2, 0.5, 1]),
    "LongTensor of others": lambda x: (
        x[torch.LongTensor(range(2))] + torch.LongTensor([True, 2.7, -1.5]) + torch.Tensor(x)
    ),
    "FloatTensor": lambda x: x * torch.FloatTensor([[2.0], [1]]) + torch.Tensor(0, 3).sum(),
    "keywords": lambda x: torch.add(input=x, other=x, alpha=2) + torch.clamp(input=x, min=0),
    "activation": lambda x: ACTIVATIONS["silu"](x) + ACTIVATIONS["leaky"](x),
    "swish": lambda x: Swish.apply(x) + 1,
    "round": lambda x: Round.apply(x * 1.3, 4, True) + Round.apply(x, 2),
    "scripted": lambda x: scripted(x, x) + 1,
    **{
        f.__name__: f
        for f in (sent, counted, counter, queue, stack, labelled, split, without_history, binned)
    },
}


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("name", PROGRAMS)
def test_program(name, grad):
    steps = [(t.clone().requires_grad_(grad),) for t in (A, B, A + 1)]
    one_graph(same(lambda: PROGRAMS[name], *steps), 1)


@pytest.mark.parametrize("backend", ["aot_eager", "native"])
@pytest.mark.parametrize("name", ["swish", "round", "scripted"])
def test_node_is_compiled(name, backend):
    steps = [(t.clone().requires_grad_(),) for t in (A, B, A + 1)]
    fn = same(lambda: PROGRAMS[name], *steps, backend=backend, tolerance=(1e-5, 1e-6))
    one_graph(fn, 1)


class WithNorm(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.tensor([1.0, 2.0, 0.5]))
        self.bias = torch.nn.Parameter(torch.zeros(3))

    def forward(self, x):
        return Norm.apply(x, self.weight, self.bias, 1e-6).relu()


@pytest.mark.parametrize("backend", ["eager", "native"])
def test_layer_norm_of_its_own(backend):
    steps = [(t.clone().requires_grad_(),) for t in (A, B, A * A)]
    one_graph(same(WithNorm, *steps, backend=backend, tolerance=(1e-4, 1e-5)), 1)


def test_environment_is_guarded(monkeypatch):
    def sets(value):
        def step(made):
            monkeypatch.setenv("DYNFIX_TEST_SCALE", value)

        return step

    def program(x):
        return x * int(os.getenv("DYNFIX_TEST_SCALE", "7"))

    same(lambda: program, (A,), sets("2"), (A,), (B,), sets("3"), (A,))


def test_what_a_custom_function_reads_is_guarded():
    """A global number in `forward`, and `forward` itself."""

    def make():
        class Scaled(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                return x * SCALE[0] if isinstance(SCALE, list) else x * SCALE

            @staticmethod
            def backward(ctx, grad):
                return grad * 10

        scope = {"torch": torch}
        return Case(fn=lambda x: Scaled.apply(x), cls=Scaled, scope=scope)

    def replaced(case):
        case.cls.forward = staticmethod(lambda ctx, x: x * 100)

    def scaled(by):
        def step(case):
            globals()["SCALE"] = by

        return step

    x = tensor(1, 2, grad=True)
    for backend in ("eager", "native"):
        steps = (scaled(2.0), (x,), (x,), (x,), scaled(3.0), (x,), replaced, (x,), (x,))
        same(make, *steps, backend=backend)


SCALE = 2.0


@pytest.mark.parametrize("backend", ["eager", "native"])
def test_a_custom_function_with_effects_has_them_at_each_call(backend):
    def make():
        class Counted(torch.autograd.Function):
            calls = 0

            @staticmethod
            def forward(ctx, x):
                Counted.calls += 1
                return x * 2

            @staticmethod
            def backward(ctx, grad):
                Counted.calls += 10
                return grad * 2

        def program(x):
            y = x + 1
            return Counted.apply(y).sin()

        return Case(fn=program, watch=lambda: Counted.calls)

    x = tensor(1, 2, grad=True)
    same(make, *[(x,)] * 6, backend=backend, tolerance=(1e-5, 1e-6))


def test_frozen_module_function_leaves_one_graph():
    """`os.getenv` has no source: the module is frozen."""
    fn = same(lambda: PROGRAMS["os.getenv"], (A,), (B,))
    assert not [site for kept in recordings(fn) for site in kept.sites]


class Listed(torch.autograd.Function):
    """A list in `forward`, which only a run of it shows to be harmless; an input given back."""

    @staticmethod
    def forward(ctx, x, k):
        ctx.k = k
        ctx.save_for_backward(x)
        parts = []
        parts.append(x * k)
        return parts[0] + 1, x, torch.is_grad_enabled()

    @staticmethod
    def backward(ctx, grad, more, flag):
        return grad * ctx.k + more, None


class Written(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.mark_dirty(x)
        return x.mul_(2)

    @staticmethod
    def backward(ctx, grad):
        return grad * 2


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("backend", ["eager", "native"])
def test_forward_is_looked_into_where_nothing_goes_backward(backend, grad):
    def program(x):
        y, z, mode = Listed.apply(x * 1, 3)
        w = x + 0
        return y.sin(), z, mode, Written.apply(w), w

    steps = [(t.clone().requires_grad_(grad),) for t in (A, B, A + 1, B, A)]
    fn = same(lambda: program, *steps, backend=backend, tolerance=(1e-5, 1e-6))
    if not grad:
        one_graph(fn, 1)


class _Scaled(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.scale = torch.nn.Linear(3, 3), 2

    def forward(self, x):
        return self.linear(x).relu() * self.scale


def test_modules_that_fx_made_are_captured():
    traced = torch.fx.symbolic_trace(_Scaled())
    one_graph(same(lambda: torch.nn.Sequential(traced, torch.nn.ReLU()), *FOUR))


def test_modules_that_export_made_give_what_they_gave():
    exported = torch.export.export(_Scaled(), (X,)).module()
    compiled = dynfix.compile(exported, backend="eager")
    for x in (X, Y, X, Y, X):
        torch.testing.assert_close(compiled(x), exported(x))
    with pytest.raises(AssertionError, match="Guard failed"):
        compiled(torch.ones(2, 3))


def test_clipping_of_gradients_does_not_break():
    def make():
        weights = [torch.nn.Parameter(X.clone()), torch.nn.Parameter(Y.clone())]

        def step(x):
            loss = sum((w * x).square().sum() for w in weights)
            loss.backward()
            norm = torch.nn.utils.clip_grad_norm_(weights, 0.5)
            found = [w.grad * 1 for w in weights]
            for w in weights:
                w.grad = None
            return loss, norm, found

        return step

    one_graph(same(make, *[(X,), (Y,)] * 3, tolerance=(1e-5, 1e-6)))


def test_arithmetic_on_plain_numbers_by_torch_is_no_operator():
    def program(x):
        return x * torch.sym_max(3, 4) + torch.sym_float(2)

    one_graph(same(lambda: program, (A,), (B,), (A,)))


@pytest.mark.parametrize("swap", [True, False])
def test_a_loss_that_calls_a_distance_of_the_users(swap):
    net = torch.nn.Linear(3, 3)

    def distance(x, y):
        return (net(x) - net(y)).abs().sum(-1)

    loss = torch.nn.TripletMarginWithDistanceLoss(distance_function=distance, swap=swap)
    call = dynfix.compile(loss, fullgraph=True)
    for _ in range(3):
        given = torch.randn(3, 2, 3, requires_grad=True)
        found, expected = call(*given), loss(*given)
        torch.testing.assert_close(found, expected)
        one, two = (torch.autograd.grad(each, given)[0] for each in (found, expected))
        torch.testing.assert_close(one, two)


def test_elements_taken_by_a_position_without_axes():
    def program(x, position):
        return (x * 2).take(position) + (x > 0).any()

    call = dynfix.compile(program, fullgraph=True)
    for position in (0, -1, 1):
        where = torch.tensor(position)
        torch.testing.assert_close(call(A, where), program(A, where))


def test_a_dropout_that_is_off_draws_nothing(monkeypatch):
    """Nor is what it was given kept as a result of the graph, for the generator's sake."""
    seen = []
    monkeypatch.setattr(segment_programs, "observers", [lambda s, p, _: seen.append(s) or p])
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Dropout(0.5), torch.nn.GELU())
    call, x = dynfix.compile(model), torch.randn(2, 4)
    for train in (False, True):
        model.train(train)
        torch.manual_seed(0)
        found = [call(x) for _ in range(2)]
        torch.manual_seed(0)
        torch.testing.assert_close(found, [model(x) for _ in range(2)])
    marks = [["draws" in node.meta for node in segment.module.graph.nodes] for segment in seen]
    assert [segment.random for segment in seen] == [False, True]
    assert [any(each) for each in marks] == [False, True]


@pytest.mark.parametrize("grad", [False, True])
def test_a_dropout_of_all_elements_draws_nothing(grad):
    call = dynfix.compile(lambda x: F.dropout(x, 1.0) + x)
    for seed in range(3):
        x = torch.tensor([1.0, -2.0, torch.inf, torch.nan]).requires_grad_(grad)
        before = torch.manual_seed(seed).get_state()
        torch.testing.assert_close(call(x), F.dropout(x, 1.0) + x, equal_nan=True)
        assert torch.equal(torch.get_rng_state(), before)


def test_keywords_that_torch_keeps_from_a_mode():
    def order(x):
        return x + 1, x.dim_order(ambiguity_check=True)

    def chain(x, out):
        return torch.chain_matmul(x, x.t(), out=out), out

    same(lambda: order, (X,), (torch.ones(2, 1, 3).expand(2, 4, 3),), (X,))
    same(lambda: chain, (A, torch.zeros(2, 2)), (A, torch.zeros(2, 2)))


def test_order_of_dims():
    one_graph(same(lambda: lambda x: (x + 1, x.dim_order()), (A,), (A.t(),), (A,)))


def test_methods_with_the_names_of_what_looks_around():
    """`net.eval()` is no `eval()`, `torch.stack` no `inspect.stack`."""

    class Asked:
        exec = 3.0

        def globals(self, x):
            return x * self.exec

    def make():
        torch.manual_seed(0)
        net, asked = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Dropout(0.5)), Asked()

        def fn(x, train):
            net.train() if train else net.eval()
            stack = [asked.globals(net(x)), x]
            return torch.stack(stack), len(vars(asked))

        return Case(fn=fn, asked=asked, net=net)

    change = lambda case: setattr(case.asked, "exec", 5.0)  # noqa: E731
    steps = (X, True), (X, False), (X, True), (X, False)
    fn = same(make, *steps, change, *steps)
    assert all(len(recording.segments) == 1 for recording in recordings(fn))
