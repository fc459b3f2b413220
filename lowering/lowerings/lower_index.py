"""Joins, pads, ranges, and loads at positions that are themselves loaded."""

import dataclasses
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import torch

from ..loops import polynomials, sizes
from ..loops.ir import IndexValue, Indirect, Nest, Select, Store, Value
from ..loops.kernel_graph import Ref
from ..loops.polynomials import Size, at_least, is_known
from ..loops.sizes import Index
from .lowering_context import LoweringContext
from .registry import LOWERINGS, Unsupported, lowers
from .value_builders import cast, const, op

aten = torch.ops.aten
LONG = torch.int64


ENDLESS = 1 << 62  # no axis is as long
MAX_SELECTED_PARTS = (
    4  # parts of a join that are picked by comparisons instead of being copied one by one
)


@lowers(aten.cat.default)
def _cat(ctx: LoweringContext, node: Any, tensors: Sequence[Ref], dim: int = 0) -> Ref:
    value = ctx.value_of(node)
    axis = dim % value.dim()
    parts = [part for part in tensors if part.shape != (0,) or value.dim() == 1]
    parts = [part for part in parts if part.shape[axis] != 0]
    if not parts:
        return ctx.pointwise(node, lambda at: const(0, value.dtype))
    around = _cycle(parts, axis)
    if around is not None:
        return ctx.pointwise(node, lambda at: around(at))
    if len(parts) <= MAX_SELECTED_PARTS and _is_computed_with(node, through_views=not ctx.ordered):
        return ctx.pointwise(node, lambda at: _picked(parts, axis, at, value.dtype))
    target = ctx.result(value)
    start: Size = 0
    for part in parts:
        _store_part(ctx, target, part, axis, start)
        start += part.shape[axis]
    return target


def _is_computed_with(node: Any, through_views: bool) -> bool:
    """Whether a loop reads the tensor, or a view of it."""
    views = [
        user for user in node.users if through_views and getattr(user.target, "is_view", False)
    ]
    return any(user.target in LOWERINGS for user in node.users) or any(
        _is_computed_with(view, through_views) for view in views
    )


def _cycle(parts: Sequence[Ref], axis: int) -> Callable[[tuple[Index, ...]], Value] | None:
    """The element at a place of a join that goes round one tensor (`cat([x[-1:], x, x[:1]])`): each
    part goes on where the one before ends, or begins again where that was the end."""
    first, step = parts[0], parts[0].strides[axis]
    numbers = [step, *(n for part in parts for n in (part.offset, part.shape[axis]))]
    if len(parts) < 2 or not all(map(is_known, numbers)) or step <= 0:
        return None
    lowest = min(part.offset for part in parts)
    spans = [((part.offset - lowest) // step, part.shape[axis]) for part in parts]
    size = max(start + length for start, length in spans)
    alike = all(
        part.buffer is first.buffer
        and part.strides == first.strides
        and (part.offset - lowest) % step == 0
        for part in parts
    )
    if not alike or any((a + length) % size != b for (a, length), (b, _) in pairwise(spans)):
        return None
    shape = (*first.shape[:axis], size, *first.shape[axis + 1 :])
    whole = dataclasses.replace(first, shape=shape, offset=lowest)

    def element(at: tuple[Index, ...]) -> Value:
        place = sizes.mod(sizes.add(at[axis], sizes.const(spans[0][0])), size)
        return whole.load([place if d == axis else index for d, index in enumerate(at)])

    return element


def _picked(parts: Sequence[Ref], axis: int, at: tuple[Index, ...], dtype: torch.dtype) -> Value:
    """The element of the part that holds coordinate `at[axis]`: it can be computed inside of what
    reads the join."""
    end = sum(part.shape[axis] for part in parts)
    made: Value | None = None
    for part in reversed(parts):
        start = end - part.shape[axis]
        source = [
            sizes.add(index, sizes.const(-start)) if d == axis else index
            for d, index in enumerate(at)
        ]
        element = cast(part.load(source, all_within(source, part.shape)), dtype)
        made = (
            element
            if made is None
            else Select(op("lt", IndexValue(at[axis]), const(end, LONG)), element, made)
        )
        end = start
    assert made is not None
    return made


def _store_part(ctx: LoweringContext, target: Ref, part: Ref, axis: int, start: Size) -> None:
    at = tuple(sizes.atom_index(a) for a in sizes.make_axes(part.shape))
    moved = tuple(
        sizes.add(index, sizes.const(start)) if d == axis else index for d, index in enumerate(at)
    )
    store = Store(
        target.buffer, sizes.linear(moved, target.strides), cast(part.load(at), target.dtype)
    )
    ctx.add(Nest(part.shape, (), (store,), (ctx.origin,)))


@lowers(aten.constant_pad_nd.default)
def _pad(ctx: LoweringContext, node: Any, x: Ref, pad: Sequence[int], value: Any = 0) -> Ref:
    before = [0] * len(x.shape)
    for k in range(len(pad) // 2):
        before[-1 - k] = pad[2 * k]

    def body(at: tuple[Index, ...]) -> Value:
        source = [
            sizes.add(index, sizes.const(-low)) for index, low in zip(at, before, strict=True)
        ]
        inside = all_within(source, x.shape)
        if inside is None:
            return x.load(source)
        return Select(inside, x.load(source, inside), const(value, x.dtype))

    if 0 in x.shape:
        return ctx.pointwise(node, lambda at: const(value, x.dtype))
    return ctx.pointwise(node, body)


def all_within(at: Sequence[Index], shape: Sequence[Size]) -> Value | None:
    """A bool value: every coordinate lies in its axis. None where that is always so."""
    conditions: list[Value] = []
    for index, size in zip(at, shape, strict=True):
        if not sizes.nonnegative(index):
            conditions.append(op("ge", IndexValue(index), const(0, LONG)))
        if not sizes.within(index, size):
            conditions.append(op("lt", IndexValue(index), const(size, LONG)))
    return _conjunction(conditions)


def _conjunction(conditions: Sequence[Value]) -> Value | None:
    whole: Value | None = None
    for condition in conditions:
        whole = condition if whole is None else op("and", whole, condition)
    return whole


@lowers(aten.slice_scatter.default)
def _slice_scatter(
    ctx: LoweringContext,
    node: Any,
    x: Ref,
    source: Ref,
    dim: int = 0,
    start: Any = None,
    end: Any = None,
    step: int = 1,
) -> Ref:
    dim, size = dim % len(x.shape), x.shape[dim]
    first, last = _limit(start, size, 0), _limit(end, size, size)
    if 0 in source.shape:
        return ctx.pointwise(node, x.load)

    def body(at: tuple[Index, ...]) -> Value:
        shifted = sizes.add(at[dim], sizes.const(-first))
        source_at = [
            sizes.floordiv(shifted, step) if d == dim else index for d, index in enumerate(at)
        ]
        value = IndexValue(at[dim])
        tests = [op("ge", value, const(first, LONG))] * (first != 0)
        tests += [op("lt", value, const(last, LONG))] * (last != size)
        tests += [op("eq", IndexValue(sizes.mod(shifted, step)), const(0, LONG))] * (step > 1)
        inside = _conjunction(tests)
        taken = cast(source.load(source_at, inside), x.dtype)
        return taken if inside is None else Select(inside, taken, x.load(at))

    return ctx.pointwise(node, body)


def _limit(position: Size | None, size: Size, default: Size) -> Size:
    """An end of a slice as a position in an axis of `size`; raises Unsupported where only a call
    can tell."""
    if position is None:
        return default
    if is_known(position) and is_known(size):
        return max(position + size, 0) if position < 0 else min(position, size)
    if at_least(position, 0) and at_least(size, position):
        return position
    if at_least(position, min(polynomials.most(size) or ENDLESS, ENDLESS)):
        return size
    if at_least(-position, 1) and at_least(size + position, 0):
        return position + size
    raise Unsupported(f"a slice to {position} of an axis of {size}")


@lowers(aten.select_scatter.default)
def _select_scatter(
    ctx: LoweringContext, node: Any, x: Ref, source: Ref, dim: int, index: int
) -> Ref:
    dim, size = dim % len(x.shape), x.shape[dim]
    place = _position(index, size)

    def body(at: tuple[Index, ...]) -> Value:
        here = op("eq", IndexValue(at[dim]), const(place, LONG))
        taken = cast(source.load(at[:dim] + at[dim + 1 :], here), x.dtype)
        return Select(here, taken, x.load(at))

    return ctx.pointwise(node, body)


def _position(index: Size, size: Size) -> Size:
    if is_known(index) and is_known(size):
        return index % size
    if at_least(index, 0):
        return index
    if at_least(-index, 1):
        return index + size
    raise Unsupported(f"position {index} in an axis of {size}")


@lowers(torch.ops.prims.iota.default)
def _iota(
    ctx: LoweringContext, node: Any, length: Any, *, start: Any, step: Any, **kwargs: Any
) -> Ref:
    return _arange(ctx, node, start, None, step)


@lowers(aten.arange.start_step)
def _arange(
    ctx: LoweringContext, node: Any, first: Any, last: Any = None, step: Any = 1, **kwargs: Any
) -> Ref:
    value = ctx.value_of(node)
    if value.dtype.is_floating_point:
        first, step = _whole(first, step, value)
    if any(not isinstance(number, Size) for number in (first, step)):
        raise Unsupported("arange of floating point numbers")

    def body(at: tuple[Index, ...]) -> Value:
        return cast(
            IndexValue(sizes.add(sizes.scale(at[0], step), sizes.const(first))), value.dtype
        )

    return ctx.pointwise(node, body)


def _whole(first: Any, step: Any, value: torch.Tensor) -> tuple[Any, Any]:
    """Start and step of a floating point `arange` as ints, where every element is a whole number
    that the type holds exactly: then the order of arithmetic does not matter."""
    most = 2 / torch.finfo(value.dtype).eps
    count = value.shape[0]
    numbers = isinstance(first, int | float) and isinstance(step, int | float)
    if not numbers or not isinstance(count, int) or int(first) != first or int(step) != step:
        raise Unsupported("arange of broken numbers")
    if max(abs(first), abs(first + step * count)) > most:
        raise Unsupported("arange beyond what its type counts")
    return int(first), int(step)


def indirect(position: Value, bound: Size) -> Index:
    if not at_least(bound, 1):
        raise Unsupported("picking from what may be nothing")
    return sizes.atom_index(Indirect(cast(position, LONG), bound))


def from_end(position: Value, bound: Size) -> Index:
    """A position of `x[i]`, where a negative one counts from the end."""
    given = cast(position, LONG)
    counted = op("add", given, const(bound, LONG))
    return indirect(Select(op("lt", given, const(0, LONG)), counted, given), bound)


def _refuse_empty(x: Ref) -> None:
    if 0 in x.shape:
        raise Unsupported("picking from nothing")


@lowers(aten.embedding.default)
def _embedding(
    ctx: LoweringContext, node: Any, table: Ref, ids: Ref, *args: Any, **kwargs: Any
) -> Ref:
    _refuse_empty(table)

    def body(at: tuple[Index, ...]) -> Value:
        row = indirect(ids.load(at[:-1]), table.shape[0])
        return ctx.pick(table, (row, at[-1]))

    return ctx.pointwise(node, body)


@lowers(aten.gather.default)
def _gather(ctx: LoweringContext, node: Any, x: Ref, dim: int, ids: Ref, **kwargs: Any) -> Ref:
    _refuse_empty(x)
    if not x.shape:
        raise Unsupported("gather from a scalar")
    dim %= len(x.shape)

    def body(at: tuple[Index, ...]) -> Value:
        position = indirect(ids.load(at), x.shape[dim])
        return ctx.pick(x, tuple(position if d == dim else index for d, index in enumerate(at)))

    return ctx.pointwise(node, body)


def scatter_compared(
    ctx: LoweringContext, node: Any, x: Ref, dim: int, ids: Ref, value: Any
) -> Ref:
    """One position along `dim` for each row, as in the gradient of a loss over classes: a
    comparison where it is read."""
    dim %= max(len(x.shape), 1)
    if not x.shape or not isinstance(value, bool | int | float):
        raise Unsupported("scatter into a scalar, or of what only a call knows")
    if tuple(ids.shape) != tuple(1 if d == dim else size for d, size in enumerate(x.shape)):
        raise Unsupported("several positions in a row")
    bound = x.shape[dim]

    def body(at: tuple[Index, ...]) -> Value:
        position = ids.load(tuple(sizes.ZERO if d == dim else index for d, index in enumerate(at)))
        here = op("eq", IndexValue(at[dim]), IndexValue(indirect(position, bound)))
        return Select(here, const(value, x.dtype), x.load(at))

    return ctx.pointwise(node, body)


@lowers(aten.index_select.default)
def _index_select(ctx: LoweringContext, node: Any, x: Ref, dim: int, ids: Ref) -> Ref:
    _refuse_empty(x)
    if not x.shape:
        raise Unsupported("picking from a scalar")
    dim %= len(x.shape)

    def body(at: tuple[Index, ...]) -> Value:
        position = indirect(ids.load((at[dim],)), x.shape[dim])
        return ctx.pick(x, tuple(position if d == dim else index for d, index in enumerate(at)))

    return ctx.pointwise(node, body)


@lowers(aten.index.Tensor, aten._unsafe_index.Tensor)
def _index(ctx: LoweringContext, node: Any, x: Ref, ids: Sequence[Ref | None]) -> Ref:
    """Advanced indexing: the broadcast index axes stand where the first index does if the indices
    are adjacent, else first."""
    _refuse_empty(x)
    used = [d for d, index in enumerate(ids) if index is not None]
    given = [ids[d] for d in used]
    if any(index is not None and index.dtype in (torch.bool, torch.uint8) for index in given):
        raise Unsupported("a mask as an index")
    rank = max(len(index.shape) for index in given if index is not None)
    adjacent = used == list(range(used[0], used[-1] + 1))
    place = used[0] if adjacent else 0

    def body(at: tuple[Index, ...]) -> Value:
        picks, plain = at[place : place + rank], list(at[:place] + at[place + rank :])
        source = []
        for d, size in enumerate(x.shape):
            index = ids[d] if d < len(ids) else None
            source.append(plain.pop(0) if index is None else from_end(index.load(picks), size))
        return ctx.pick(x, source)

    return ctx.pointwise(node, body)


@lowers(aten.flip.default)
def _flip(ctx: LoweringContext, node: Any, x: Ref, dims: Sequence[int]) -> Ref:
    flipped = {d % max(len(x.shape), 1) for d in dims}

    def body(at: tuple[Index, ...]) -> Value:
        return x.load(
            [
                sizes.add(sizes.scale(index, -1), sizes.const(x.shape[d] - 1))
                if d in flipped
                else index
                for d, index in enumerate(at)
            ]
        )

    return ctx.pointwise(node, body)


@lowers(aten.roll.default)
def _roll(ctx: LoweringContext, node: Any, x: Ref, shifts: Any, dims: Any = ()) -> Ref:
    moved = dict[int, Size]()
    for shift, dim in zip(_listed(shifts), _listed(dims), strict=True):
        moved[dim % len(x.shape)] = moved.get(dim % len(x.shape), 0) + shift
    if 0 in x.shape:
        return ctx.pointwise(node, x.load)

    def body(at: tuple[Index, ...]) -> Value:
        source = list(at)
        for dim, shift in moved.items():
            start = (
                (-shift) % x.shape[dim] if is_known(x.shape[dim]) and is_known(shift) else -shift
            )
            source[dim] = sizes.mod(sizes.add(at[dim], sizes.const(start)), x.shape[dim])
        return x.load(source)

    return ctx.pointwise(node, body)


def _listed(numbers: Any) -> Sequence[Any]:
    return numbers if isinstance(numbers, list | tuple) else [numbers]


@lowers(aten.repeat.default)
def _repeat(ctx: LoweringContext, node: Any, x: Ref, repeats: Sequence[int]) -> Ref:
    _refuse_empty(x)

    def body(at: tuple[Index, ...]) -> Value:
        own = at[len(at) - len(x.shape) :]
        return x.load([sizes.mod(index, size) for index, size in zip(own, x.shape, strict=True)])

    return ctx.pointwise(node, body)


@lowers(aten.tril.default, aten.triu.default)
def _triangle(ctx: LoweringContext, node: Any, x: Ref, diagonal: int = 0) -> Ref:
    name = "le" if node.target is aten.tril.default else "ge"

    def body(at: tuple[Index, ...]) -> Value:
        keep = op(name, IndexValue(at[-1]), IndexValue(sizes.add(at[-2], sizes.const(diagonal))))
        return Select(keep, x.load(at), const(0, x.dtype))

    return ctx.pointwise(node, body)
