"""Elementwise operators: promotion as torch does it, then one expression."""

import math
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any

import torch
from torch._prims_common import ELEMENTWISE_TYPE_PROMOTION_KIND as KIND
from torch._prims_common import elementwise_dtypes

from ..loops.ir import Cast, Const, IndexValue, Select, Value
from ..loops.kernel_graph import Ref
from ..loops.polynomials import Size, at_least
from .lowering_context import LoweringContext
from .registry import Unsupported, lowers
from .value_builders import HALVES, cast, const, op

aten = torch.ops.aten
Number = bool | int | float
Operand = Ref | Number
INTS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


def promote(
    ctx: LoweringContext, operands: Sequence[Any], kind: KIND
) -> tuple[torch.dtype, torch.dtype]:
    """(dtype to compute in, dtype of the result) of an elementwise operator."""
    examples = tuple(map(ctx.example, operands))
    compute, result = _promoted(examples, kind, torch.get_default_dtype())
    if compute.is_complex or result.is_complex:
        raise Unsupported("complex numbers")
    return compute, result


@cache
def _promoted(
    examples: tuple[Any, ...], kind: KIND, default: torch.dtype
) -> tuple[torch.dtype, torch.dtype]:
    """default: that of torch, which quotients of integers have."""
    args = (example(1) if isinstance(example, type) else example for example in examples)
    return elementwise_dtypes(*args, type_promotion_kind=kind)


def elementwise(
    ctx: LoweringContext,
    node: Any,
    operands: Sequence[Operand],
    fn: Callable[..., Value],
    kind: KIND = KIND.DEFAULT,
) -> Ref:
    """`fn(*values)` at every point of the result, operands converted to the common compute dtype:
    whole numbers in memory to a half type first, as in eager."""
    compute, _ = promote(ctx, operands, kind)
    result = ctx.value_of(node).dtype
    whole = [isinstance(o, Ref) and len(o.shape) > 0 and o.dtype in INTS for o in operands]
    rounded = _rounding(ctx, operands) if any(whole) else _as_it_is

    def body(at: Any) -> Value:
        values = [cast(ctx.element(operand, at, compute), compute) for operand in operands]
        pairs = zip(values, whole, strict=True)
        values = [rounded(value) if is_whole else value for value, is_whole in pairs]
        return cast(fn(*values), result)

    return ctx.pointwise(node, body)


def _rounding(ctx: LoweringContext, operands: Sequence[Operand]) -> Callable[[Value], Value]:
    """What rounds operands to their common type first, as eager does: numbers beside half types
    then lie on one side of a bound, or of a step, as there."""
    common, _ = promote(ctx, operands, KIND.NO_OPMATH)
    return partial(_rounded, dtype=common) if common in HALVES else _as_it_is


def _rounding_on_host(
    ctx: LoweringContext, node: Any, operands: Sequence[Operand]
) -> Callable[[Value], Value]:
    """The same for what the CPU alone rounds: of products and quotients the first operand."""
    on_host = ctx.value_of(node).device.type == "cpu"
    return _rounding(ctx, operands) if on_host else _as_it_is


def _as_it_is(value: Value) -> Value:
    return value


def _rounded(value: Value, dtype: torch.dtype) -> Value:
    exact = isinstance(value, Cast) and value.value.dtype == dtype
    return value if exact else cast(cast(value, dtype), value.dtype)


def _register(
    packet: Any,
    overloads: str,
    fn: Callable[..., Value],
    kind: KIND,
    operands: int,
    stepped: bool = False,
) -> None:
    for name in overloads.split():
        if hasattr(packet, name):

            @lowers(getattr(packet, name))
            def lowering(
                ctx: LoweringContext, node: Any, *args: Any, _fn: Any = fn, **kwargs: Any
            ) -> Ref:
                if kwargs or len(args) != operands:
                    raise Unsupported("arguments")
                if not stepped:
                    return elementwise(ctx, node, args, _fn, kind)
                rounded = _rounding(ctx, args)
                made = lambda *values: _fn(*map(rounded, values))  # noqa: E731
                return elementwise(ctx, node, args, made, kind)


def named(name: str) -> Callable[..., Value]:
    return lambda *args: op(name, *args)


def named_logic(name: str) -> Callable[[Value, Value], Value]:
    return lambda a, b: op(name, cast(a, torch.bool), cast(b, torch.bool))


def unary(packets: str, kind: KIND, fn: Callable[[Value], Value] | None = None) -> None:
    for name in packets.split():
        _register(getattr(aten, name), "default", fn or named(name), kind, 1)


def binary(
    packets: str,
    overloads: str,
    kind: KIND,
    fn: Callable[[Value, Value], Value],
    stepped: bool = False,
) -> None:
    """stepped: a little more of an operand may make much more of the result."""
    for name in packets.split():
        _register(getattr(aten, name), overloads, fn, kind, 2, stepped)


def sign_free(fn: Callable[..., Value]) -> Callable[[Value], Value]:
    """Integers are already whole."""
    return lambda x: fn(x) if x.dtype.is_floating_point else x


unary(
    "exp exp2 expm1 log log2 log10 log1p sin cos tanh erf tan asin acos atan sinh cosh asinh acosh"
    " atanh erfc sigmoid sqrt rsqrt reciprocal",
    KIND.INT_TO_FLOAT,
)
unary("lgamma", KIND.INT_TO_FLOAT, lambda x: _lgamma(x))
unary("neg", KIND.DEFAULT)
unary("abs", KIND.DEFAULT, lambda x: x if x.dtype == torch.bool else op("abs", x))
unary("sign", KIND.DEFAULT, lambda x: x if x.dtype == torch.bool else op("sign", x))
for _whole in ("floor", "ceil", "trunc", "round"):
    unary(_whole, KIND.DEFAULT, sign_free(named(_whole)))
unary("bitwise_not", KIND.DEFAULT, named("not"))
unary("logical_not", KIND.ALWAYS_BOOL, lambda x: op("not", cast(x, torch.bool)))
unary(
    "isnan",
    KIND.ALWAYS_BOOL,
    lambda x: op("isnan", x) if x.dtype.is_floating_point else const(False, torch.bool),
)
unary(
    "isinf",
    KIND.ALWAYS_BOOL,
    lambda x: op("isinf", x) if x.dtype.is_floating_point else const(False, torch.bool),
)
unary("signbit", KIND.ALWAYS_BOOL, lambda x: _signbit(x))
unary("relu", KIND.DEFAULT, lambda x: op("maximum", x, const(0, x.dtype)))


def _lgamma(x: Value) -> Value:
    if x.dtype == torch.float64:
        raise Unsupported("C's lgamma of doubles takes them one by one")
    return op("lgamma", x)


def _signbit(x: Value) -> Value:
    if x.dtype == torch.bool:
        return const(False, torch.bool)
    return op("signbit", x) if x.dtype.is_floating_point else op("lt", x, const(0, x.dtype))


def logic(name: str, numeric: str) -> Callable[[Value, Value], Value]:
    """A function that has a logical form for bool."""
    return lambda a, b: op(name if a.dtype == torch.bool else numeric, a, b)


def extremum(name: str) -> Callable[[Value, Value], Value]:
    """Of two zeros the second one stays, as in eager's vectors."""
    made = logic("or" if name == "maximum" else "and", name)
    return lambda a, b: made(a, b) if _is_nonzero(b) else made(b, a)


def _is_nonzero(value: Value) -> bool:
    return isinstance(value, Const) and value.value != 0


for _name in ("maximum", "minimum"):
    binary(_name, "default", KIND.DEFAULT, extremum(_name))


@lowers(aten.fmax.default, aten.fmin.default)
def _numeric_extremum(ctx: LoweringContext, node: Any, a: Operand, b: Operand) -> Ref:
    """Of a number and NaN the number; of two zeros the first one, of bfloat16 the second one, as in
    eager."""
    made = extremum("maximum" if node.target is aten.fmax.default else "minimum")
    second = ctx.value_of(node).dtype == torch.bfloat16

    def numeric(x: Value, y: Value) -> Value:
        chosen = made(x, y) if second else made(y, x)
        if not x.dtype.is_floating_point:
            return chosen
        return Select(op("isnan", x), y, Select(op("isnan", y), x, chosen))

    return elementwise(ctx, node, (a, b), numeric)


for _name in ("eq", "ne", "lt", "le", "gt", "ge"):
    binary(_name, "Tensor Scalar", KIND.ALWAYS_BOOL, named(_name), stepped=True)
for _name in ("and", "or", "xor"):
    binary(f"bitwise_{_name}", "Tensor Scalar", KIND.DEFAULT, named(_name))
    binary(
        f"logical_{_name}",
        "default",
        KIND.ALWAYS_BOOL,
        named_logic(_name),
    )


def _shifted(name: str, a: Value, b: Value) -> Value:
    """`<<` and `>>`, which multiply and divide floating point."""
    if a.dtype.is_floating_point or a.dtype == torch.bool:
        raise Unsupported("a shift of what is no integer")
    return op(name, a, b)


for _name, _shift in (("bitwise_left_shift", "shl"), ("bitwise_right_shift", "shr")):
    binary(_name, "Tensor Tensor_Scalar", KIND.DEFAULT, named(_shift))
    _operator = f"__{_name.split('_')[1][0]}shift__"
    binary(_operator, "Tensor Scalar", KIND.DEFAULT, partial(_shifted, _shift))
for _name in ("fmod", "remainder"):
    binary(
        _name,
        "Tensor Scalar",
        KIND.DEFAULT,
        lambda a, b, _name=_name: op(_name, a, _nonzero(b)),  # type: ignore[misc]
        stepped=True,
    )
for _name, _kind in (
    ("atan2", KIND.INT_TO_FLOAT),
    ("copysign", KIND.INT_TO_FLOAT),
    ("hypot", KIND.DEFAULT),
):
    binary(_name, "default Tensor Scalar", _kind, named(_name), stepped=True)


def _nonzero(divisor: Value) -> Value:
    """Integer division by zero raises in eager: only a divisor known not to be zero is lowered."""
    from_constant = getattr(divisor, "value", None)
    from_size = (
        isinstance(divisor, IndexValue)
        and not divisor.index.terms
        and at_least(divisor.index.offset, 1)
    )
    known = from_size or (isinstance(from_constant, int) and from_constant != 0)
    if not divisor.dtype.is_floating_point and not known:
        raise Unsupported("integer division by a tensor")
    return divisor


@lowers(aten.add.Tensor, aten.add.Scalar, aten.sub.Tensor, aten.sub.Scalar)
def _add(ctx: LoweringContext, node: Any, a: Operand, b: Operand, alpha: Number = 1) -> Ref:
    name = "add" if "add" in str(node.target) else "sub"
    rounded = _rounding_on_host(ctx, node, (a, b))

    def body(x: Value, y: Value) -> Value:
        if x.dtype == torch.bool:
            return op("or", x, y)
        x, y = rounded(x), rounded(y)
        scaled = y if alpha == 1 else op("mul", y, rounded(const(alpha, y.dtype)))
        return op(name, x, scaled)

    if alpha != 1 and node.meta["val"].dtype == torch.bool:
        raise Unsupported("alpha of bool")
    return elementwise(ctx, node, (a, b), body)


@lowers(aten.mul.Tensor, aten.mul.Scalar)
def _mul(ctx: LoweringContext, node: Any, a: Operand, b: Operand) -> Ref:
    rounded, multiplied = _rounding_on_host(ctx, node, (a, b)), logic("and", "mul")
    return elementwise(ctx, node, (a, b), lambda x, y: multiplied(rounded(x), y))


@lowers(aten.div.Tensor, aten.div.Scalar)
def _div(ctx: LoweringContext, node: Any, a: Operand, b: Operand) -> Ref:
    rounded = _rounding_on_host(ctx, node, (a, b))
    return elementwise(ctx, node, (a, b), lambda x, y: op("div", rounded(x), y), KIND.INT_TO_FLOAT)


@lowers(aten.div.Tensor_mode, aten.div.Scalar_mode)
def _div_mode(
    ctx: LoweringContext, node: Any, a: Operand, b: Operand, *, rounding_mode: str | None
) -> Ref:
    if rounding_mode is None:
        return _div(ctx, node, a, b)
    name = {"floor": "floordiv", "trunc": "truncdiv"}[rounding_mode]
    rounded = _rounding_on_host(ctx, node, (a, b))
    return elementwise(ctx, node, (a, b), lambda x, y: op(name, rounded(x), _nonzero(y)))


@lowers(aten.pow.Tensor_Scalar)
def _pow_scalar(ctx: LoweringContext, node: Any, a: Ref, exponent: Number) -> Ref:
    rounded, value = _rounding(ctx, (a, exponent)), ctx.value_of(node)
    roots = value.dtype != torch.float16 or value.device.type != "cpu"
    return elementwise(
        ctx, node, (a, exponent), lambda x, y: _power(x, exponent, rounded(y), roots)
    )


def _power(x: Value, exponent: Number, y: Value, roots: bool) -> Value:
    """Eager's own shortcuts (aten/src/ATen/native/cpu/PowKernel.cpp): 0.5, 2, 3, -0.5, -1, -2;
    integers by multiplication. roots: whether eager takes them, which tells at -inf and -0."""
    if exponent == 2:
        return op("mul", x, x)
    if exponent == 3:
        return op("mul", op("mul", x, x), x)
    if exponent == 1:
        return x
    if not x.dtype.is_floating_point:
        raise Unsupported("integer power")
    if exponent == 0.5 and roots:
        return op("sqrt", x)
    if exponent == -0.5 and roots:
        return op("rsqrt", x)
    if exponent == -1:
        return op("reciprocal", x)
    if exponent == -2:
        return op("reciprocal", op("mul", x, x))
    return op("pow", x, y)


@lowers(aten.pow.Tensor_Tensor, aten.pow.Scalar)
def _pow(ctx: LoweringContext, node: Any, a: Operand, b: Operand) -> Ref:
    if not node.meta["val"].dtype.is_floating_point:
        raise Unsupported("integer power")
    rounded = _rounding_on_host(ctx, node, (a, b))
    return elementwise(ctx, node, (a, b), lambda x, y: op("pow", rounded(x), rounded(y)))


@lowers(aten.where.self)
def _where(ctx: LoweringContext, node: Any, condition: Ref, a: Operand, b: Operand) -> Ref:
    dtype = ctx.value_of(node).dtype
    if condition.dtype != torch.bool:
        raise Unsupported("condition is not bool")

    def body(at: Any) -> Value:
        sides = [cast(ctx.element(side, at, dtype), dtype) for side in (a, b)]
        return Select(condition.load(at), *sides)

    return ctx.pointwise(node, body)


@lowers(aten.clamp.default, aten.clamp.Tensor, aten.clamp_min.default, aten.clamp_max.default)
def _clamp(
    ctx: LoweringContext, node: Any, x: Ref, low: Operand | None = None, high: Operand | None = None
) -> Ref:
    if "clamp_max" in str(node.target):
        low, high = None, low
    operands = [operand for operand in (x, low, high) if operand is not None]
    names = ["maximum"] * (low is not None) + ["minimum"] * (high is not None)
    steps = [  # a zero stays what it is at a limit that is a number
        extremum(name) if isinstance(limit, Ref) else named(name)
        for name, limit in zip(names, operands[1:], strict=True)
    ]

    def body(value: Value, *limits: Value) -> Value:
        for limited, limit in zip(steps, limits, strict=True):
            value = limited(value, limit)
        return value

    if any(isinstance(limit, float) and math.isnan(limit) for limit in operands[1:]):
        raise Unsupported("NaN limit")
    return elementwise(ctx, node, operands, body)


@lowers(
    aten._to_copy.default,
    torch.ops.prims.convert_element_type.default,
    aten.clone.default,
    aten.alias_copy.default,
)
def _copy(ctx: LoweringContext, node: Any, x: Operand, *args: Any, **kwargs: Any) -> Ref:
    value = ctx.value_of(node)
    if isinstance(x, Number | Size):  # vmap takes numbers for tensors
        return ctx.pointwise(node, lambda at: const(x, value.dtype))
    if (
        value.device != ctx.device_of(x)
        or value.dtype.is_complex
        or kwargs.get("layout") not in (None, torch.strided)
    ):
        raise Unsupported("copy between devices, layouts or to complex")
    return ctx.pointwise(node, lambda at: cast(x.load(at), value.dtype))


def _shows_strides(node: Any) -> bool:
    """Whether the result leaves the graph, or a view is made of it."""
    return any(user.op == "output" or getattr(user.target, "is_view", False) for user in node.users)


@lowers(aten.copy.default)
def _copy_from(
    ctx: LoweringContext, node: Any, x: Ref, source: Ref, non_blocking: bool = False
) -> Ref:
    if ctx.device_of(x) != ctx.device_of(source):
        raise Unsupported("copy between devices")
    value = ctx.value_of(node)
    target = ctx.gapped_result(value) if _shows_strides(node) else ctx.compact_result(value)
    return ctx.fill(target, lambda at: cast(source.load(at), x.dtype))


@lowers(
    aten.full.default,
    aten.full_like.default,
    aten.new_full.default,
    aten.scalar_tensor.default,
    aten.fill.Scalar,
)
def _full(ctx: LoweringContext, node: Any, *args: Any, **kwargs: Any) -> Ref:
    fill = args[0] if node.target is aten.scalar_tensor.default else args[-1]
    if not isinstance(fill, Number | Size):
        raise Unsupported("fill value known at run time")
    return ctx.pointwise(node, lambda at: const(fill, ctx.value_of(node).dtype))


@lowers(
    aten.zeros_like.default,
    aten.ones_like.default,
    aten.zeros.default,
    aten.ones.default,
    aten.new_zeros.default,
    aten._efficientzerotensor.default,
)
def _zeros(ctx: LoweringContext, node: Any, *args: Any, **kwargs: Any) -> Ref:
    return ctx.pointwise(
        node, lambda at: const(int("ones" in str(node.target)), ctx.value_of(node).dtype)
    )
