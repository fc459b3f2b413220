"""Sums over columns beside sums over rows of the same operands."""

import dynfix
import dynfix.lowering.loops.columns as columns
import pytest
import torch
from dynfix.lowering import pipeline
from dynfix.lowering.loops.ir import PARTIAL, Batch, Group
from torch.nn import functional as F

from .harness import at_threads, check, check_gradients, compiled


@pytest.fixture
def kernels(monkeypatch):
    """Of every program that is made, the kernels."""
    found = []

    def finish(unit, target, options):
        found.append([item for item in unit.items if isinstance(item, Group | Batch)])
        return original(unit, target, options)

    original = pipeline.finish
    monkeypatch.setattr(pipeline, "finish", finish)
    return found


def layer_norm(x, weight, bias):
    return F.layer_norm(x, x.shape[-1:], weight, bias, 0.1)


def rms_norm(x, weight):
    return F.rms_norm(x, x.shape[-1:], weight, 0.1)


@pytest.mark.covering
@pytest.mark.parametrize("width", [1, 7, 40, 96])
@pytest.mark.parametrize("rows", [1, 3, 17, 33, 130])
def test_norms(rows, width):
    x, weight, bias = torch.randn(rows, width), torch.randn(width), torch.randn(width)
    check_gradients(layer_norm, x, weight, bias, atol=1e-4)  # of one column: rounding alone
    check_gradients(rms_norm, x, weight, atol=1e-4)


def test_the_backward_of_a_norm_is_two_kernels(kernels):
    x, weight, bias = torch.randn(8, 32, 96), torch.randn(96), torch.randn(96)
    check_gradients(layer_norm, x, weight, bias)
    assert [len(made) for made in kernels] == [1, 2]
    (first, _) = kernels[1]
    sums = [s for nest in first.nests for s in nest.stores if s.combine == PARTIAL]
    assert len(sums) == 2


def test_operands_that_are_not_contiguous():
    x = torch.randn(64, 100)[:, ::2].t()
    check_gradients(layer_norm, x, torch.randn(64), torch.randn(64))
    check(lambda x: (x.sum(0), x.sum(1), (x * x).sum(0)), torch.randn(70, 200)[:, 3:99])


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: ((x * x).sum(0), (x + 1).sum(1)),
        lambda x: ((x * x).sum(0), x.sum(0)),
    ],
    ids=["beside rows", "alone"],
)
def test_sums_are_the_same_for_every_number_of_threads(fn):
    x = torch.randn(2000, 130)
    call = compiled(fn, x)
    results = at_threads(call, x)
    assert all(
        torch.equal(a, b) for other in results[1:] for a, b in zip(results[0], other, strict=True)
    )


def test_few_columns_of_many_rows_are_cut_along_the_rows(kernels):
    x = torch.rand(5003, 33) + 1
    call = check(lambda x: ((x - 1).sum(0) * 2, x.sum(0)), x, rtol=1e-5, atol=1e-3)
    parts = [s.combine for nest in kernels[0][0].nests for s in nest.stores]
    assert parts == [PARTIAL, PARTIAL]
    exact = x.double().sum(0)
    own, eager = ((made.double() - exact).abs().max() for made in (call(x)[1], x.sum(0)))
    assert own <= 2 * eager


def test_a_whole_sum_does_not_take_the_parts_along():
    x = torch.randn(64, 70)
    check(lambda x: (x.sum(), x.sum(0), x.sum(1), x.amax(0), x.argmin()), x, rtol=1e-5, atol=1e-4)


def test_many_columns_are_left_alone(kernels):
    x = torch.randn(20, columns.WIDEST + 1)
    check(lambda x: (x.sum(0), x.sum(1)), x, rtol=1e-5, atol=1e-4)
    assert not any(
        s.combine for made in kernels for group in made for nest in group.nests for s in nest.stores
    )


def test_sizes_that_only_a_call_knows():
    def fn(x):
        return x.sum(0), (x * x).sum(1), (x + 1).sum(0)

    call = dynfix.compile(fn, dynamic=True)
    for rows in (40, 17, 3, 64, 129, 33):
        x = torch.randn(rows, 50)
        for found, expected in zip(call(x), fn(x), strict=True):
            torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("rows", [96, 2048])
def test_columns_that_a_remainder_of_theirs_reads(rows):
    """The loop over columns becomes two, without a division."""
    check(
        lambda x, y: (x * y[:, None]).sum(0),
        torch.randn(rows, 64, 48),
        torch.randn(rows, 48),
        rtol=1e-4,
        atol=1e-4,
    )


def test_sums_over_several_axes_round_as_little_as_eagers():
    def fn(rows, places):
        return rows[places].sum((0, 1, 2))

    compiled = dynfix.compile(fn, dynamic=False, options={"strict": True})
    for turn in range(3):
        torch.manual_seed(turn)
        rows, places = torch.rand(7, 17, 3), torch.randint(7, (49, 7, 17))
        exact = fn(rows.double(), places)
        errors = [(call(rows, places) - exact).abs().max() for call in (compiled, fn)]
        assert errors[0] <= 2 * errors[1] + 1e-7 * exact.max()


@pytest.mark.filterwarnings("error::dynfix.DynfixWarning")
def test_rows_that_are_always_few():
    def fn(x, weight):
        return layer_norm(x * 2 if x.shape[1] < 9 else x, weight, None)

    compiled = dynfix.compile(fn, options={"strict": True, "verify_ir": True})
    for length in (7, 6, 5, 8, 7, 6, 5):
        given, gradient = torch.randn(3, length, 16), torch.randn(3, length, 16)
        seen = []
        for call in (compiled, fn):
            x, weight = given.clone().requires_grad_(), torch.ones(16, requires_grad=True)
            result = call(x, weight)
            result.backward(gradient)
            seen.append((result, x.grad, weight.grad))
        torch.testing.assert_close(*seen)
    assert sum(entry.hits for entry in compiled._dynfix_entry._dispatcher.entries) >= 3
