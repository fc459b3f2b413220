"""Gradients of weights that are larger than what they are made of come last."""

import torch
from dynfix.lowering.loops.kernel_graph import ExternCall

from .harness import check_gradients, units

MM = torch.ops.aten.mm.default


def places(unit):
    """Of each product with a result as large as a weight its place, and how many items there are."""
    large = [
        place
        for place, item in enumerate(unit.items)
        if isinstance(item, ExternCall) and item.target is MM and item.result.numel >= 1 << 18
    ]
    return large, len(unit.items)


def layers(x, u, v, w):
    return torch.tanh(torch.tanh(torch.tanh(x @ u) @ v) @ w)


def weights(count, dtype=torch.float32):
    return [(torch.randn(512, 512) / 23).to(dtype) for _ in range(count)]


def test_few_rows(monkeypatch):
    found = units(monkeypatch)
    check_gradients(layers, torch.randn(4, 512), *weights(3))
    large, count = places(found[-1])
    assert large == list(range(count - 3, count))


def test_converted(monkeypatch):
    """With what makes them another type."""

    def fn(x, u, v, w):
        return layers(x.double(), u.double(), v.double(), w.double())

    found = units(monkeypatch)
    check_gradients(fn, torch.randn(4, 512), *weights(3))
    large, count = places(found[-1])
    assert large == list(range(count - 4, count - 1))


def test_many_rows(monkeypatch):
    found = units(monkeypatch)
    check_gradients(layers, torch.randn(600, 512), *weights(3), rtol=1e-3, atol=1e-4)
    large, count = places(found[-1])
    assert large[0] < count - 3


def test_read_again(monkeypatch):
    def fn(x, w, v):
        made = x.mT @ x
        return (made @ w).tanh() @ v, made

    found = units(monkeypatch)
    check_gradients(fn, torch.randn(4, 512), *weights(2), rtol=1e-3, atol=1e-3)
    large, _ = places(found[0])
    assert large[0] == 0
