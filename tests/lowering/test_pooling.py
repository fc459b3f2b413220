"""Pooling and its gradients, against the library."""

import pytest
import torch
import torch.nn.functional as F

from .harness import check, check_gradients, compiled, units

WINDOWS = [
    {"kernel_size": 3, "stride": 2, "padding": 1},
    {"kernel_size": 2},
    {"kernel_size": (3, 2), "stride": (2, 1), "ceil_mode": True},
]


def planes(*shape):
    return torch.randn(shape)


@pytest.mark.parametrize("more", WINDOWS)
def test_max_pool2d(more):
    def pooled(x):
        found = F.max_pool2d(x, return_indices=True, **more)
        return found[0], found[1]

    check(pooled, planes(2, 3, 9, 8))


def test_dilated_windows_and_minus_infinity():
    x = planes(2, 3, 9, 8)
    x[0] = float("-inf")
    x[1, 0, 2, 2] = float("nan")

    def pooled(x):
        found = F.max_pool2d(x, 3, 1, 1, 2, return_indices=True)
        return found[0]

    check(pooled, x)


@pytest.mark.parametrize(
    "more",
    [*WINDOWS, {"kernel_size": 3, "padding": 1, "count_include_pad": False, "ceil_mode": True}],
)
def test_avg_pool2d(more):
    check_gradients(lambda x: F.avg_pool2d(x, **more), planes(2, 3, 9, 8))
    check(lambda x: F.avg_pool2d(x, **more), planes(2, 3, 9, 8).bfloat16())


def test_divisor_override():
    check_gradients(lambda x: F.avg_pool2d(x, 3, 2, 1, divisor_override=5), planes(2, 3, 9, 8))


@pytest.mark.parametrize("memory", [torch.contiguous_format, torch.channels_last])
def test_gradient_of_max_pool2d(memory):
    x = planes(2, 3, 9, 8).to(memory_format=memory)
    check_gradients(lambda x: F.max_pool2d(x, 3, 2, 1), x)


@pytest.mark.parametrize(
    "more",
    [
        {"kernel_size": 2},
        {"kernel_size": 3, "stride": 2},
        {"kernel_size": (3, 2), "stride": (2, 1), "dilation": (1, 2), "ceil_mode": True},
        {"kernel_size": 5, "stride": 1},
        {"kernel_size": 11, "stride": 3},
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_pooling_keeps_a_byte_a_window(more, dtype):
    atol = 0.1 if dtype == torch.bfloat16 else 1e-5  # eager's sums are rounded one by one
    x = planes(2, 3, 18, 14).to(dtype)
    x[0, 0, 2:4] = float("nan")
    x[1, 1] = float("-inf")
    check_gradients(lambda x: F.max_pool2d(x, **more), x, rtol=0.02, atol=atol)
    call = compiled(lambda x: F.max_pool2d(x, **more), x.requires_grad_())
    out, kept = None, []
    with torch.autograd.graph.saved_tensors_hooks(kept.append, lambda tensor: tensor):
        out = call(x)
    assert [(t.dtype, t.shape) for t in kept] == [(torch.int8, out.shape)]


@pytest.mark.parametrize("size", [(4, 3), (9, 8), (1, 1), (11, 2)])
def test_adaptive_avg_pool2d(size):
    check(lambda x: F.adaptive_avg_pool2d(x, size), planes(2, 3, 9, 8))


@pytest.mark.parametrize("size", [(4, 3), (9, 8), (1, 1), (11, 2), (3, 4), (18, 8)])
def test_gradient_of_adaptive_avg_pool2d(size):
    check_gradients(lambda x: F.adaptive_avg_pool2d(x, size), planes(2, 3, 9, 8))
    check_gradients(lambda x: F.adaptive_avg_pool2d(x, size), planes(3, 9, 8))

    def backward(grad, x):
        return torch.ops.aten._adaptive_avg_pool2d_backward(grad, x)

    check(backward, planes(2, 3, *size), planes(2, 3, 9, 8))
    if size in [(1, 1), (3, 4)]:  # eager adds up in bfloat16 where windows overlap
        check(backward, planes(2, 3, *size).bfloat16(), planes(2, 3, 9, 8).bfloat16())


def test_gradient_of_adaptive_avg_pool3d():
    def backward(grad, x):
        return torch.ops.aten._adaptive_avg_pool3d_backward(grad, x)

    check(backward, planes(2, 3, 2, 4, 3), planes(2, 3, 5, 4, 7))


def test_three_dimensions():
    check(lambda x: F.avg_pool3d(x, 2, 1, 1), planes(2, 3, 5, 6, 4))
    check(lambda x: F.max_pool3d(x, 3, 2, 1), planes(2, 3, 5, 6, 4))


def test_windows_of_few_elements_are_no_loop(monkeypatch):
    """They are vectorised along memory, and what follows them is the same loop."""
    made = units(monkeypatch)
    check_gradients(lambda x: F.avg_pool2d(x, 3, 2, 1).sigmoid(), planes(2, 3, 9, 8))
    check_gradients(lambda x: F.adaptive_avg_pool2d(x, (3, 4)).sigmoid(), planes(2, 3, 9, 8))
    nests = [nest for unit in made for item in unit.items for nest in item.nests]
    assert nests and not any(nest.is_reduction for nest in nests)
