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

from ..loops import sizes
from ..loops.ir import Nest
from ..loops.kernel_graph import ExternCall, Layout, Ref
from ..loops.polynomials import Size, hint, is_known
from .lowering_context import LoweringContext
from .value_builders import const

aten = torch.ops.aten

DEVICES = frozenset({"cuda"})
_PRODUCTS = frozenset({aten.mm.default, aten.addmm.default})
_BYTES = 16
_PART = 1 << 25  # bytes of a wide result that may stand beside its copy
_TILE = 256  # rows from which the library's kernels lose little by it
_MORE = 1.25  # times as many elements of a batched product may be made
_WORTH = 256  # the product's third size from which a copy of a matrix costs less than it gains


def wants_alignment(node: Node) -> bool:
    """Whether the node is a product that is better made wider, by sizes that are known."""
    made = node.meta.get("val")
    if node.target not in _PRODUCTS or node.kwargs or not isinstance(made, torch.Tensor):
        return False
    if made.device.type not in DEVICES or made.dtype not in (torch.float16, torch.bfloat16):
        return False
    *bias, a, b = (operand.meta["val"] for operand in node.args)  # type: ignore[union-attr]
    shape = (*a.shape, b.shape[1])
    wide = _aligned(shape, a.stride(), b.stride(), made.itemsize)
    if wide is None or any(t.dim() != 1 for t in bias):
        return False
    m, k, n = map(_hint, shape)
    others = min(k, n), min(m, n), min(m, k)
    pairs = zip(shape, wide, others, strict=True)
    return any(size is not up and other >= _WORTH for size, up, other in pairs)


def _hint(size: Any) -> int:
    """The size in the recorded call."""
    made: int = size if isinstance(size, int) else size.node.hint
    return made


def aligned_product(ctx: LoweringContext, node: Node, operands: Sequence[Ref]) -> Ref:
    """The product by a library call of wider operands."""
    *bias, a, b = operands
    shape: Any = (*a.shape, b.shape[1])
    wide = _aligned(shape, a.strides, b.strides, a.dtype.itemsize)
    assert wide is not None
    m, k, n = wide
    value = ctx.value_of(node)
    rows = max(_PART // (n * value.itemsize) // _TILE * _TILE, _TILE)
    if (m, k) == shape[:2] and n != shape[2] and rows < hint(m) and _leaves(node):
        return _in_parts(ctx, node, operands, n, rows)
    given = [*(_padded(ctx, each, (n,)) for each in bias)]
    given += [_padded(ctx, a, (m, k)), _padded(ctx, b, (k, n))]
    made = _product(ctx, node, given, (m, n))
    return made if made.shape == tuple(value.shape) else ctx.pointwise(node, made.load)


def with_room(ctx: LoweringContext, node: Node, operands: Sequence[Any]) -> Ref | None:
    """A batched product whose operands, where loops make them, lie in wider matrices, so that it
    does as well; what it makes of the room between is not read. None for any other call."""
    shape = _roomy(node)
    if shape is None or not all(isinstance(each, Ref) for each in operands):
        return None
    a, b = operands
    batch, (m, k, n) = a.shape[0], shape
    wide_a, wide_b = _roomier(ctx, a, (batch, m, k)), _roomier(ctx, b, (batch, k, n))
    if wide_a is None or wide_b is None:
        return None
    value = ctx.value_of(node)
    layout = Layout((batch, m, n), (m * n, n, 1), value.device)
    made = Ref(ctx.buffer("ext", value.dtype, layout), layout.shape, layout.strides)
    ctx.items.append(ExternCall(node.target, (wide_a, wide_b), {}, made, ctx.origin))  # type: ignore[arg-type]
    return ctx.pointwise(node, made.load)


def _roomy(node: Node) -> tuple[int, int, int] | None:
    """The wider sizes of a batched product that is better made so: nothing is summed over what is
    added, and loops read the result."""
    if node.target is not aten.bmm.default or _leaves(node) or _feeds_calls(node):
        return None
    a, b = (operand.meta["val"] for operand in node.args)  # type: ignore[union-attr]
    shape = (*a.shape[1:], b.shape[2])
    narrow = a.dtype in (torch.float16, torch.bfloat16) and a.device.type in DEVICES
    if not narrow or not all(isinstance(size, int) for size in (*a.shape, *b.shape)):
        return None
    wide = _aligned(shape, a.stride()[1:], b.stride()[1:], a.itemsize)
    assert wide is not None
    m, k, n = wide
    worth = (m, n) != (shape[0], shape[2]) and m * n <= _MORE * shape[0] * shape[2]
    return (m, k, n) if worth and k == shape[1] else None


def _feeds_calls(node: Node) -> bool:
    """Whether a product reads the node's result, or a view of it, as it lies."""
    for user in node.users:
        target = user.target
        view = isinstance(target, torch._ops.OpOverload) and target.is_view
        if target in _PRODUCTS or target is aten.bmm.default or (view and _feeds_calls(user)):
            return True
    return False


def _roomier(ctx: LoweringContext, operand: Ref, shape: tuple[int, int, int]) -> Ref | None:
    """The matrices with room behind each; None where that would be a copy."""
    if operand.shape == shape:
        return operand
    nests = (item for item in ctx.items if isinstance(item, Nest))
    made_here = (store.buffer for nest in nests for store in nest.stores)
    if operand.buffer not in made_here:
        return None
    key = operand, shape
    if key not in ctx.widened:
        _, rows, columns = shape
        turned = operand.strides[2] != 1
        strides = (rows * columns, 1, rows) if turned else (rows * columns, columns, 1)
        layout = Layout(shape, strides, ctx.device_of(operand))
        made = Ref(ctx.buffer("wide", operand.dtype, layout), shape, strides)
        ctx.fill(dataclasses.replace(made, shape=operand.shape), operand.load)
        ctx.widened[key] = made
    return ctx.widened[key]


def _product(ctx: LoweringContext, node: Node, given: Sequence[Ref], shape: tuple[int, int]) -> Ref:
    value = ctx.value_of(node)
    layout = Layout(shape, (shape[1], 1), value.device)
    made = Ref(ctx.buffer("ext", value.dtype, layout), layout.shape, layout.strides)
    ctx.items.append(ExternCall(node.target, tuple(given), {}, made, ctx.origin))  # type: ignore[arg-type]
    return made


def _leaves(node: Node) -> bool:
    """Whether the graph gives the node's result away, and nothing else reads it: it then has to be
    copied out of what was made wider."""
    for user in node.users:
        target = user.target
        view = isinstance(target, torch._ops.OpOverload) and target.is_view
        unsafe = target is aten._unsafe_view.default
        if user.op != "output" and not ((view or unsafe) and _leaves(user)):
            return False
    return bool(node.users)


def _in_parts(ctx: LoweringContext, node: Node, operands: Sequence[Ref], n: int, rows: int) -> Ref:
    """Some rows at a time, so that the wide result and the copy do not stand side by side. Where
    the second operand lies by columns, those that are too many are left to a call of their own, and
    nothing is made wider."""
    *bias, a, b = operands
    (m, k), size = a.shape, b.shape[1]
    whole = ctx.result(ctx.value_of(node))
    elements = _BYTES // b.dtype.itemsize
    if b.strides[0] == 1 and size > elements:
        n = size // elements * elements
        last = (*(_cut(each, 0, n, size) for each in bias), a, _cut(b, 1, n, size))
        made = _product(ctx, node, last, (m, size - n))
        ctx.fill(_cut(whole, 1, n, size), made.load)
        whole_rows = _cut(whole, 1, 0, n)
        bias, b = [_cut(each, 0, 0, n) for each in bias], _cut(b, 1, 0, n)
    else:
        whole_rows = whole
        bias, b = [_padded(ctx, each, (n,)) for each in bias], _padded(ctx, b, (k, n))
    for start, stop in _parts(ctx, m, rows):
        some = _product(ctx, node, (*bias, _cut(a, 0, start, stop), b), (stop - start, n))
        ctx.fill(_cut(whole_rows, 0, start, stop), some.load)
    return whole


def _parts(ctx: LoweringContext, size: Size, length: int) -> list[tuple[Size, Size]]:
    """Where parts of about this length begin and end; of a size that only a call knows, as many as
    in the recorded call, alike but for the last."""
    if is_known(size):
        return [(start, min(start + length, size)) for start in range(0, size, length)]
    count = -(-hint(size) // length)
    part = ctx.symbols.quotient(size, count)
    return [(k * part, (k + 1) * part if k + 1 < count else size) for k in range(count)]


def _cut(ref: Ref, axis: int, start: Size, stop: Size) -> Ref:
    shape = (*ref.shape[:axis], stop - start, *ref.shape[axis + 1 :])
    return dataclasses.replace(ref, shape=shape, offset=ref.offset + start * ref.strides[axis])


def _aligned(
    shape: tuple[Any, Any, Any], a: Sequence[Any], b: Sequence[Any], itemsize: int
) -> tuple[Any, Any, Any] | None:
    """The sizes m, k and n by which an operand's rows, or its columns, or the result's rows lie
    apart, as multiples of 16 bytes; the others, which alone may be known to a call only, as they
    are; None where one of them is not known. a, b: the operands' strides."""
    elements = _BYTES // itemsize
    rows, columns = _is_one(a[1]), not _is_one(b[1])
    wide: list[Any] = []
    for size, apart in zip(shape, (not rows, rows or columns, True), strict=True):
        if apart and not isinstance(size, int):
            return None
        even = not apart or size % elements == 0
        wide.append(size if even else size // elements * elements + elements)
    m, k, n = wide
    return m, k, n


def _is_one(stride: Any) -> bool:
    return isinstance(stride, int) and stride == 1


def _padded(ctx: LoweringContext, matrix: Ref, shape: tuple[int, ...]) -> Ref:
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


def _widened(ctx: LoweringContext, matrix: Ref, shape: tuple[int, ...]) -> Ref:
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
