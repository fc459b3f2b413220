"""Programs for a GPU: whose memory a result takes, what is stored in between, which launches there
are."""

import math

import pytest
import torch
from dynfix.lowering import pipeline
from dynfix.runtime.programs.program import Alloc, Extern, KernelStep
from lowering_tests.harness import check

F = torch.nn.functional


@pytest.fixture
def steps(monkeypatch):
    """The steps of the programs that are made."""
    found, emit = [], pipeline.emit

    def watched(*args):
        program = emit(*args)
        found.extend(program.steps)
        return program

    monkeypatch.setattr(pipeline, "emit", watched)
    return found


def taken(steps):
    return [step for step in steps if isinstance(step, Alloc) and step.reuses]


def square():
    return [torch.randn(16, 16) for _ in range(3)]


def test_a_loop_stores_where_it_reads_for_the_last_time(steps):
    check(lambda x, w, v: F.gelu(x @ w) @ v, *square(), rtol=1e-4, atol=1e-4)
    assert len(taken(steps)) == 1


@pytest.mark.parametrize(
    "fn",
    [
        lambda x, w, v: (lambda h: F.gelu(h) @ v + h @ w)(x @ w),
        lambda x, w, v: F.gelu((x @ w).t()).contiguous() @ v,
        lambda x, w, v: (lambda h: (h + h.flip(0)) @ v)(x @ w),
        lambda x, w, v: torch.softmax(x @ w, -1) @ v,
        lambda x, w, v: F.gelu(x) @ w @ v,
        lambda x, w, v: (F.gelu(x @ w), v),
    ],
    ids=["read again", "turned", "read twice", "by rows", "an input", "a result"],
)
def test_nothing_else_is_overwritten(fn, steps):
    check(fn, *square(), rtol=1e-4, atol=1e-4)
    assert not taken(steps)


def test_memory_is_not_held_for_later(steps):
    """What died before something else was allocated is free for that, and for the library."""

    def fn(x, w, v):
        first = F.gelu(x @ w) @ v
        for _ in range(2):
            first = torch.softmax(first @ w, -1)
            first = F.silu((first @ v).view(4, 64)).view(16, 16)
        return first.sum()

    check(fn, *square(), rtol=1e-4, atol=1e-4)
    assert taken(steps)
    for place, step in enumerate(steps):
        if not isinstance(step, Alloc) or not step.reuses:
            continue
        users = [k for k, other in enumerate(steps[:place]) if step.reuses in repr(other)]
        between = steps[users[-1] + 1 : place]
        assert not any(isinstance(other, Alloc | Extern) for other in between)


def test_what_a_window_reads_is_rounded_before_it_is_stored(steps):
    norm = torch.nn.BatchNorm2d(4).eval().to(torch.bfloat16)
    norm.running_mean.normal_()

    def fn(x, mean, var, weight, bias):
        made = F.batch_norm(x, mean, var, weight, bias)
        return F.max_pool2d(F.relu(made), 3, 2, 1)

    with torch.no_grad():
        facts = norm.running_mean, norm.running_var, norm.weight, norm.bias
        check(fn, torch.randn(2, 4, 9, 9).to(torch.bfloat16), *facts, rtol=1e-2, atol=1e-2)
    made = [step for step in steps if isinstance(step, Alloc) and math.prod(step.shape) > 16]
    assert made and all(step.dtype == torch.bfloat16 for step in made)


def test_small_loops_over_inputs_are_one_launch(steps):
    def fn(x, w, one, two, three):
        for variance in (one, two, three):
            x = torch.relu((x @ w) * torch.rsqrt(variance + 1e-5).sqrt().exp())
        return x

    check(fn, *square()[:2], *(torch.rand(16) + 0.5 for _ in range(3)), rtol=1e-4, atol=1e-4)
    assert sum(isinstance(step, KernelStep) for step in steps) == 4


def test_an_activation_that_the_library_applies(steps, monkeypatch):
    monkeypatch.setattr("dynfix.lowering.graph.epilogues.DEVICES", frozenset({"cpu"}))

    def fn(x, w, bias, v):
        return F.linear(F.relu(F.linear(x, w, bias)), v, bias)

    tensors = [torch.randn(16, 16).to(torch.bfloat16) for _ in range(3)]
    tensors[0][3, 0] = torch.nan
    x, w, v = tensors
    check(fn, x, w, v[0].clone(), v)
    assert [step.target for step in steps if isinstance(step, Extern)] == [
        torch._addmm_activation,
        torch.addmm,
    ]
    assert not any(isinstance(step, KernelStep) for step in steps)
