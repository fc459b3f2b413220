"""Maximum pooling and its gradient."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache, partial, reduce
from itertools import product
from math import prod
from typing import Any

import torch

from ..decompositions import pool_offsets
from ..loops import sizes
from ..loops.axes import LEAST_VECTOR
from ..loops.ir import IndexValue, Reduced, Select, Value
from ..loops.kernel_graph import Ref
from ..loops.polynomials import Size, hint, is_known
from ..loops.sizes import Index
from .lower_index import all_within, indirect
from .lower_pool import LONG, Coordinates, Windows, chosen, element_at, filled, windows_of
from .lowering_context import LoweringContext
from .registry import Unsupported, lowers
from .value_builders import cast, compute_dtype, const, op

aten = torch.ops.aten
MOST_WINDOWS = 3  # of an element, in a row or a column, up to which it looks at each of them
_WRITTEN_OUT = 25  # positions of a window up to which they are no loop


@lowers(aten.max_pool2d_with_indices.default)
def _max_pool2d(ctx: LoweringContext, node: Any, x: Ref, *args: Any) -> tuple[Ref, Ref]:
    if ctx.ordered:
        side_by_side = x.strides[-3] == 1
        kernel, stride, padding, dilation, _ = filled(args, (None, (), 0, 1, False))
        at = windows_of(x, 2, kernel, stride, padding, dilation)
        few = side_by_side or prod(at.kernel) <= _WRITTEN_OUT or at.pays_by_axis()
        if _needs_places(node) or not few:
            raise Unsupported("the library's loops are faster")
        if side_by_side and x.dtype == torch.float16:
            raise Unsupported("each element would be converted for each of its windows")
    return _maxima(ctx, node, x, 2, args)


def _needs_places(node: Any) -> bool:
    return any(user.args[1:] == (1,) for user in node.users)


@lowers(aten.max_pool3d_with_indices.default)
def _max_pool3d(ctx: LoweringContext, node: Any, x: Ref, *args: Any) -> tuple[Ref, Ref]:
    return _maxima(ctx, node, x, 3, args)


def _maxima(
    ctx: LoweringContext, node: Any, x: Ref, rank: int, given: Sequence[Any]
) -> tuple[Ref, Ref]:
    """The largest elements of the windows and where they are, counted along each plane."""
    kernel, stride, padding, dilation, _ = filled(given, (None, (), 0, 1, False))
    at = windows_of(x, rank, kernel, stride, padding, dilation)
    return _largest(ctx, node, x, at, partial(_flat, at))


@lowers(pool_offsets.OFFSETS)
def _offsets(ctx: LoweringContext, node: Any, x: Ref, *given: Any) -> tuple[Ref, Ref]:
    """The same, with the places counted along each window."""
    at = windows_of(x, 2, *given[:4])

    def offset(found: Value, starts: Coordinates) -> Value:
        return _row_major(_steps(at, found, starts), at.kernel)

    return _largest(ctx, node, x, at, offset)


@lowers(pool_offsets.PLACES)
def _places(ctx: LoweringContext, node: Any, offsets: Ref, size: Sequence[Any], *given: Any) -> Ref:
    at = Windows(tuple(size[-2:]), *map(tuple, given))
    return ctx.pointwise(node, lambda outer: _place(at, offsets.load(outer), outer[-2:]))


def _place(at: Windows, offset: Value, window: Coordinates) -> Value:
    """The place in the plane of an offset in a window."""
    starts = at.source(window, tuple(sizes.ZERO for _ in window))
    within = cast(offset, torch.int32)
    sides = op("floordiv", within, _int(at.kernel[1])), op("remainder", within, _int(at.kernel[1]))
    steps = zip(starts, sides, at.dilation, strict=True)
    return _row_major(
        [op("add", IndexValue(start), cast(_times(k, step), LONG)) for start, k, step in steps],
        at.extent,
    )


def _int(number: int) -> Value:
    return const(number, torch.int32)


def _times(value: Value, factor: int) -> Value:
    return value if factor == 1 else op("mul", value, const(factor, value.dtype))


def _row_major(coordinates: Iterable[Value], extent: Sequence[Size]) -> Value:
    flat: Value | None = None
    for coordinate, size in zip(coordinates, extent, strict=True):
        flat = (
            coordinate
            if flat is None
            else op("add", op("mul", flat, const(size, coordinate.dtype)), coordinate)
        )
    assert flat is not None
    return flat


def _largest(
    ctx: LoweringContext,
    node: Any,
    x: Ref,
    at: Windows,
    told: Callable[[Value, Coordinates], Value],
) -> tuple[Ref, Ref]:
    """The largest elements of the windows, and what is told of their positions there and of where
    the windows start."""
    values, places = (ctx.result(value) for value in node.meta["val"])
    if ctx.ordered and at.pays_by_axis() and not _needs_places(node):
        return _largest_by_axis(ctx, x, at, values), places
    lead, compute = len(x.shape) - len(at.kernel), compute_dtype(x.dtype)
    lowest = const(float("-inf"), compute)

    def element(outer: Coordinates, inner: Coordinates) -> Value:
        loaded, inside = element_at(x, outer[:lead], at.source(outer[lead:], inner))
        return chosen(inside, cast(loaded, compute), lowest)

    def starts(outer: Coordinates) -> Coordinates:
        return at.source(outer[lead:], tuple(sizes.ZERO for _ in at.kernel))

    def largest(outer: Coordinates, inner: Coordinates) -> Value:
        return cast(Reduced("max", element(outer, inner), compute), x.dtype)

    def place(outer: Coordinates, inner: Coordinates) -> Value:
        value = element(outer, inner)
        position = IndexValue(sizes.linear(inner, sizes.contiguous_strides(at.kernel)))
        of_nan = Select(op("ne", value, value), position, const(-1, LONG))
        last = Reduced("max", of_nan, LONG)  # as in eager
        found = Select(op("ge", last, const(0, LONG)), last, Reduced("argmax", value, LONG))
        return told(found, starts(outer))

    if len(at.kernel) != 2 or prod(at.kernel) > _WRITTEN_OUT:
        return ctx.reduce(values, at.kernel, largest), ctx.reduce(places, at.kernel, place)

    @cache
    def found(outer: Coordinates) -> tuple[Value, Value]:
        first = _row_major(_firsts(at, starts(outer)), at.kernel)
        return _one_after_another(at, partial(element, outer), cast(first, torch.int32))

    def best(outer: Coordinates) -> Value:
        within = (tuple(map(sizes.const, inner)) for inner in product(*map(range, at.kernel)))
        return reduce(partial(op, "maximum"), (element(outer, inner) for inner in within))

    def position(outer: Coordinates) -> Value:
        offset = found(outer)[1]
        along_window = node.target is pool_offsets.OFFSETS
        return offset if along_window else _place(at, offset, outer[lead:])

    if not _needs_places(node):
        return ctx.fill(values, lambda outer: cast(best(outer), x.dtype)), places
    return (
        ctx.fill(values, lambda outer: cast(found(outer)[0], x.dtype)),
        ctx.fill(places, lambda outer: cast(position(outer), places.dtype)),
    )


def _largest_by_axis(ctx: LoweringContext, x: Ref, at: Windows, target: Ref) -> Ref:
    """The largest elements of columns of windows, and of these the largest of windows: for the
    elements alone, whatever their places."""
    shape = (*target.shape[:-1], x.shape[-1])
    columns = _largest_along(ctx, x, at.along(0), -2, ctx.like(x, shape, x.dtype))
    return _largest_along(ctx, columns, at.along(1), -1, target)


def _largest_along(ctx: LoweringContext, x: Ref, at: Windows, axis: int, target: Ref) -> Ref:
    dim, compute = axis + len(x.shape), compute_dtype(x.dtype)

    def element(outer: Coordinates, inner: Coordinates) -> Value:
        (source,) = at.source((outer[dim],), inner)
        place = (*outer[:dim], source, *outer[dim + 1 :])
        inside = all_within((source,), (x.shape[dim],))
        lowest = const(float("-inf"), compute)
        return chosen(inside, cast(x.load(place, inside), compute), lowest)

    def best(outer: Coordinates) -> Value:
        within = ((sizes.const(k),) for k in range(*at.kernel))
        return cast(reduce(partial(op, "maximum"), (element(outer, k) for k in within)), x.dtype)

    def fold(outer: Coordinates, inner: Coordinates) -> Value:
        return cast(Reduced("max", element(outer, inner), compute), x.dtype)

    if prod(at.kernel) <= _WRITTEN_OUT:
        return ctx.fill(target, best)
    return ctx.reduce(target, at.kernel, fold)


def _one_after_another(
    at: Windows, element: Callable[[Coordinates], Value], first: Value
) -> tuple[Value, Value]:
    """The largest element of a window and its position there, by a comparison an element: loops
    over windows side by side. As in eager, the last NaN is the largest; `first`: the position in a
    window of -inf alone."""
    best: Value | None = None
    found = first
    for position, within in enumerate(product(*map(range, at.kernel))):
        value = element(tuple(map(sizes.const, within)))
        better = op("ne", value, value)
        if best is not None:
            better = op("or", op("gt", value, best), better)
        best = value if best is None else Select(better, value, best)
        found = Select(better, _int(position), found)
    assert best is not None
    return best, found


def _flat(at: Windows, found: Value, starts: Coordinates) -> Value:
    """A position in the window, row-major, as one in the plane."""
    steps = zip(_steps(at, found, starts), starts, at.dilation, strict=True)
    return _row_major(
        [op("add", IndexValue(start), _times(k, step)) for k, start, step in steps], at.extent
    )


def _steps(at: Windows, found: Value, starts: Coordinates) -> Iterator[Value]:
    """A position in the window, row-major, along each axis. A window of -inf alone gives its first
    element that is no padding, as eager does."""
    for d, first in enumerate(_firsts(at, starts)):
        side, below = at.kernel[d], prod(at.kernel[d + 1 :])
        k = op("remainder", op("floordiv", found, const(below, LONG)), const(side, LONG))
        yield op("maximum", k, first)


def _firsts(at: Windows, starts: Coordinates) -> Iterator[Value]:
    """Along each axis the first position of a window that is no padding."""
    for start, step in zip(starts, at.dilation, strict=True):
        past = sizes.floordiv(sizes.add(sizes.scale(start, -1), sizes.const(step - 1)), step)
        zero = const(0, LONG)
        always = sizes.nonnegative(sizes.scale(past, -1))
        yield zero if always else op("maximum", IndexValue(past), zero)


@lowers(pool_offsets.BACKWARD)
def _offsets_backward(
    ctx: LoweringContext,
    node: Any,
    grad: Ref,
    offsets: Ref,
    size: Any,
    channels_last: bool,
    *given: Any,
) -> Ref:
    target = ctx.result(ctx.value_of(node))
    at = Windows(target.shape[-2:], *map(tuple, given[:4]))
    floats = target.dtype in (torch.float32, torch.float64)
    if ctx.ordered and not channels_last and floats and not _gathers(at):
        return _scattered(ctx, target, grad, lambda o: _place(at, offsets.load(o), o[-2:]))
    return _gathered(ctx, target, grad, offsets, at)


def _gathered(ctx: LoweringContext, target: Ref, grad: Ref, offsets: Ref, at: Windows) -> Ref:
    """Each element sums what the windows were given that took it."""
    lead, compute = len(target.shape) - 2, compute_dtype(target.dtype)
    reach = _reach(at)

    def part(outer: Coordinates, inner: Coordinates) -> Value:
        ends = [sizes.add(i, sizes.const(p)) for i, p in zip(outer[lead:], at.padding, strict=True)]
        last = [sizes.floordiv(end, step) for end, step in zip(ends, at.stride, strict=True)]
        window = tuple(sizes.add(w, sizes.scale(k, -1)) for w, k in zip(last, inner, strict=True))
        element, inside = element_at(grad, outer[:lead], window)
        taken = cast(offsets.load((*outer[:lead], *window), inside), torch.int32)
        within = [
            sizes.add(sizes.mod(end, step), sizes.scale(k, step))
            for end, k, step in zip(ends, inner, at.stride, strict=True)
        ]
        tests = [*([] if inside is None else [inside]), *_is_offset(at, taken, within)]
        wanted = reduce(partial(op, "and"), tests)
        return Select(wanted, cast(element, compute), const(0, compute))

    def whole(outer: Coordinates) -> Value:
        windows = (tuple(map(sizes.const, inner)) for inner in product(*map(range, reach)))
        return reduce(partial(op, "add"), (part(outer, inner) for inner in windows))

    if prod(reach) > _WRITTEN_OUT:
        return ctx.reduce(target, reach, lambda o, i: Reduced("sum", part(o, i), compute))
    return ctx.fill(target, lambda outer: cast(whole(outer), target.dtype))


def _gathers(at: Windows) -> bool:
    """Whether vectors along rows find the few windows of each element sooner than every window
    finds its element."""
    few = min(_reach(at)) == 1 and prod(_reach(at)) <= MOST_WINDOWS
    return few and hint(at.extent[-1]) >= LEAST_VECTOR * at.stride[-1]


def _reach(at: Windows) -> tuple[int, ...]:
    """Along each axis, the most windows that an element is in."""
    return tuple(
        step * (side - 1) // stride + 1
        for step, side, stride in zip(at.dilation, at.kernel, at.stride, strict=True)
    )


def _is_offset(at: Windows, taken: Value, within: Sequence[Index]) -> Iterator[Value]:
    """Whether `taken` is the offset of what lies `within` after the start of a window."""
    steps = [sizes.floordiv(w, step) for w, step in zip(within, at.dilation, strict=True)]
    offset = IndexValue(sizes.linear(steps, (at.kernel[1], 1)))
    yield op("eq", taken, cast(offset, taken.dtype))  # as wide as floats, for the vectors' sake
    if not sizes.within(steps[1], at.kernel[1]):  # else it is one of another row, or of none
        yield op("lt", IndexValue(steps[1]), const(at.kernel[1], LONG))
    for w, step in zip(within, at.dilation, strict=True):
        if step > 1:
            yield op("eq", IndexValue(sizes.mod(w, step)), const(0, LONG))


def _scattered(
    ctx: LoweringContext, target: Ref, grad: Ref, place: Callable[[Coordinates], Value]
) -> Ref:
    """Every window adds what it was given to the element that it took."""
    height, width = target.shape[-2:]
    ctx.fill(target, lambda at: const(0, target.dtype))
    planes = Ref(
        target.buffer,
        (*target.shape[:-2], height * width),
        (*target.strides[:-2], target.strides[-1]),
    )

    order = _by_distance(target)

    def straight(at: Coordinates) -> Coordinates:
        return tuple(at[order.index(d)] for d in range(len(order)))

    def where(at: Coordinates) -> Coordinates:
        window = straight(at)
        return (*window[:-2], indirect(place(window), height * width))

    shape = tuple(grad.shape[d] for d in order)
    ctx.scatter(planes, shape, lambda at: grad.load(straight(at)), where, "sum")
    return target


def _by_distance(image: Ref) -> list[int]:
    """The axes with those last whose elements lie closer than the places of a plane: channels in
    channels-last order. Windows of one plane keep their order, in which their sums are made."""
    axes, steps = range(len(image.shape)), image.strides
    known = all(map(is_known, steps))
    near = [d for d in axes[:-2] if known and 0 < steps[d] < steps[-1]]
    return [*(d for d in axes if d not in near), *near]


@lowers(aten.max_pool2d_with_indices_backward.default)
def _max_pool2d_backward(ctx: LoweringContext, node: Any, grad: Ref, *given: Any) -> Ref:
    target, places = ctx.result(ctx.value_of(node)), given[-1]
    if not ctx.ordered or target.strides[-2] != target.shape[-1] * target.strides[-1]:
        raise Unsupported("stores at positions from memory")
    if target.dtype not in (torch.float32, torch.float64):
        raise Unsupported(f"sums in memory of {target.dtype}")
    return _scattered(ctx, target, grad, places.load)
