"""A subset of the C++ target's operator tests, in the interpreter: every operator in float32, half
precision where it differs."""

import pytest
import torch
from lowering_tests import test_pointwise as pointwise
from lowering_tests import test_reductions as reductions
from lowering_tests.harness import check_gradients

F32, BF16, HALF = torch.float32, torch.bfloat16, torch.float16


def mostly_slow(*dtypes):
    """The first dtype in every run, the others in slow ones."""
    return [dtypes[0], *(pytest.param(dtype, marks=pytest.mark.slow) for dtype in dtypes[1:])]


@pytest.mark.parametrize("dtype", mostly_slow(BF16, F32, torch.float64, HALF), ids=str)
def test_float_unary(dtype):
    pointwise.test_float_unary(dtype, None)


@pytest.mark.parametrize("dtype", mostly_slow(F32, BF16), ids=str)
def test_activations(dtype):
    pointwise.test_activations(dtype)


@pytest.mark.parametrize("dtype", mostly_slow(F32, BF16), ids=str)
def test_float_binary(dtype):
    pointwise.test_float_binary(dtype)


@pytest.mark.parametrize("number", range(len(pointwise.NUMERIC)))
def test_extrema_that_leave_nan_out(number, monkeypatch):
    pointwise.test_extrema_that_leave_nan_out_are_loops(pointwise.NUMERIC[number], monkeypatch)


@pytest.mark.parametrize("dtype", mostly_slow(F32, HALF), ids=str)
def test_scalars(dtype):
    pointwise.test_scalars(dtype)


@pytest.mark.parametrize("dtype", [torch.int64, torch.uint8], ids=str)
def test_integers(dtype):
    pointwise.test_integers_wrap_and_divide_as_eager(dtype)


@pytest.mark.parametrize("dtype", [F32, BF16, torch.int32, torch.bool], ids=str)
def test_casts(dtype):
    pointwise.test_casts(dtype)


@pytest.mark.parametrize("shape", [(7, 33), (3, 4, 5), (40, 1)], ids=str)
@pytest.mark.parametrize(
    "dtype", mostly_slow(BF16, F32, torch.int64, torch.uint8, torch.bool), ids=str
)
def test_reductions(dtype, shape):
    reductions.test_reductions(dtype, shape, None)


def test_nan_wins():
    reductions.test_nan_wins_and_the_first_position_of_ties_counts()


def test_variance_far_from_zero():
    reductions.test_variance_of_numbers_far_from_zero()


def test_softmax_of_extreme_rows():
    reductions.test_softmax_of_extreme_rows()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("windows", [(2,), (3, 2), (5, 3), ((3, 2), (2, 1), 0, (2, 3), True)])
def test_gradient_of_max_pool2d(windows, dtype):
    x = torch.randn(2, 3, 13, 12).to(dtype)
    x[0, 0, 1:5], x[1, :, :6] = float("nan"), float("-inf")
    atol = 0.1 if dtype == torch.bfloat16 else 1e-5  # eager's sums are rounded one by one
    check_gradients(lambda x: torch.max_pool2d(x, *windows), x, rtol=0.02, atol=atol)
