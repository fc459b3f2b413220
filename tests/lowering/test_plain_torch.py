"""Kernels as plain torch, against eager."""

import pytest
import torch
import torch.nn.functional as F
from dynfix.lowering import pipeline
from dynfix.lowering.targets.plain_torch import PLAIN_TORCH
from dynfix.runtime import options

from .harness import CHECKED, check, check_gradients, compiled

X, BOUND = torch.randn(6, 9), torch.tensor([[1.0], [float("nan")], [0.5], [0.0], [-1.0], [3.0]])

PROGRAMS = {
    "pointwise": lambda x: (
        torch.where(x > 0.1, x.exp() + 1, x // 0.3).clamp(max=2) * x.t()[:6, :6].sum()
    ),
    "softmax": lambda x: (x.softmax(-1), x.logsumexp(0), x.argmax(1)),
    "norms": lambda x: (F.layer_norm(x, (9,)), x.var(0), x.prod(1), x.amax(), (x > 0).any(0)),
    "halves": lambda x: (x.bfloat16() * 3).sum(-1) + x.half().tanh().amin(-1),
    "integers": lambda x: ((x * 40).long() // 7 % 5 << 2) ^ (x * 9).long(),
    "padded": lambda x: F.pad(x, (2, 1, 1, 0)) + 1,
    "joined": lambda x: torch.cat([x, x.flip(1) * 2]).t().contiguous(),
    "picked": lambda x: x[(x[:, 0] > 0).long()] + x.gather(1, x.argsort(1)) * 2,
    "added": lambda x: torch.zeros(3, 9).index_add(0, torch.arange(6) % 3, x * 2),
    "running": lambda x: (x * 2).cumsum(1) + x.cumsum(0),
    "windows": lambda x: F.max_pool2d(x[None], 3, 2) + F.avg_pool2d(x[None] * 2, 3, 2),
    "nan": lambda x: torch.maximum(x, BOUND),
}


@pytest.fixture
def own_targets(monkeypatch):
    monkeypatch.setattr(pipeline, "TARGETS", [*pipeline.TARGETS])
    monkeypatch.setattr(options, "TARGET_NAMES", {*options.TARGET_NAMES})
    monkeypatch.setattr(pipeline, "TARGET_NAMES", options.TARGET_NAMES)


@pytest.fixture
def chosen(own_targets):
    pipeline.register(PLAIN_TORCH)
    return CHECKED.replace(target="torch")


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
@pytest.mark.parametrize("x", [X, X.t().contiguous().t()], ids=["dense", "transposed"])
def test_program(program, x, chosen):
    check(program, x, options=chosen)


@pytest.mark.parametrize("shape", [(0, 9), (1, 1), (1, 9)], ids=str)
def test_few_elements(shape, chosen):
    check(lambda x: ((x + 1).sum(0), x.exp() * 2), torch.randn(shape), options=chosen)


def test_gradients(chosen):
    check_gradients(lambda x, w: F.gelu(F.layer_norm(x, (9,), w)), X, torch.rand(9), options=chosen)


def test_a_position_out_of_range_raises(chosen):
    places = torch.tensor([0, 5])
    call = compiled(lambda x, i: x[i] + 1, X, places, options=chosen)
    with pytest.raises(IndexError):
        call(X, places + 1)
