"""Matrix products on a GPU with a size that is no multiple of 16 bytes.

The library's fast kernels need such sizes wherever a matrix's rows lie that far apart: a product
with a vocabulary of 50,257 takes several times as long as one of 50,264. Loops make such operands
wider, and cut the result out: they join what makes the operands, and what reads the result.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch
from torch.fx import Node

from .. import sizes
from ..unit import ExternCall, Layout, Ref
from .lowering_context import Context
from .value_builders import const

aten = torch.ops.aten

DEVICES = frozenset({"cuda"})
_PRODUCTS = frozenset({aten.mm.default, aten.addmm.default})
_BYTES = 16
_WORTH = 256  # the product's third size from which a copy of a matrix costs less than it gains


def wants_alignment(node: Node) -> bool:
    """Whether the node is a product of known sizes that is better made wider."""
    made = node.meta.get("val")
    if node.target not in _PRODUCTS or node.kwargs or not isinstance(made, torch.Tensor):
        return False
    if made.device.type not in DEVICES or made.dtype not in (torch.float16, torch.bfloat16):
        return False
    *bias, a, b = (operand.meta["val"] for operand in node.args)  # type: ignore[union-attr]
    shape = (*a.shape, b.shape[1])
    if any(not isinstance(size, int) for size in shape) or any(t.dim() != 1 for t in bias):
        return False
    wide = _aligned(shape, a.stride(), b.stride(), made.itemsize)
    m, k, n = shape
    others = min(k, n), min(m, n), min(m, k)
    pairs = zip(shape, wide, others, strict=True)
    return any(size != up and other >= _WORTH for size, up, other in pairs)


def aligned_product(ctx: Context, node: Node, operands: Sequence[Ref]) -> Ref:
    """The product by a library call of wider operands."""
    *bias, a, b = operands
    shape: Any = (*a.shape, b.shape[1])
    m, k, n = _aligned(shape, a.strides, b.strides, a.dtype.itemsize)
    given = [*(_padded(ctx, each, (n,)) for each in bias)]
    given += [_padded(ctx, a, (m, k)), _padded(ctx, b, (k, n))]
    value = ctx.value_of(node)
    layout = Layout((m, n), (n, 1), value.device)
    made = Ref(ctx.buffer("ext", value.dtype, layout), layout.shape, layout.strides)
    ctx.items.append(ExternCall(node.target, tuple(given), {}, made, ctx.origin))  # type: ignore[arg-type]
    return made if made.shape == tuple(value.shape) else ctx.pointwise(node, made.load)


def _aligned(
    shape: tuple[int, int, int], a: Sequence[Any], b: Sequence[Any], itemsize: int
) -> tuple[int, int, int]:
    """The sizes m, k and n by which an operand's rows, or its columns, or the result's rows lie
    apart, as multiples of 16 bytes; the others as they are. a, b: the operands' strides."""
    m, k, n = shape
    elements = _BYTES // itemsize
    rows, columns = a[1] == 1, b[1] != 1

    def up(size: int, apart: bool) -> int:
        return -(-size // elements) * elements if apart else size

    return up(m, not rows), up(k, rows or columns), up(n, True)


def _padded(ctx: Context, matrix: Ref, shape: tuple[int, ...]) -> Ref:
    """The matrix, or vector, with more rows and columns, in the order that it has; what is added is
    zero, since it may be summed over. Made once for the products that read it."""
    if matrix.shape == shape:
        return matrix
    if len(shape) == 2 and matrix.strides[1] != 1:
        return _turned(_padded(ctx, _turned(matrix), shape[::-1]))
    key = matrix, shape
    if key not in ctx.widened:
        ctx.widened[key] = _widened(ctx, matrix, shape)
    return ctx.widened[key]


def _widened(ctx: Context, matrix: Ref, shape: tuple[int, ...]) -> Ref:
    """The matrix by loops of its own size, which join those that make it, then the zeros."""
    strides = sizes.contiguous_strides(shape)
    layout = Layout(shape, strides, ctx.device_of(matrix))
    made = Ref(ctx.buffer("wide", matrix.dtype, layout), shape, strides)
    ctx.fill(dataclasses.replace(made, shape=matrix.shape), matrix.load)
    zero = const(0, matrix.dtype)
    rest: list[int] = [*shape]
    for axis, size in enumerate(matrix.shape):
        if size != shape[axis]:
            rest[axis] = shape[axis] - size
            start = size * strides[axis]
            ctx.fill(dataclasses.replace(made, shape=tuple(rest), offset=start), lambda at: zero)
            rest[axis] = size
    return made


def _turned(matrix: Ref) -> Ref:
    return dataclasses.replace(matrix, shape=matrix.shape[::-1], strides=matrix.strides[::-1])
