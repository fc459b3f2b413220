"""Adaptive average pooling and its gradient. Window i of n over an axis of m holds positions
floor(i m / n) to ceil((i + 1) m / n)."""

from collections.abc import Sequence
from typing import Any

import torch

from ..loops import sizes
from ..loops.ir import IndexValue, Load, Value
from ..loops.kernel_graph import Ref
from ..loops.polynomials import Size, is_known
from ..loops.sizes import Index
from .lower_pool import Coordinates, element_at, summed
from .lowering_context import LoweringContext
from .registry import Unsupported, lowers
from .value_builders import cast, compute_dtype, op

aten = torch.ops.aten
Axes = tuple[int, ...]


@lowers(aten._adaptive_avg_pool2d.default, aten._adaptive_avg_pool3d.default)
def _adaptive(ctx: LoweringContext, node: Any, x: Ref, size: Sequence[int]) -> Ref:
    target = ctx.result(ctx.value_of(node))
    axes = _pooled_axes(x.shape, len(size), target.shape)
    if not _by_axis(ctx, x, target, axes):
        return _averages(ctx, x, axes, target)
    for axis in axes[:-1]:  # rows first, whose sums are vectors
        shape = (*x.shape[:axis], target.shape[axis], *x.shape[axis + 1 :])
        x = _averages(ctx, x, (axis,), ctx.like(x, shape, compute_dtype(x.dtype)))
    return _averages(ctx, x, axes[-1:], target)


@lowers(aten._adaptive_avg_pool2d_backward.default)
def _adaptive_avg_pool2d_backward(ctx: LoweringContext, node: Any, grad: Ref, x: Ref) -> Ref:
    return _backward(ctx, node, grad, 2)


@lowers(aten._adaptive_avg_pool3d_backward.default)
def _adaptive_avg_pool3d_backward(ctx: LoweringContext, node: Any, grad: Ref, x: Ref) -> Ref:
    return _backward(ctx, node, grad, 3)


def _backward(ctx: LoweringContext, node: Any, grad: Ref, rank: int) -> Ref:
    """Each window shares its gradient out equally."""
    target = ctx.result(ctx.value_of(node))
    axes, kind = _pooled_axes(target.shape, rank, grad.shape), compute_dtype(target.dtype)
    count = dict(zip(axes, target.shape[-rank:], strict=True))

    def share(at: Coordinates) -> Value:
        value = cast(grad.load(at), kind)
        for axis in axes:
            start, end = _limits(at[axis], count[axis], grad.shape[axis])
            value = op("div", value, cast(IndexValue(sizes.add(end, sizes.scale(start, -1))), kind))
        return value

    by_axis = _by_axis(ctx, target, grad, axes)
    grad = ctx.fill(ctx.like(target, grad.shape, kind), share)
    if not by_axis:
        return _spread(ctx, grad, axes, target)
    for axis in axes[:0:-1]:  # columns first: rows are then whole vectors of these
        shape = (*grad.shape[:axis], target.shape[axis], *grad.shape[axis + 1 :])
        grad = _spread(ctx, grad, (axis,), ctx.like(grad, shape, kind))
    return _spread(ctx, grad, axes[:1], target)


def _pooled_axes(shape: Sequence[Size], rank: int, pooled: Sequence[Size]) -> Axes:
    if not all(map(is_known, (*shape, *pooled))) or 0 in shape or 0 in pooled:
        raise Unsupported("windows that only a call knows")
    return tuple(range(len(shape) - rank, len(shape)))


def _by_axis(ctx: LoweringContext, whole: Ref, pooled: Ref, axes: Axes) -> bool:
    """Whether windows overlap, so that what is made along one axis serves several windows, for
    kernels that read memory one element after the other."""
    return ctx.ordered and any(whole.shape[axis] % pooled.shape[axis] for axis in axes)


def _limits(window: Index, m: int, n: int) -> tuple[Index, Index]:
    start = sizes.floordiv(sizes.scale(window, m), n)
    return start, sizes.floordiv(sizes.add(sizes.scale(window, m), sizes.const(m + n - 1)), n)


def _averages(ctx: LoweringContext, x: Ref, axes: Axes, target: Ref) -> Ref:
    """The averages of windows along `axes`."""
    kind = compute_dtype(x.dtype)
    counts = [(x.shape[axis], target.shape[axis]) for axis in axes]
    longest = tuple(
        max(-(-(i + 1) * m // n) - i * m // n for i in range(min(n, m * n))) for m, n in counts
    )

    def limits(outer: Coordinates) -> list[tuple[Index, Index]]:
        return [_limits(outer[axis], m, n) for axis, (m, n) in zip(axes, counts, strict=True)]

    def part(outer: Coordinates, inner: Coordinates) -> Value:
        at, tests = list(outer), list[Value]()
        for axis, k, (start, end), (m, n) in zip(axes, inner, limits(outer), counts, strict=True):
            at[axis] = sizes.add(start, k)
            if m % n:
                tests.append(op("lt", IndexValue(at[axis]), IndexValue(end)))
        return cast(_under(x, at, tests), kind)

    def mean(outer: Coordinates, total: Value) -> Value:
        for start, end in limits(outer):
            length = IndexValue(sizes.add(end, sizes.scale(start, -1)))
            total = op("div", total, cast(length, kind))
        return total

    return summed(ctx, target, longest, part, mean)


def _under(x: Ref, at: Sequence[Index], tests: Sequence[Value]) -> Load:
    """The element, 0 outside and where a test fails."""
    element, inside = element_at(x, (), tuple(at))
    for test in tests:
        inside = test if inside is None else op("and", inside, test)
    return Load(element.buffer, element.index, inside)


def _spread(ctx: LoweringContext, shares: Ref, axes: Axes, target: Ref) -> Ref:
    """What the windows along `axes` give to each position: p of an axis of m lies in windows
    floor(p n / m) to floor(((p + 1) n - 1) / m)."""
    counts = [(target.shape[axis], shares.shape[axis]) for axis in axes]
    most = tuple(max(((p + 1) * n - 1) // m - p * n // m + 1 for p in range(m)) for m, n in counts)

    def part(outer: Coordinates, inner: Coordinates) -> Value:
        at, tests = list(outer), list[Value]()
        for axis, k, (m, n) in zip(axes, inner, counts, strict=True):
            ahead = sizes.scale(outer[axis], n)
            at[axis] = sizes.add(sizes.floordiv(ahead, m), k)
            if m % n:
                last = sizes.floordiv(sizes.add(ahead, sizes.const(n - 1)), m)
                tests.append(op("le", IndexValue(at[axis]), IndexValue(last)))
        return _under(shares, at, tests)

    return summed(ctx, target, most, part)
