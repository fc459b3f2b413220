"""Operators of prims, and ATen's own backward operators, called by their names."""

import torch

from .harness import check, compiled

prims, aten = torch.ops.prims, torch.ops.aten


def test_iota():
    def counted(x):
        return x + prims.iota(
            4, start=1, step=2, dtype=torch.int64, device=torch.device("cpu"), requires_grad=False
        )

    check(counted, torch.randn(4))


def test_views():
    check(lambda x: prims.transpose(x, [1, 0]) + 1, torch.randn(3, 4))
    check(lambda x: prims.broadcast_in_dim(x, [3, 4], [1]) * 2, torch.randn(4))


def test_functions():
    check(lambda x: prims.mul(prims.sin(x), prims.sum(x, [0])), torch.randn(4))


def test_convolution_backward():
    args = torch.randn(2, 4, 6, 6), torch.randn(2, 3, 6, 6), torch.randn(4, 3, 3, 3)

    def gradients(grad, x, weight):
        given = [4], [1, 1], [1, 1], [1, 1], False, [0, 0], 1
        found = aten.convolution_backward(grad, x, weight, *given, [True, True, False])
        return found[0], found[1]

    call = compiled(gradients, *args)
    for _ in range(3):
        torch.testing.assert_close(call(*args), gradients(*args))
