"""Reductions: sums, extrema, their positions, moments."""

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import torch

from ..loops.ir import Load, Reduced, Value
from ..loops.kernel_graph import Ref
from ..loops.polynomials import Size, at_least, is_known
from ..loops.sizes import Index
from .lowering_context import LoweringContext
from .registry import Unsupported, lowers
from .value_builders import cast, compute_dtype, const, op

aten = torch.ops.aten


class Dims:
    """The axes of `ref` split into kept and reduced ones."""

    def __init__(self, ref: Ref, dims: Sequence[int] | int | None, keepdim: bool) -> None:
        rank = len(ref.shape)
        given = [dims] if isinstance(dims, int) else list(dims or [])
        self.ref, self.keepdim = ref, keepdim
        self.reduced = sorted(d % rank for d in given) if given and rank else list(range(rank))
        self.kept = [d for d in range(rank) if d not in self.reduced]
        self.inner = tuple(ref.shape[d] for d in self.reduced)
        self.count = prod(self.inner)

    def at(self, outer: Sequence[Index], inner: Sequence[Index]) -> tuple[Index, ...]:
        """Coordinates in the operand."""
        kept = [outer[d] for d in self.kept] if self.keepdim else list(outer)
        places = dict(zip(self.kept, kept, strict=True)) | dict(
            zip(self.reduced, inner, strict=True)
        )
        return tuple(places[d] for d in range(len(self.ref.shape)))

    def load(self, outer: Sequence[Index], inner: Sequence[Index]) -> Load:
        return self.ref.load(self.at(outer, inner))


def fold(
    ctx: LoweringContext,
    target: Ref,
    dims: Dims,
    kind: str,
    dtype: torch.dtype,
    post: Callable[[Value], Value] = lambda v: v,
) -> Ref:
    """`post(kind over dims of operand.to(dtype))`."""

    def body(outer: tuple[Index, ...], inner: tuple[Index, ...]) -> Value:
        value = cast(dims.load(outer, inner), dtype)
        return post(Reduced(kind, value, torch.int64 if kind.startswith("arg") else dtype))

    return ctx.reduce(target, dims.inner, body)


def _result(ctx: LoweringContext, node: Any) -> Ref:
    return ctx.result(ctx.value_of(node))


@lowers(aten.sum.default, aten.sum.dim_IntList)
def _sum(
    ctx: LoweringContext,
    node: Any,
    x: Ref,
    dim: Any = None,
    keepdim: bool = False,
    *,
    dtype: Any = None,
) -> Ref:
    target = _result(ctx, node)
    return fold(ctx, target, Dims(x, dim, keepdim), "sum", compute_dtype(target.dtype))


@lowers(aten.mean.default, aten.mean.dim)
def _mean(
    ctx: LoweringContext,
    node: Any,
    x: Ref,
    dim: Any = None,
    keepdim: bool = False,
    *,
    dtype: Any = None,
) -> Ref:
    target, dims = _result(ctx, node), Dims(x, dim, keepdim)
    compute = compute_dtype(target.dtype)
    return fold(
        ctx,
        target,
        dims,
        "sum",
        compute,
        lambda total: op("div", total, const(dims.count, compute)),
    )


@lowers(aten.prod.default, aten.prod.dim_int)
def _prod(
    ctx: LoweringContext,
    node: Any,
    x: Ref,
    dim: Any = None,
    keepdim: bool = False,
    *,
    dtype: Any = None,
) -> Ref:
    target = _result(ctx, node)
    if target.dtype == torch.bool:
        raise Unsupported("product of bool")
    return fold(ctx, target, Dims(x, dim, keepdim), "prod", compute_dtype(target.dtype))


@lowers(aten.amax.default, aten.amin.default)
def _extremum(ctx: LoweringContext, node: Any, x: Ref, dim: Any = (), keepdim: bool = False) -> Ref:
    kind = "max" if node.target is aten.amax.default else "min"
    return _extremum_into(ctx, _result(ctx, node), Dims(x, dim, keepdim), kind)


def _extremum_into(ctx: LoweringContext, target: Ref, dims: Dims, kind: str) -> Ref:
    if not at_least(dims.count, 1):
        raise Unsupported("extremum of what may be nothing")
    if target.dtype == torch.bool:
        return fold(ctx, target, dims, {"max": "any", "min": "all"}[kind], torch.bool)
    return fold(ctx, target, dims, kind, compute_dtype(target.dtype))


@lowers(aten.max.default, aten.min.default)
def _full_extremum(ctx: LoweringContext, node: Any, x: Ref) -> Ref:
    kind = "max" if node.target is aten.max.default else "min"
    return _extremum_into(ctx, _result(ctx, node), Dims(x, None, False), kind)


@lowers(aten.max.dim, aten.min.dim)
def _extremum_with_position(
    ctx: LoweringContext, node: Any, x: Ref, dim: int, keepdim: bool = False
) -> tuple[Ref, Ref]:
    if not x.shape or x.dtype == torch.bool:
        raise Unsupported("scalar or bool")
    kind = "max" if node.target is aten.max.dim else "min"
    values, positions = (ctx.result(value) for value in node.meta["val"])
    dims = Dims(x, dim, keepdim)
    _extremum_into(ctx, values, dims, kind)
    return values, fold(ctx, positions, dims, "arg" + kind, compute_dtype(x.dtype))


@lowers(aten.argmax.default, aten.argmin.default)
def _position(
    ctx: LoweringContext, node: Any, x: Ref, dim: int | None = None, keepdim: bool = False
) -> Ref:
    dims = Dims(x, dim, keepdim)
    if not at_least(dims.count, 1) or x.dtype == torch.bool:
        raise Unsupported("position in what may be nothing or in bool")
    kind = "argmax" if node.target is aten.argmax.default else "argmin"
    return fold(ctx, _result(ctx, node), dims, kind, compute_dtype(x.dtype))


@lowers(
    aten.any.default, aten.any.dim, aten.any.dims, aten.all.default, aten.all.dim, aten.all.dims
)
def _logical(
    ctx: LoweringContext, node: Any, x: Ref, dim: Any = None, keepdim: bool = False
) -> Ref:
    target = _result(ctx, node)
    if target.dtype != torch.bool:
        raise Unsupported("uint8 result")
    return fold(
        ctx,
        target,
        Dims(x, dim, keepdim),
        "any" if "any" in str(node.target) else "all",
        torch.bool,
    )


def _moments(
    ctx: LoweringContext, x: Ref, dims: Dims, correction: Any, target: Ref, mean: Ref
) -> None:
    """Two passes, as precise as Welford's and vectorisable: the mean, then the squared distances
    from it, less what the mean's rounding adds (the corrected two-pass algorithm: Chan, Golub and
    LeVeque, "Algorithms for computing the sample variance", 1983)."""
    compute = mean.dtype
    count = const(dims.count, compute)
    fold(ctx, mean, dims, "sum", compute, lambda total: op("div", total, count))
    divisor = const(_degrees(dims.count, 1 if correction is None else correction), compute)

    def body(outer: tuple[Index, ...], inner: tuple[Index, ...]) -> Value:
        distance = op(
            "sub", cast(dims.load(outer, inner), compute), cast(mean.load(outer), compute)
        )
        squares, sums = (
            Reduced("sum", op("mul", distance, distance), compute),
            Reduced("sum", distance, compute),
        )
        excess = op("mul", sums, op("div", sums, count))
        excess = op("minimum", excess, const(torch.finfo(compute).max, compute))  # no inf - inf
        return op("div", op("maximum", op("sub", squares, excess), const(0, compute)), divisor)

    ctx.reduce(target, dims.inner, body)


def _degrees(count: Size, correction: float) -> float:
    """What squared distances are divided by."""
    if is_known(count):
        return max(count - correction, 0)
    if correction != int(correction) or not at_least(count, int(correction)):
        raise Unsupported(f"variance of {count} elements with correction {correction}")
    return count - int(correction)


def _variance_dtype(ctx: LoweringContext, x: Ref) -> torch.dtype:
    """Eager's type for variances that are asked for by themselves."""
    return torch.float64 if ctx.device_of(x).type == "cpu" else compute_dtype(x.dtype)


@lowers(aten.var.correction)
def _var(
    ctx: LoweringContext,
    node: Any,
    x: Ref,
    dim: Any = None,
    *,
    correction: Any = None,
    keepdim: bool = False,
) -> Ref:
    target = _result(ctx, node)
    mean = ctx.temporary(target.shape, _variance_dtype(ctx, x), ctx.device_of(x))
    _moments(ctx, x, Dims(x, dim, keepdim), correction, target, mean)
    return target


@lowers(aten.std.correction)
def _std(
    ctx: LoweringContext,
    node: Any,
    x: Ref,
    dim: Any = None,
    *,
    correction: Any = None,
    keepdim: bool = False,
) -> Ref:
    target, dtype = _result(ctx, node), _variance_dtype(ctx, x)
    mean, variance = (ctx.temporary(target.shape, dtype, ctx.device_of(x)) for _ in range(2))
    _moments(ctx, x, Dims(x, dim, keepdim), correction, variance, mean)
    return ctx.fill(target, lambda at: cast(op("sqrt", variance.load(at)), target.dtype))


@lowers(aten.var_mean.correction)
def _var_mean(
    ctx: LoweringContext,
    node: Any,
    x: Ref,
    dim: Any = None,
    *,
    correction: Any = None,
    keepdim: bool = False,
) -> tuple[Ref, Ref]:
    target, mean = (ctx.result(value) for value in node.meta["val"])
    exact = ctx.temporary(target.shape, compute_dtype(x.dtype), ctx.device_of(x))
    _moments(ctx, x, Dims(x, dim, keepdim), correction, target, exact)
    return target, ctx.fill(mean, lambda at: cast(exact.load(at), mean.dtype))


@lowers(aten.cumsum.default, aten.cumprod.default)
def _running(ctx: LoweringContext, node: Any, x: Ref, dim: int, *, dtype: Any = None) -> Ref:
    target = _result(ctx, node)
    if target.dtype == torch.bool:
        raise Unsupported("a scan of bool")
    if not x.shape or not all(at_least(size, 1) for size in x.shape):
        raise Unsupported("a scan of a scalar or of what may be nothing")
    kind = "running sum" if node.target is aten.cumsum.default else "running prod"
    if x.shape[dim % len(x.shape)] == 1:
        return ctx.fill(target, lambda at: cast(x.load(at), target.dtype))
    return ctx.scan(target, dim % len(x.shape), x.load, kind)
