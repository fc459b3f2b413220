"""Programs that differentiate, compared with eager: results, gradients, parameters and optimizers' states."""

import types

import dynfix
import pytest
import torch
from torch import nn

BACKENDS = ("eager", "native")


def seen(value):
    """What can be seen of a result: tensors with their description and gradient."""
    if isinstance(value, list | tuple):
        return [seen(part) for part in value]
    if not isinstance(value, torch.Tensor):
        return value
    facts = value.shape, value.stride(), value.dtype, value.requires_grad, value.is_leaf
    gradient = seen(value.grad) if value.is_leaf and value.grad is not None else None
    return types.SimpleNamespace(facts=facts, values=value.detach().clone(), gradient=gradient)


def assert_same(got, want):
    if isinstance(want, list):
        assert len(got) == len(want)
        for pair in zip(got, want, strict=True):
            assert_same(*pair)
    elif isinstance(want, types.SimpleNamespace):
        assert got.facts == want.facts
        torch.testing.assert_close(got.values, want.values, rtol=1e-4, atol=1e-5)
        assert (got.gradient is None) == (want.gradient is None)
        if want.gradient is not None:
            assert_same(got.gradient, want.gradient)
    elif isinstance(want, float):
        assert got == pytest.approx(want, rel=1e-4)
    else:
        assert got == want


def trace_of(make, compiled, calls):
    """Results, and what is watched, of each call. `make()` gives the function, what to watch and
    the arguments of call number i."""
    torch.manual_seed(0)
    fn, watched, arguments = make()
    fn, found = compiled(fn), []
    for i in range(calls):
        result = fn(*arguments(i))
        found.append([seen(result), seen(list(watched()))])
    return found


def check(make, backend, calls=4, fullgraph=True):
    want = trace_of(make, lambda fn: fn, calls)
    got = trace_of(make, lambda fn: dynfix.compile(fn, backend=backend, fullgraph=fullgraph), calls)
    assert_same(got, want)


def batch(i):
    return torch.arange(20.0).view(5, 4) / (i + 2), torch.arange(5) % 3


def net():
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))


def state_of(model, *optimizers):
    def watched():
        kept = (each.values() for optimizer in optimizers for each in optimizer.state.values())
        held = [value for values in kept for value in values if isinstance(value, torch.Tensor)]
        return [*model.parameters(), *model.buffers(), *held]

    return watched
