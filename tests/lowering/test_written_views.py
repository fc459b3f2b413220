"""Writes through views that functionalisation gives back by arithmetic."""

import dynfix
import pytest
import torch


def expand_as(x):
    return x.expand_as(x)


def broadcast(x):
    return torch.broadcast_to(x, x.shape)


def together(x):
    return torch.broadcast_tensors(x, x[0])[0]


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("view", [expand_as, broadcast, together])
@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.bfloat16, torch.float32])
def test_what_stretches_nothing_is_written_as_it_is(view, dtype, dynamic):
    def fn(x):
        y = view(x)
        y[1:] = ~y[1:] if dtype == torch.bool else y[1:] * 3
        if dtype.is_floating_point:
            y.exp_()
        return y.sum()

    call = dynfix.compile(fn, dynamic=dynamic)
    for rows in (3, 7, 7, 5):
        x = (torch.rand(rows, 4) * 9).to(dtype)
        x[0, 0] = 0
        other = x.clone()
        torch.testing.assert_close(call(x), fn(other))
        torch.testing.assert_close(x, other)


def test_gradients_of_stretched_results():
    def fn(x):
        return torch.msort(x).expand(3, *x.shape)

    call = dynfix.compile(fn)
    for _ in range(3):
        x, seed = torch.randn(4, 5, requires_grad=True), torch.randn(3, 4, 5)
        (found,), (expected,) = (torch.autograd.grad(f(x), x, seed) for f in (call, fn))
        torch.testing.assert_close(found, expected)
