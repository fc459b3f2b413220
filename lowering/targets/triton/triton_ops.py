"""How each function of the loop IR reads in a Triton kernel. `m` is `triton_math`, `m.ext`
libdevice."""

from __future__ import annotations

import math

import torch

from ....runtime.errors import LoweringError

TYPES: dict[torch.dtype, str] = {
    torch.float64: "tl.float64",
    torch.float32: "tl.float32",
    torch.float16: "tl.float16",
    torch.bfloat16: "tl.bfloat16",
    torch.int64: "tl.int64",
    torch.int32: "tl.int32",
    torch.int16: "tl.int16",
    torch.int8: "tl.int8",
    torch.uint8: "tl.uint8",
    torch.bool: "tl.int1",
}

POINTERS: dict[torch.dtype, str] = {
    torch.float64: "*fp64",
    torch.float32: "*fp32",
    torch.float16: "*fp16",
    torch.bfloat16: "*bf16",
    torch.int64: "*i64",
    torch.int32: "*i32",
    torch.int16: "*i16",
    torch.int8: "*i8",
    torch.uint8: "*u8",
    torch.bool: "*i1",
}


def _library(names: str) -> dict[str, str]:
    return {name: f"m.ext.{name}({{0}})" for name in names.split()}


_ANY = {
    "add": "{0} + {1}",
    "sub": "{0} - {1}",
    "mul": "{0} * {1}",
    "neg": "-{0}",
    "abs": "tl.abs({0})",
    "sign": "m.sign({0})",
    "eq": "{0} == {1}",
    "ne": "{0} != {1}",
    "lt": "{0} < {1}",
    "le": "{0} <= {1}",
    "gt": "{0} > {1}",
    "ge": "{0} >= {1}",
}

_INTEGER = {
    "maximum": "tl.maximum({0}, {1})",
    "minimum": "tl.minimum({0}, {1})",
    "floordiv": "m.div_floor_int({0}, {1})",
    "truncdiv": "{0} // {1}",  # Triton's // truncates
    "remainder": "m.remainder_int({0}, {1})",
    "fmod": "{0} % {1}",  # and its % has the dividend's sign
    "and": "{0} & {1}",
    "or": "{0} | {1}",
    "xor": "{0} ^ {1}",
    "not": "m.invert({0})",
    "shl": "m.shl({0}, {1})",
    "shr": "m.shr({0}, {1})",
    "uniform": "m.uniform({0}, {1}, {2})",
}

_BOOL = {"and": "{0} & {1}", "or": "{0} | {1}", "xor": "{0} ^ {1}", "not": "{0} == 0"}

_FLOAT = {
    **_library(
        "exp expm1 log log2 log10 log1p sin cos tan asin acos atan sinh cosh asinh acosh atanh"
    ),
    **_library("erf erfc erfinv lgamma rsqrt tanh trunc"),
    "maximum": "m.maximum({0}, {1})",
    "minimum": "m.minimum({0}, {1})",
    "floordiv": "m.div_floor_float({0}, {1})",
    "truncdiv": "m.ext.trunc({0} / {1})",
    "remainder": "m.remainder_float({0}, {1})",
    "fmod": "m.ext.fmod({0}, {1})",
    "div": "{0} / {1}",
    "pow": "m.ext.pow({0}, {1})",
    "atan2": "m.ext.atan2({0}, {1})",
    "copysign": "m.ext.copysign({0}, {1})",
    "nextafter": "m.ext.nextafter({0}, {1})",
    "hypot": "m.ext.hypot({0}, {1})",
    "exp2": "tl.exp2({0})",
    "sigmoid": "m.sigmoid({0})",
    "digamma": "m.digamma({0})",
    "sqrt": "tl.sqrt({0})",
    "reciprocal": "1.0 / {0}",
    "floor": "tl.floor({0})",
    "ceil": "tl.ceil({0})",
    "round": "m.ext.nearbyint({0})",
    "fma": "tl.fma({0}, {1}, {2})",
    "isnan": "{0} != {0}",
    "isinf": 'tl.abs({0}) == float("inf")',
    "signbit": "m.signbit({0})",
    "tf32": "m.to_tf32({0})",
}

_HALF = {**_FLOAT, "erf": "m.erf({0})", "tanh": "m.tanh({0})", "sqrt": "tl.sqrt_rn({0})"}

# `/` of float32 is two units in the last place off: x / x would be no 1.
_FLOAT32 = {
    **_HALF,
    "truncdiv": "m.ext.trunc(tl.div_rn({0}, {1}))",
    "div": "tl.div_rn({0}, {1})",
    "reciprocal": "tl.div_rn(1.0, {0})",
}

# For kernels that store nothing wider than 16 bits.
SHORTER = {
    "exp": "m.exp_fast({0})",
    "erf": "m.erf_fast({0})",
    "sigmoid": "m.sigmoid_fast({0})",
}
_FAST = {**_FLOAT32, **SHORTER, "div": _FLOAT["div"], "reciprocal": _FLOAT["reciprocal"]}
_TABLES = {torch.float64: _FLOAT, torch.float32: _FLOAT32}


def template(name: str, dtype: torch.dtype, fast: bool) -> str:
    """The text of `name` over operands of `dtype`, with {0}, {1}, … for them. Raises LoweringError
    for what Triton lacks."""
    table = _BOOL if dtype == torch.bool else _INTEGER
    if dtype.is_floating_point:
        table = _FAST if fast and dtype != torch.float64 else _TABLES.get(dtype, _HALF)
    text = table.get(name) or _ANY.get(name)
    if text is None:
        raise LoweringError(f"the Triton target has no {name} of {dtype}")
    return text


def literal(value: bool | int | float, dtype: torch.dtype) -> str:
    """A Python literal that Triton reads with the value's bits."""
    if dtype == torch.bool:
        return str(bool(value))
    if not dtype.is_floating_point:
        return str(int(value))
    number = float(value)
    return repr(number) if math.isfinite(number) else f'float("{number}")'


def full(value: bool | int | float, dtype: torch.dtype, shape: str = "[]") -> str:
    return f"tl.full({shape}, {literal(value, dtype)}, {TYPES[dtype]})"


def identity(kind: str, dtype: torch.dtype) -> bool | int | float:
    """What leaves a reduction of `kind` as it is."""
    if kind in ("sum", "any", "squares"):
        return 0
    if kind in ("prod", "all"):
        return 1
    lowest = kind in ("max", "argmax", "exponentials")
    if dtype.is_floating_point:
        return -math.inf if lowest else math.inf
    if dtype == torch.bool:
        return not lowest
    info = torch.iinfo(dtype)
    return info.min if lowest else info.max


# One step of a looped reduction: accumulator {0}, new values {1}.
STEPS = {
    "sum": "{0} + {1}",
    "prod": "{0} * {1}",
    "any": "{0} | {1}",
    "all": "{0} & {1}",
}

# The end of a reduction: values {0} over tile axis {1}.
FOLDS = {
    "sum": "tl.sum({0}, {1})",
    "prod": "m.reduce_prod({0}, {1})",
    "any": "m.reduce_any({0}, {1})",
    "all": "m.reduce_all({0}, {1})",
}


def step(kind: str, dtype: torch.dtype) -> str:
    return STEPS.get(kind) or template({"max": "maximum", "min": "minimum"}[kind], dtype, False)


def fold(kind: str, dtype: torch.dtype) -> str:
    if kind in FOLDS:
        return FOLDS[kind]
    return (
        f"m.reduce_{kind}({{0}}, {{1}})" if dtype.is_floating_point else f"tl.{kind}({{0}}, {{1}})"
    )


def cast(text: str, source: torch.dtype, target: torch.dtype) -> str:
    """`text` of `source` as `target`, rounding as torch does."""
    if source == target:
        return text
    if source == torch.bfloat16:  # through float32, which is exact
        text, source = f"m.from_bf16({text})", torch.float32
    if target == torch.bool:
        return f"{text} != 0"
    if target == torch.bfloat16:
        return f"m.to_bf16({text if source == torch.float32 else f'{text}.to(tl.float32)'})"
    if target == source:
        return text
    if target == torch.float16 and source != torch.float32:
        text = f"{text}.to(tl.float32)"
    if target in (torch.uint8, torch.int8, torch.int16) and source.is_floating_point:
        text = f"{text}.to(tl.int64)"  # negative values wrap, as c10's conversions do
    return f"{text}.to({TYPES[target]})"
