"""Stores at positions that are themselves loaded: a copy of the operand, then one nest over what is
stored. Where the operand is overwritten as a whole afterwards, `in_place` leaves the copy out."""

from collections.abc import Sequence
from typing import Any

import torch

from ..loops import sizes
from ..loops.ir import Select, Value
from ..loops.kernel_graph import Ref
from ..loops.polynomials import Size
from ..loops.sizes import Index
from .lower_index import from_end, indirect, scatter_compared
from .lowering_context import LoweringContext
from .registry import Unsupported, lowers
from .value_builders import HALVES, cast, const, op

aten = torch.ops.aten
COMBINES = {"sum": "sum", "prod": "prod", "amax": "max", "amin": "min"}


def _copied(ctx: LoweringContext, node: Any, x: Ref) -> Ref:
    if not ctx.ordered:
        raise Unsupported("stores at positions from memory")
    return ctx.pointwise(node, x.load)


def _folding(x: Ref, combine: str) -> str:
    """Raises Unsupported where folding in memory is not what eager does."""
    if x.dtype in HALVES or x.dtype == torch.bool:
        raise Unsupported(f"{combine} in memory of {x.dtype}")
    return combine


def _axis(x: Ref, dim: int) -> int:
    if not x.shape:
        raise Unsupported("positions in a scalar")
    if 0 in x.shape:
        raise Unsupported("positions in nothing")
    return dim % len(x.shape)


def _taken(ids: Ref) -> Ref:
    if ids.dtype not in (torch.int64, torch.int32):
        raise Unsupported(f"positions of {ids.dtype}")
    return ids


@lowers(aten.index_put.default, aten._unsafe_index_put.default)
def _index_put(
    ctx: LoweringContext,
    node: Any,
    x: Ref,
    ids: Sequence[Ref | None],
    values: Ref,
    accumulate: bool = False,
) -> Ref:
    """The broadcast index axes stand where the first index does if the indices are adjacent, else
    first; `values` is broadcast to what indexing gives."""
    used = [d for d, index in enumerate(ids) if index is not None]
    given = [ids[d] for d in used]
    if any(index is not None and index.dtype == torch.bool for index in given):
        return _masked_put(ctx, node, x, ids, values, accumulate)
    _axis(x, 0)
    shapes = [_taken(i).shape for i in given if i is not None]
    picked = torch.broadcast_shapes(*shapes)  # type: ignore[no-untyped-call]
    adjacent = used == list(range(used[0], used[-1] + 1))
    place = used[0] if adjacent else 0
    plain = [size for d, size in enumerate(x.shape) if d not in used]
    shape = (*plain[:place], *picked, *plain[place:])

    def places(at: tuple[Index, ...]) -> tuple[Index, ...]:
        rest = list(at[:place] + at[place + len(picked) :])
        positions = at[place : place + len(picked)]
        return tuple(
            from_end(index.load(positions), size)
            if (index := ids[d] if d < len(ids) else None) is not None
            else rest.pop(0)
            for d, size in enumerate(x.shape)
        )

    combine = _folding(x, "sum") if accumulate else None
    return ctx.scatter(_copied(ctx, node, x), shape, values.load, places, combine)


def _masked_put(
    ctx: LoweringContext,
    node: Any,
    x: Ref,
    ids: Sequence[Ref | None],
    values: Ref,
    accumulate: bool,
) -> Ref:
    """One value wherever a mask is true."""
    mask = ids[0]
    if len(ids) != 1 or mask is None or values.numel != 1 or 0 in x.shape:
        raise Unsupported("a mask as an index")
    shape = mask.shape
    if shape != x.shape[: len(shape)]:
        raise Unsupported("a mask of sizes that may be others")

    def body(at: tuple[Index, ...]) -> Value:
        old, new = x.load(at), cast(values.load((sizes.ZERO,) * len(values.shape)), x.dtype)
        return Select(mask.load(at[: len(shape)]), new, old)

    if accumulate:
        raise Unsupported("sums where a mask is true")
    return ctx.pointwise(node, body)


def _along(x: Ref, dim: int, position: Index, at: tuple[Index, ...]) -> tuple[Index, ...]:
    return tuple(position if d == dim else index for d, index in enumerate(at))


@lowers(aten.index_copy.default)
def _index_copy(ctx: LoweringContext, node: Any, x: Ref, dim: int, ids: Ref, source: Ref) -> Ref:
    return _slices(ctx, node, x, dim, ids, source, None, 1)


@lowers(aten.index_add.default)
def _index_add(
    ctx: LoweringContext, node: Any, x: Ref, dim: int, ids: Ref, source: Ref, *, alpha: Any = 1
) -> Ref:
    return _slices(ctx, node, x, dim, ids, source, _folding(x, "sum"), alpha)


def _slices(
    ctx: LoweringContext,
    node: Any,
    x: Ref,
    dim: int,
    ids: Ref,
    source: Ref,
    combine: str | None,
    alpha: Any,
) -> Ref:
    dim = _axis(x, dim)
    if len(source.shape) != len(x.shape) or len(ids.shape) > 1:
        raise Unsupported("a source of another rank")
    _taken(ids)

    def places(at: tuple[Index, ...]) -> tuple[Index, ...]:
        position = ids.load((at[dim],) if ids.shape else ())
        return _along(x, dim, indirect(position, x.shape[dim]), at)

    def body(at: tuple[Index, ...]) -> Value:
        value = source.load(at)
        return value if alpha == 1 else op("mul", value, const(alpha, x.dtype))

    return ctx.scatter(_copied(ctx, node, x), source.shape, body, places, combine)


def _scattered(
    ctx: LoweringContext,
    target: Ref,
    dim: int,
    ids: Ref,
    body: Any,
    combine: str | None = None,
) -> Ref:
    """`body` at the positions `ids` along `dim`, for each point of `ids`."""
    dim = _axis(target, dim)
    if len(ids.shape) != len(target.shape):
        raise Unsupported("positions of another rank")
    _taken(ids)

    def places(at: tuple[Index, ...]) -> tuple[Index, ...]:
        return _along(target, dim, indirect(ids.load(at), target.shape[dim]), at)

    return ctx.scatter(target, ids.shape, body, places, combine)


@lowers(aten.scatter.value)
def _scatter_value(ctx: LoweringContext, node: Any, x: Ref, dim: int, ids: Ref, value: Any) -> Ref:
    mark = len(ctx.items)
    try:
        return scatter_compared(ctx, node, x, dim, ids, value)
    except Unsupported:
        del ctx.items[mark:]
    if not isinstance(value, bool | int | float):
        raise Unsupported("a value that only a call knows")
    target = _copied(ctx, node, x)
    return _scattered(ctx, target, dim, ids, lambda at: const(value, x.dtype))


@lowers(aten.scatter.src)
def _scatter(ctx: LoweringContext, node: Any, x: Ref, dim: int, ids: Ref, source: Ref) -> Ref:
    return _scattered(ctx, _copied(ctx, node, x), dim, ids, source.load)


@lowers(aten.scatter_add.default)
def _scatter_add(ctx: LoweringContext, node: Any, x: Ref, dim: int, ids: Ref, source: Ref) -> Ref:
    combine = _folding(x, "sum")
    return _scattered(ctx, _copied(ctx, node, x), dim, ids, source.load, combine)


@lowers(aten.scatter_reduce.two)
def _scatter_reduce(
    ctx: LoweringContext,
    node: Any,
    x: Ref,
    dim: int,
    ids: Ref,
    source: Ref,
    reduce: str,
    *,
    include_self: bool = True,
) -> Ref:
    if reduce not in COMBINES:
        raise Unsupported(f"scatter_reduce by {reduce}")
    combine = _folding(x, COMBINES[reduce])
    target = _copied(ctx, node, x)
    if not include_self:
        start = const(_neutral(combine, x.dtype), x.dtype)
        _scattered(ctx, target, dim, ids, lambda at: start)
    return _scattered(ctx, target, dim, ids, source.load, combine)


def _neutral(combine: str, dtype: torch.dtype) -> int | float:
    if combine in ("sum", "prod"):
        return int(combine == "prod")
    if dtype.is_floating_point:
        return float("-inf") if combine == "max" else float("inf")
    info = torch.iinfo(dtype)
    return info.min if combine == "max" else info.max


@lowers(aten.embedding_dense_backward.default)
def _embedding_backward(
    ctx: LoweringContext,
    node: Any,
    grad: Ref,
    ids: Ref,
    rows: Size,
    padding: int,
    scale_by_frequency: bool,
) -> Ref:
    target = ctx.result(ctx.value_of(node))
    if scale_by_frequency or not ctx.ordered:
        raise Unsupported("gradients divided by counts, or stores at positions from memory")
    combine, zero = _folding(target, "sum"), const(0, target.dtype)
    ctx.fill(target, lambda at: zero)
    _taken(ids)

    def body(at: tuple[Index, ...]) -> Value:
        if padding < 0:
            return grad.load(at)
        is_padding = op("eq", ids.load(at[:-1]), const(padding, ids.dtype))
        return Select(is_padding, zero, grad.load(at))

    def places(at: tuple[Index, ...]) -> tuple[Index, ...]:
        return indirect(ids.load(at[:-1]), rows), at[-1]

    return ctx.scatter(target, grad.shape, body, places, combine)
