"""Alike kernels in one launch."""

from itertools import chain

import dynfix
import pytest
import torch
from dynfix.lowering.targets.triton import triton_build

OPTIONS = {"target": "triton", "strict": True}


@pytest.fixture
def launches(monkeypatch):
    """Kernels of each launch, by its group's name."""
    found = []

    def load(groups, *args):
        found.extend(len(group.variants) for group in groups)
        return original(groups, *args)

    original = triton_build.load_groups
    monkeypatch.setattr(triton_build, "load_groups", load)
    return found


def step(params, grads, first, second):
    torch._foreach_lerp_(first, grads, 0.1)
    torch._foreach_mul_(second, 0.999)
    torch._foreach_addcmul_(second, grads, grads, 0.001)
    root = torch._foreach_sqrt(second)
    torch._foreach_add_(root, 1e-8)
    torch._foreach_addcdiv_(params, first, root, -1e-3)


def lists(shapes):
    return [[torch.rand(shape) + 0.1 for shape in shapes] for _ in range(4)]


@pytest.mark.parametrize("count", [3, 70])
def test_an_optimizers_step(launches, count):
    shapes = [(7 * k % 50 + 2, 16 if k % 2 else 3) for k in range(count)]
    call = dynfix.compile(step, fullgraph=True, options=OPTIONS)
    for _ in range(3):
        given = lists(shapes)
        expected = [[t.clone() for t in each] for each in given]
        with torch.no_grad():
            call(*given)
            step(*expected)
        for one, two in zip(chain(*given), chain(*expected), strict=True):
            torch.testing.assert_close(one, two)
    assert launches and sum(launches) <= 2 + count // 15


def test_rows_of_the_same_shape(launches):
    def fn(xs):
        return [torch.softmax(x, -1) for x in xs]

    call = dynfix.compile(fn, fullgraph=True, options=OPTIONS)
    for _ in range(3):
        xs = [torch.randn(60, 40) for _ in range(4)]
        for one, two in zip(call(xs), fn(xs), strict=True):
            torch.testing.assert_close(one, two)
    assert launches == [1]


def test_rows_of_a_length_that_only_a_call_knows():
    def fn(xs):
        return [torch.softmax(x, -1) for x in xs]

    call = dynfix.compile(fn, fullgraph=True, dynamic=True, options=OPTIONS)
    for length in (30, 40, 64, 51):
        xs = [torch.randn(60, length) for _ in range(3)]
        for one, two in zip(call(xs), fn(xs), strict=True):
            torch.testing.assert_close(one, two)


@pytest.mark.parametrize("returned", [3, 1])
def test_alike_kernels_that_need_each_other_run_in_turn(launches, returned):
    def fn(x):
        first = torch.softmax(x, -1)
        second = torch.softmax(first.t().contiguous().view(40, 40), -1)
        return (torch.softmax(second.t().contiguous().view(40, 40), -1), second, first)[:returned]

    call = dynfix.compile(fn, fullgraph=True, options=OPTIONS)
    for _ in range(3):
        x = torch.randn(40, 40)
        for one, two in zip(call(x), fn(x), strict=True):
            torch.testing.assert_close(one, two)


def test_shifts_of_shifts_that_nobody_else_reads():
    def shifted(x, angles):
        one, two = x.chunk(2, -1)
        return x * angles.cos() + torch.cat([-two, one], -1) * angles.sin()

    def fn(x, angles):
        return shifted(shifted(shifted(x, angles), angles), angles)

    call = dynfix.compile(fn, fullgraph=True, options=OPTIONS)
    for _ in range(3):
        x, angles = torch.randn(5, 7, 8), torch.randn(7, 8)
        torch.testing.assert_close(call(x, angles), fn(x, angles))
