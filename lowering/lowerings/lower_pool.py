"""Pooling: reductions over windows, and their gradients."""

import dataclasses
from collections.abc import Callable, Sequence
from itertools import product
from math import prod
from typing import Any

import torch

from ..loops import sizes
from ..loops.ir import Const, IndexValue, Load, Reduced, Select, Value
from ..loops.kernel_graph import Ref
from ..loops.polynomials import Size, is_known
from ..loops.sizes import Index
from .lower_index import all_within
from .lowering_context import LoweringContext
from .registry import Unsupported, lowers
from .value_builders import cast, compute_dtype, const, op

aten = torch.ops.aten
LONG = torch.int64
MAX_UNROLLED_WINDOW = 16  # elements of a window that are added up one by one
Coordinates = tuple[Index, ...]
Part = Callable[[Coordinates, Coordinates], Value]


@dataclasses.dataclass(frozen=True)
class Windows:
    """Along each pooled axis, window `i` holds positions i * stride - padding + k * dilation, for k
    below `kernel`, of an axis of `extent`."""

    extent: tuple[Size, ...]
    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]

    def along(self, axis: int) -> "Windows":
        """The windows along one of the axes."""
        given = self.extent, self.kernel, self.stride, self.padding, self.dilation
        return Windows(*((numbers[axis],) for numbers in given))

    def pays_by_axis(self) -> bool:
        """Whether windows of two axes are made much sooner of their columns."""
        if len(self.kernel) != 2:
            return False
        (rows, columns), (_, step) = self.kernel, self.stride
        return 2 * (rows * step + columns) <= rows * columns

    def source(self, window: Coordinates, within: Coordinates) -> Coordinates:
        """The positions of element `within` of each window."""
        return tuple(
            sizes.add(sizes.scale(i, s), sizes.scale(k, d), sizes.const(-p))
            for i, k, s, d, p in zip(
                window, within, self.stride, self.dilation, self.padding, strict=True
            )
        )


def _tuple(given: Any, rank: int) -> tuple[int, ...]:
    numbers = [given] if isinstance(given, int) else list(given)
    if not all(isinstance(number, int) for number in numbers):
        raise Unsupported("a window that only a call knows")
    return tuple(numbers * rank if len(numbers) == 1 else numbers)


def windows_of(x: Ref, rank: int, kernel: Any, stride: Any, padding: Any, dilation: Any) -> Windows:
    sides = _tuple(kernel, rank)
    step = _tuple(stride, rank) if stride else sides
    extent = x.shape[len(x.shape) - rank :]
    if 0 in x.shape or not x.dtype.is_floating_point:
        raise Unsupported("pooling of nothing, or of integers")
    return Windows(extent, sides, step, _tuple(padding, rank), _tuple(dilation, rank))


def element_at(x: Ref, lead: Coordinates, source: Coordinates) -> tuple[Load, Value | None]:
    """The element at `source` of plane `lead`, 0 outside, and whether it is inside."""
    inside = all_within(source, x.shape[len(lead) :])
    return x.load((*lead, *source), inside), inside


def chosen(inside: Value | None, value: Value, otherwise: Value) -> Value:
    return value if inside is None else Select(inside, value, otherwise)


def summed(
    ctx: LoweringContext,
    target: Ref,
    inner: Sequence[int],
    part: Part,
    finish: Callable[[Coordinates, Value], Value] = lambda outer, total: total,
) -> Ref:
    """Stores `finish` of the sum of `part(outer, within)` over the window `inner`. One of few
    elements is written out: it is vectorised along memory, and computed where it is read. It starts
    from 0, as eager's, whose sums of -0.0 are 0.0."""

    def whole(outer: Coordinates) -> Value:
        total: Value | None = None
        for within in product(*(range(size) for size in inner)):
            value = part(outer, tuple(map(sizes.const, within)))
            total = op("add", const(0.0, value.dtype) if total is None else total, value)
        assert total is not None
        return cast(finish(outer, total), target.dtype)

    def fold(outer: Coordinates, within: Coordinates) -> Value:
        value = part(outer, within)
        return finish(outer, Reduced("sum", value, value.dtype))

    few = 0 < prod(inner) <= MAX_UNROLLED_WINDOW
    return ctx.fill(target, whole) if few else ctx.reduce(target, inner, fold)


# averages


def _clipped(position: Index, limit: Size) -> Value:
    """The position, at least 0 and at most `limit`."""
    value = op("maximum", IndexValue(position), const(0, LONG))
    return op("minimum", value, const(limit, LONG))


def _all_whole(at: Windows, windows: Sequence[Size], include_pad: bool) -> bool:
    """Whether every window has all of its elements within the axes, or within their padding."""
    if not all(map(is_known, (*at.extent, *windows))) or not (include_pad or not any(at.padding)):
        return False
    ends = zip(windows, at.extent, at.kernel, at.stride, at.padding, strict=True)
    return all((n - 1) * s + k <= m + 2 * p for n, m, k, s, p in ends)


def _divisor(
    at: Windows,
    count_of_windows: Sequence[Size],
    window: Coordinates,
    include_pad: bool,
    override: Any,
    dtype: torch.dtype,
) -> Value:
    """What the window's sum is divided by: its elements within the axis, or within its padding."""
    if override is not None:
        return const(override, dtype)
    if _all_whole(at, count_of_windows, include_pad):
        return const(prod(at.kernel), dtype)
    count: Value | None = None
    zero = tuple(sizes.ZERO for _ in window)
    starts = at.source(window, zero)
    for start, size, side, pad in zip(starts, at.extent, at.kernel, at.padding, strict=True):
        end = sizes.add(start, sizes.const(side))
        if include_pad:
            length = op(
                "sub", op("minimum", IndexValue(end), const(size + pad, LONG)), IndexValue(start)
            )
        else:
            length = op("sub", _clipped(end, size), _clipped(start, size))
        count = length if count is None else op("mul", count, length)
    assert count is not None
    return cast(count, dtype)


def _average(ctx: LoweringContext, node: Any, x: Ref, rank: int, given: Sequence[Any]) -> Ref:
    kernel, stride, padding, _, include_pad, override = filled(
        given, (None, (), 0, False, True, None)
    )
    at = windows_of(x, rank, kernel, stride, padding, 1)
    target, lead = ctx.result(ctx.value_of(node)), len(x.shape) - rank
    compute = compute_dtype(x.dtype)

    def part(outer: Coordinates, inner: Coordinates) -> Value:
        return cast(element_at(x, outer[:lead], at.source(outer[lead:], inner))[0], compute)

    def mean(outer: Coordinates, total: Value) -> Value:
        divisor = _divisor(at, target.shape[lead:], outer[lead:], include_pad, override, compute)
        return op("div", total, divisor)

    if not ctx.ordered or not at.pays_by_axis():
        return summed(ctx, target, at.kernel, part, mean)
    columns = ctx.like(x, (*target.shape[:-1], x.shape[-1]), compute)
    summed(ctx, columns, at.kernel[:1], along_axis(x, at, lead))
    return summed(ctx, target, at.kernel[1:], along_axis(columns, at, lead + 1), mean)


def along_axis(x: Ref, at: Windows, axis: int) -> Part:
    """The elements of windows along one axis, in the type in which they are added up."""
    own = at.along(axis - len(x.shape) + len(at.kernel))

    def part(outer: Coordinates, inner: Coordinates) -> Value:
        place = (*outer[:axis], *own.source(outer[axis : axis + 1], inner), *outer[axis + 1 :])
        return cast(element_at(x, (), place)[0], compute_dtype(x.dtype))

    return part


def filled(given: Sequence[Any], defaults: Sequence[Any]) -> list[Any]:
    return [*given, *defaults[len(given) :]]


@lowers(aten.avg_pool2d.default)
def _avg_pool2d(ctx: LoweringContext, node: Any, x: Ref, *args: Any) -> Ref:
    return _average(ctx, node, x, 2, args)


@lowers(aten.avg_pool3d.default)
def _avg_pool3d(ctx: LoweringContext, node: Any, x: Ref, *args: Any) -> Ref:
    return _average(ctx, node, x, 3, args)


@lowers(aten.avg_pool2d_backward.default)
def _avg_pool2d_backward(ctx: LoweringContext, node: Any, grad: Ref, x: Ref, *args: Any) -> Ref:
    return _average_backward(ctx, node, grad, x, 2, args)


@lowers(aten.avg_pool3d_backward.default)
def _avg_pool3d_backward(ctx: LoweringContext, node: Any, grad: Ref, x: Ref, *args: Any) -> Ref:
    return _average_backward(ctx, node, grad, x, 3, args)


def _average_backward(
    ctx: LoweringContext, node: Any, grad: Ref, x: Ref, rank: int, args: Sequence[Any]
) -> Ref:
    """Each element sums what the windows that hold it were given, over what they were divided
    by."""
    kernel, stride, padding, _, include_pad, override = args
    at = windows_of(x, rank, kernel, stride, padding, 1)
    target, lead = ctx.result(ctx.value_of(node)), len(x.shape) - rank
    compute = compute_dtype(x.dtype)
    reach = tuple(-(-side // step) for side, step in zip(at.kernel, at.stride, strict=True))
    if ctx.ordered and at.pays_by_axis() and min(reach) > 1:
        return _average_backward_by_axis(ctx, grad, at, target, include_pad, override)

    def part(outer: Coordinates, inner: Coordinates) -> Value:
        ends = [sizes.add(i, sizes.const(p)) for i, p in zip(outer[lead:], at.padding, strict=True)]
        last = [sizes.floordiv(end, step) for end, step in zip(ends, at.stride, strict=True)]
        window = tuple(
            sizes.add(index, sizes.scale(k, -1)) for index, k in zip(last, inner, strict=True)
        )
        element, inside = element_at(grad, outer[:lead], window)
        far = [
            op("lt", IndexValue(sizes.add(end, sizes.scale(w, -step))), const(side, LONG))
            for end, w, step, side in zip(ends, window, at.stride, at.kernel, strict=True)
        ]
        for test in far:
            inside = test if inside is None else op("and", inside, test)
        held = Load(element.buffer, element.index, inside)
        divisor = _divisor(at, grad.shape[lead:], window, include_pad, override, compute)
        if isinstance(divisor, Const):
            return cast(held, compute)
        return chosen(inside, op("div", cast(held, compute), divisor), const(0, compute))

    def whole(outer: Coordinates, total: Value) -> Value:
        divisor = _divisor(at, grad.shape[lead:], outer[lead:], include_pad, override, compute)
        return op("div", total, divisor) if isinstance(divisor, Const) else total

    return summed(ctx, target, reach, part, whole)


def _average_backward_by_axis(
    ctx: LoweringContext, grad: Ref, at: Windows, target: Ref, include_pad: bool, override: Any
) -> Ref:
    """The same: what the windows give to each position of their rows, then to each of these."""
    lead, compute = len(target.shape) - 2, compute_dtype(target.dtype)

    def share(outer: Coordinates) -> Value:
        divisor = _divisor(at, grad.shape[lead:], outer[lead:], include_pad, override, compute)
        return op("div", cast(grad.load(outer), compute), divisor)

    shares = ctx.fill(ctx.like(target, grad.shape, compute), share)
    rows = ctx.like(target, (*grad.shape[:-1], target.shape[-1]), compute)
    _given_along(ctx, shares, at, lead + 1, rows)
    return _given_along(ctx, rows, at, lead, target)


def _given_along(ctx: LoweringContext, shares: Ref, at: Windows, axis: int, target: Ref) -> Ref:
    """What the windows along one axis give to each position."""
    own = at.along(axis - len(target.shape) + len(at.kernel))
    (side,), (step,), (pad,) = own.kernel, own.stride, own.padding

    def part(outer: Coordinates, inner: Coordinates) -> Value:
        end = sizes.add(outer[axis], sizes.const(pad))
        window = sizes.add(sizes.floordiv(end, step), sizes.scale(inner[0], -1))
        element, inside = element_at(shares, (), (*outer[:axis], window, *outer[axis + 1 :]))
        far = sizes.add(end, sizes.scale(window, -step))
        if not sizes.within(far, side):
            test = op("lt", IndexValue(far), const(side, LONG))
            inside = test if inside is None else op("and", inside, test)
        return Load(element.buffer, element.index, inside)

    return summed(ctx, target, (-(-side // step),), part)
