"""Triton kernels that a call launches: nodes of its graph, interpreted on the host."""

import os
from unittest import mock

import dynfix
import pytest
import torch

triton = pytest.importorskip("triton")
tl = triton.language

with mock.patch.dict(os.environ, TRITON_INTERPRET="1"):

    @triton.jit
    def add_kernel(x, y, out, n, BLOCK: tl.constexpr):
        at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        inside = at < n
        total = tl.load(x + at, inside) + tl.load(y + at, inside)
        tl.store(out + at, total, inside)

    @triton.jit
    def scale_kernel(x, factor, n, BLOCK: tl.constexpr):
        at = x + tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        inside = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK) < n
        tl.store(at, tl.load(at, inside) * factor, inside)


def add(x, y):
    out = torch.zeros_like(x)
    add_kernel[(triton.cdiv(x.numel(), 8),)](x, y, out, x.numel(), 8)
    return out


def pointwise_around(x, factor):
    return add(x * 2, x.sin()).relu() + 1


def grid_of_meta(x, factor):
    out, other = torch.zeros_like(x), torch.zeros_like(x)

    def grid(meta):
        return (triton.cdiv(meta["n"], meta["BLOCK"]),)

    add_kernel[grid](x, x, out, n=x.numel(), BLOCK=16)
    return out * 2 + 1, other - 1


def writes_what_it_is_given(x, factor):
    y = x + 1
    scale_kernel[(4,)](y, factor, y.numel(), BLOCK=8)
    scale_kernel[(4,)](x, 0.5, x.numel(), 8)
    return y.exp(), x * 2


def by_a_number_of_the_data(x, factor):
    scale_kernel[(4,)](x, (x > 0).sum().item() / 4, x.numel(), 8)
    return x + 1


@torch.library.triton_op("dynfix_tests::added", mutates_args={})
def added(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    kernel = torch.library.wrap_triton(add_kernel)
    kernel[(triton.cdiv(x.numel(), 8),)](x, y, out, x.numel(), 8)
    return out


def by_operator(x, factor):
    return added(x * 2, x.cos()).tanh() * 3


PROGRAMS = [
    pointwise_around,
    grid_of_meta,
    writes_what_it_is_given,
    by_a_number_of_the_data,
    by_operator,
]


@pytest.mark.parametrize("program", PROGRAMS)
def test_one_graph(program):
    compiled = dynfix.compile(program, fullgraph=True)
    torch.manual_seed(0)
    for size, factor in ((20, 2.0), (20, 3.0), (20, 4.0), (26, 2.0), (31, 5.0)):
        x = torch.randn(size)
        given = x.clone(), x.clone()
        expected, found = program(given[0], factor), compiled(given[1], factor)
        torch.testing.assert_close(found, expected)
        torch.testing.assert_close(*given)


def test_one_operand_learns():
    """A kernel has no derivative: in eager neither."""
    w = torch.ones(12, requires_grad=True)
    compiled = dynfix.compile(lambda x: add(x, x * 2).sin() * w, fullgraph=True)
    for _ in range(3):
        w.grad, x = None, torch.randn(12)
        compiled(x).sum().backward()
        torch.testing.assert_close(w.grad, (x * 3).sin())
