"""One compiled graph serves every size: against eager, at sizes far from the one that it was
compiled for."""

import pytest
import torch
from dynfix.lowering import passes
from grids import grid
from pass_list import insert_pass
from torch.nn import functional as F

from .harness import CHECKED, UNFUSED, assert_same
from .symbolic import Symbolic, check_sizes, check_training


def pair(a, b):
    return torch.randn(a, b), torch.randn(a, b)


def one(a, b):
    return (torch.randn(a, b),)


def ids(a, b):
    return torch.randint(0, 50, (a, b)), torch.randn(50, 16)


POINTWISE = {
    "broadcasting": (lambda x, y: (x * y[0] + y[:, :1]).tanh() - y.sum(), pair),
    "transposed": (lambda x, y: x.t() * y.t() + x.t().contiguous(), pair),
    "number": (lambda x, y: x * x.shape[0] + y / x.shape[1] - x.shape[0] * x.shape[1], pair),
    "integers": (lambda x: (x * 9).long() // x.shape[0] + (x * 9).long() % x.shape[1], one),
    "limits": (lambda x: (x * 9).clamp(max=x.shape[0]).clamp(-x.shape[1]), one),
    "filled": (
        lambda x: (
            torch.full((x.shape[1], 3), x.shape[0]) + x.new_zeros(x.shape[1], 1) + x.new_ones(())
        ),
        one,
    ),
    "range": (
        lambda x: (
            (torch.arange(x.shape[0]) * x.shape[1])[:, None] + torch.arange(3, x.shape[1] + 3)
        ),
        one,
    ),
    "triangles": (lambda x: x.tril() + x.triu(1) * 2 + x.tril(-1), one),
    "halves": (lambda x, y: (x.bfloat16() * y.bfloat16() + x.shape[0]).softmax(-1), pair),
}
JOINS = {
    "cat": (lambda x, y: torch.cat([x, y, x], 1) * 2, pair),
    "cat rows": (lambda x, y: torch.cat([x, y.exp()]), pair),
    "cat, sliced": (lambda x, y: torch.cat([x, y], 1)[:, 1:-1].sin(), pair),
    "many": (lambda x, y: torch.cat([x, y, x, y, x, y], 0) + 1, pair),
    "stack": (lambda x, y: torch.stack([x, y], 1).relu(), pair),
    "slices": (lambda x: (x[1:], x[:, :-1] * 2, x[:1], x[-1:] + 1, x[::2] + 1), one),
    "half": (lambda x: (x[: x.shape[0] // 2] * 2, x[:, x.shape[1] // 2 :].exp()), one),
    "split": (
        lambda x: [part * 2 for part in (x[:, : x.shape[1] - 1], x[:, x.shape[1] - 1 :])],
        one,
    ),
    "pad": (lambda x: F.pad(x, (1, 2)) + F.pad(x, (2, 1), value=3.0), one),
    "pad by size": (lambda x: F.pad(x, (x.shape[0], 0)) * 2, one),
    "flip": (lambda x: x.flip(0) + x.flip((0, 1)), one),
    "roll": (lambda x: x.roll(1, 1) + x.roll(-1, 0), one),
    "repeat": (lambda x: x.repeat(2, 3) * 2, one),
    "repeat by size": (
        lambda x: x[:1].repeat(x.shape[1], 1) + x[:1].expand(x.shape[1], x.shape[1]),
        one,
    ),
    "diagonal": (lambda x: x[: x.shape[1], : x.shape[0]].diagonal() * 2, one),
}
VIEWS = {
    "flat": (lambda x: x.view(-1) * 2 + x.t().reshape(-1), one),
    "split": (
        lambda x: (
            x[:, :, None].expand(-1, -1, 6).reshape(x.shape[0], x.shape[1], 2, 3).transpose(1, 2)
            * 2
        ),
        one,
    ),
    "merged": (
        lambda x: (
            (x[:, :, None] * torch.arange(6))
            .view(x.shape[0] * x.shape[1], 6)
            .softmax(-1)
            .view(-1, 3)
        ),
        one,
    ),
    "regrouped": (lambda x: x.exp().view(x.shape[1], x.shape[0]).t() + 1, one),
    "permuted": (
        lambda x: (x[:, None] * x[..., None]).permute(2, 0, 1).reshape(x.shape[1], -1).sum(0),
        one,
    ),
    "unsqueezed": (lambda x: x.unsqueeze(1).expand(-1, 4, -1).reshape(-1, x.shape[1]) + x[:1], one),
}
REDUCTIONS = {
    "sums": (lambda x: (x.sum(), x.sum(0), x.sum(1, keepdim=True), x.exp().sum(-1) * 2), one),
    "means": (lambda x: (x.mean(), x.mean(0), x.mean(1, keepdim=True)), one),
    "moments": (
        lambda x: (x.var(1), x.std(0), torch.var_mean(x, 1, correction=0)[1], x.var()),
        one,
    ),
    "extrema": (
        lambda x: (x.amax(1), x.amin(0), x.max(), x.max(1)[0], x.max(1)[1], x.min(0)[1]),
        one,
    ),
    "positions": (lambda x: (x.argmax(1), x.argmin(0), x.argmax()), one),
    "logical": (lambda x: ((x > 2).any(1), (x > -2).all(0), (x > 3).any()), one),
    "norms": (lambda x: (F.normalize(x, dim=1), x.norm(), x / x.norm(dim=0)), one),
    "softmax": (
        lambda x: (x.softmax(1), x.log_softmax(0), x.softmax(0) * x.logsumexp(1, keepdim=True)),
        one,
    ),
    "of picked rows": (lambda x: x.gather(0, (x > 0).long()).sum(1), one),
    "products": (lambda x: (x.tanh().prod(1), (x.sigmoid() + 0.5).prod(0)), one),
}


@pytest.mark.parametrize(
    "options", [CHECKED, pytest.param(UNFUSED, marks=pytest.mark.slow)], ids=["fused", "unfused"]
)
@pytest.mark.parametrize("name", [*POINTWISE, *JOINS])
def test_pointwise_and_joins(name, options):
    fn, make = (POINTWISE | JOINS)[name]
    assert not check_sizes(fn, make, options=options).externs


@pytest.mark.parametrize("name", VIEWS)
def test_views(name):
    assert not check_sizes(*VIEWS[name], rtol=1e-4, atol=1e-4).externs


@pytest.mark.parametrize("name", REDUCTIONS)
def test_reductions(name):
    fn, make = REDUCTIONS[name]
    call = check_sizes(fn, make, rtol=1e-4, atol=1e-4)
    assert set(call.externs) <= {"aten.linalg_vector_norm.default"}


def layers(x, g, b, w, v):
    h = F.layer_norm(x, (16,), g, b)
    return x + F.linear(F.gelu(F.linear(h, w, v)), w.t()[:, :16] * 0.1)


def attention(x, w):
    batch, length, width = x.shape
    q, k, v = F.linear(x, w).view(batch, length, 3, 4, width // 4).permute(2, 0, 3, 1, 4).unbind(0)
    seen = torch.arange(length)[:, None] >= torch.arange(length)
    scores = (q @ k.transpose(-1, -2) / (width // 4) ** 0.5).masked_fill(~seen, float("-inf"))
    return (scores.softmax(-1) @ v).transpose(1, 2).reshape(batch, length, width)


def with_weights(*shapes):
    return lambda a, b: (torch.randn(a, b, 16), *(torch.randn(shape) * 0.3 for shape in shapes))


TRAINED = {
    "layers": (layers, with_weights((16,), (16,), (16, 16), (16,)), (1, 2, 3, 4, (0, 2))),
    "attention": (attention, with_weights((48, 16)), (1, (0, 2))),
    "library attention": (
        lambda x: F.scaled_dot_product_attention(
            x[:, None], x[:, None] * 2, x[:, None] + 1, is_causal=True
        ),
        with_weights(),
        ((0, 2),),
    ),
    "rms norm": (
        lambda x, g: F.rms_norm(x, (16,), g).mean((0, 1)),
        with_weights((16,)),
        (1, (0, 2)),
    ),
    "group norm": (
        lambda x, g: F.group_norm(x.transpose(1, 2), 4, g),
        with_weights((16,)),
        (1, (0, 2)),
    ),
    "softmax": (lambda x, y: (x * y).softmax(0) + x.log_softmax(1) * x.mean(), pair, ()),
    "broadcasting": (lambda x, y: (x * y[0]).tanh() / (1 + y[:, :1].exp()) * x.shape[0], pair, ()),
    "joins": (lambda x, y: torch.cat([x[:, 1:], y.t().contiguous().t()], 1).sin() * 2, pair, ()),
    "moments": (
        lambda x, y: (x - x.mean(1, keepdim=True)) / x.std(1, keepdim=True) + y.var(),
        pair,
        (),
    ),
    "extrema": (
        lambda x, y: (x.amax(1), x.max(1)[0] * y.min(0)[0].sum(), x.logsumexp(0)),
        pair,
        (),
    ),
    "dropout": (lambda x, y: F.dropout(x, 0.4, True) * y, pair, ()),
    "embedding": (lambda i, w: F.embedding(i, w).relu().sum(1), ids, (1,)),
    "loss": (
        lambda x, t: F.cross_entropy(x @ x.t(), t),
        lambda a, b: (torch.randn(a, b), torch.randint(0, a, (a,))),
        (),
    ),
    "loss of tokens": (
        lambda i, w: F.cross_entropy(
            (F.embedding(i, w) @ w.t())[:, :-1].reshape(-1, 50), i[:, 1:].reshape(-1)
        ),
        ids,
        (1,),
    ),
    "products": (lambda x, y: (x @ y.t()).tanh() @ x + (x.t() @ y).sum(), pair, ()),
    "convolution": (
        lambda x, w: F.relu(F.conv1d(x[:, None], w, padding=1)).mean(2) * 2,
        lambda a, b: (torch.randn(a, b), torch.randn(4, 1, 3)),
        (1,),
    ),
    "picked": (
        lambda x, y: (
            x.gather(1, (y * 0).long() + 1)
            + x[:, x.shape[1] - 1 :]
            + x.index_select(0, torch.arange(x.shape[0]))
        ),
        pair,
        (),
    ),
}


@pytest.mark.parametrize(
    "name", grid(lambda name: name not in ("group norm", "loss of tokens"), TRAINED)
)
def test_training(name):
    fn, make, static = TRAINED[name]
    check_training(fn, make, static=static)


def test_inputs_that_are_not_contiguous():
    def make(a, b):
        return torch.randn(b, a).t(), torch.randn(a, 2 * b)[:, ::2], torch.randn(a + 1, b)[1:]

    check_training(lambda x, y, z: (x * y + z, (x + z).sum(1), torch.cat([x, y])), make)


def test_outputs_that_are_sizes():
    fn = lambda x: (x * 2, x.shape[0], x.shape[0] * x.shape[1] + 1, x.numel() // 2, x[:, 1:].shape)  # noqa: E731
    check_sizes(lambda x: fn(x)[:4], one)
    check_training(lambda x: (x.exp() * x.shape[0], x.shape[1]), one)


def test_numbers_as_inputs():
    """A size, and a number that is no size of a tensor."""

    def fn(x, n, m):
        return (
            x * n + torch.arange(n)[:, None] * m,
            n * m,
            x[:, :m],
            x * (n + m) ** 0.5,
            x * (n / m),
        )

    call = Symbolic(fn, (torch.randn(5, 6), 5, 3))
    assert call.externs.count("aten.mul.Tensor") == 1  # by a fraction
    for size, number in ((5, 3), (2, 2), (31, 4), (900, 5)):
        x = torch.randn(size, 6)
        assert_same(call.call(x, size, number), fn(x, size, number))


def test_as_many_kernels_as_with_known_sizes():
    def fn(x, g, b, w):
        h = F.gelu(F.layer_norm(x, (16,), g, b))
        return F.layer_norm((h @ w).softmax(1), (16,), g, b).log_softmax(-1) * 2 + x

    make = with_weights((16,), (16,), (16, 16))
    args = [a.requires_grad_() for a in make(7, 12)]
    known = Symbolic(fn, args, static=(0, 1, 2, 3))
    with known.watching():
        known.call(*args).sum().backward()
    found = Symbolic(fn, args, static=(1, 2, 3, (0, 2)))
    assert found.kernels == known.kernels and found.externs == known.externs
    assert set(found.externs) <= {"aten.bmm.default", "aten.mm.default"} and max(found.kernels) <= 8
    loops = attention, with_weights((48, 16))(3, 8)
    assert Symbolic(*loops, static=(1, (0, 2))).kernels == Symbolic(*loops, static=(0, 1)).kernels


STRETCHED = {
    "sum": lambda x: x[:, : x.shape[1] // 2] + torch.arange(4.0),
    "pooled": lambda x: F.avg_pool1d(x, 2) * x,
    "chosen": lambda x: torch.where(F.avg_pool1d(x, 2) > 0, torch.arange(4.0), -1.0),
    "scan": lambda x: torch.cumsum(F.avg_pool1d(x, 2), -1),
}


@pytest.mark.parametrize("name", STRETCHED)
def test_a_computed_size_that_is_one_is_stretched(name):
    call = Symbolic(STRETCHED[name], (torch.randn(7, 3),))
    for rows in (7, 2, 31):
        x = torch.randn(rows, 3)
        assert_same(call(x), STRETCHED[name](x))
    assert not call.serves(torch.randn(7, 8))


def test_known_sizes_leave_no_trace():
    x = torch.randn(3, 4)
    assert Symbolic(lambda x: x.softmax(1) + 1, (x,), static=(0,)).units[0].variables == ()
    assert len(Symbolic(lambda x: x.softmax(1) + 1, (x,)).units[0].variables) == 2


def test_a_stage_that_needs_a_number_leaves_the_loops_to_the_library(monkeypatch):
    def asks(unit):
        for item in unit.items:
            max(item.space, default=0) > 3 if hasattr(item, "space") else None
        return unit

    insert_pass(monkeypatch, 0, passes.Pass("asks", passes.LOOPS, asks, "asks for a size"))
    call = check_sizes(lambda x, y: ((x * y).softmax(0), x.shape[0], torch.cat([x, y])[1:]), pair)
    assert not any(call.kernels) and call.externs
