"""Conversions of weights and of their gradients: one kernel for those that are alike."""

import dynfix
import pytest
import torch
from dynfix.lowering import pipeline
from dynfix.lowering.loops.conversions import gather_conversions
from dynfix.lowering.loops.ir import Batch, Group
from dynfix.lowering.loops.storage import bytes_of, lifetimes
from pass_list import wrap_pass

OPTIONS = {"target": "triton", "strict": True}


@pytest.fixture
def units(monkeypatch):
    """Each unit before its conversions were gathered, and what became of it."""
    before, found = [], []

    def gather(unit):
        before.append(unit)
        return gather_conversions(unit)

    def finish(unit, target, options):
        found.append((before[-1], unit))
        return original(unit, target, options)

    original = pipeline.finish
    wrap_pass(monkeypatch, "conversions", lambda _: gather)
    monkeypatch.setattr(pipeline, "finish", finish)
    return found


def peak(unit):
    """Bytes that are live at once at most; inputs of a backward die."""
    begin, end = lifetimes(unit)
    begin |= dict.fromkeys(unit.given_buffers() & begin.keys(), 0)
    end |= dict.fromkeys(unit.outputs_buffers(), len(unit.items))
    own = begin if unit.consumes else begin.keys() - unit.given_buffers()
    return max(
        sum(bytes_of(buffer) for buffer in own if begin[buffer] <= k <= end[buffer])
        for k in range(len(unit.items))
    )


def kernels(unit):
    return [item for item in unit.items if isinstance(item, Group | Batch)]


def trained(model, x):
    with torch.autocast("cpu", torch.bfloat16):
        loss = model(x).float().square().mean()
    loss.backward()
    grads = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    return loss.detach(), *grads


def layers(count, width=24):
    torch.manual_seed(0)
    parts = (torch.nn.Linear(width, width, bias=False) for _ in range(count))
    return torch.nn.Sequential(*(layer for part in parts for layer in (part, torch.nn.ReLU())))


def test_of_weights_and_gradients(units):
    model, x = layers(6), torch.randn(400, 24)
    call = dynfix.compile(model, options=OPTIONS)
    for _ in range(3):
        x = torch.randn(400, 24)
        for found, expected in zip(trained(call, x), trained(model, x), strict=True):
            torch.testing.assert_close(found, expected, rtol=2e-2, atol=1e-4)
    forward, backward = units
    for before, after in units:
        assert peak(after) <= peak(before)
    # each layer's activation, the batch of weights, the input and the loss
    assert len(kernels(forward[1])) <= 6 + 3
    assert sum(isinstance(kernel, Batch) for kernel in kernels(forward[1])) == 1
    assert sum(isinstance(kernel, Batch) for kernel in kernels(backward[1])) == 1


def test_what_would_take_more_memory_stays(units):
    """Of inputs that products alone read, in a graph that holds nothing else."""

    def fn(x, weights):
        for weight in weights:
            x = torch.mm(x, weight.bfloat16())
        return x

    call = dynfix.compile(fn, fullgraph=True, options=OPTIONS)
    for _ in range(3):
        x, weights = torch.randn(2, 64).bfloat16(), [torch.randn(64, 64) for _ in range(5)]
        torch.testing.assert_close(call(x, weights), fn(x, weights))
    ((before, after),) = units
    assert peak(after) == peak(before)


def test_weights_that_are_written_are_converted_as_they_were(units):
    def fn(x, weights):
        for weight in weights:
            x = torch.mm(x, weight.bfloat16())
            weight.mul_(0.5)
        return x, [weight.bfloat16() for weight in weights]

    call = dynfix.compile(fn, fullgraph=True, options=OPTIONS)
    for _ in range(3):
        x, weights = torch.randn(3, 16).bfloat16(), [torch.randn(16, 16) for _ in range(4)]
        ours, theirs = [w.clone() for w in weights], [w.clone() for w in weights]
        (y, halves), (expected, expected_halves) = call(x, ours), fn(x, theirs)
        torch.testing.assert_close(y, expected)
        for found, wanted in zip([*ours, *halves], [*theirs, *expected_halves], strict=True):
            torch.testing.assert_close(found, wanted, rtol=0, atol=0)
