"""C++ of every operation and type: templates with numbered holes."""

import ctypes
import math

import torch

from ...loops.ir import Buffer

TYPES = {
    torch.float32: "float",
    torch.float64: "double",
    torch.bfloat16: "bf16",
    torch.float16: "fp16",
    torch.int64: "int64_t",
    torch.int32: "int32_t",
    torch.int16: "int16_t",
    torch.int8: "int8_t",
    torch.uint8: "uint8_t",
    torch.bool: "bool",
}


def element_type(buffer: Buffer) -> str:
    """What memory holds: bytes for bools, of which GCC does not vectorise loads."""
    return "uint8_t" if buffer.dtype == torch.bool else TYPES[buffer.dtype]


# {f}: "f" for float, nothing for double
FLOAT = {
    "add": "({0} + {1})",
    "sub": "({0} - {1})",
    "mul": "({0} * {1})",
    "div": "({0} / {1})",
    "neg": "(-{0})",
    "abs": "__builtin_fabs{f}({0})",
    "sqrt": "__builtin_sqrt{f}({0})",
    "rsqrt": "(1 / __builtin_sqrt{f}({0}))",
    "reciprocal": "(1 / {0})",
    "sigmoid": "(1 / (1 + exp(-{0})))",  # of double
    "floor": "__builtin_floor{f}({0})",
    "ceil": "__builtin_ceil{f}({0})",
    "trunc": "__builtin_trunc{f}({0})",
    "round": "__builtin_rint{f}({0})",
    "truncdiv": "__builtin_trunc{f}({0} / {1})",
    "fma": "__builtin_fma{f}({0}, {1}, {2})",
    "copysign": "__builtin_copysign{f}({0}, {1})",
    "isnan": "({0} != {0})",
    "isinf": "(__builtin_fabs{f}({0}) == __builtin_inf{f}())",
    "signbit": "op_signbit({0})",
    "tf32": "op_tf32({0})",
}
INTEGER = {
    "add": "({t})({0} + {1})",
    "sub": "({t})({0} - {1})",
    "mul": "({t})({0} * {1})",
    "neg": "({t})(-{0})",
    "abs": "({t})({0} < 0 ? -{0} : {0})",
    "and": "({t})({0} & {1})",
    "or": "({t})({0} | {1})",
    "xor": "({t})({0} ^ {1})",
    "not": "({t})(~{0})",
}
BOOL = {"and": "({0} & {1})", "or": "({0} | {1})", "xor": "({0} ^ {1})", "not": "(!{0})"}
COMPARISONS = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
HELPERS = frozenset(
    {"maximum", "minimum", "sign", "floordiv", "remainder", "fmod", "shl", "shr", "truncdiv"}
)
LIBRARY = frozenset(
    "exp exp2 expm1 log log2 log10 log1p sin cos tan asin acos atan sinh cosh tanh asinh acosh"
    " atanh erf erfc lgamma pow atan2 hypot".split()
)
BINARY_LIBRARY = frozenset({"pow", "atan2", "hypot"})


def library_calls(name: str, dtype: torch.dtype) -> str | None:
    """The C library function that the operation calls: to be declared."""
    stem = (
        "exp"
        if name == "sigmoid"
        else name
        if name in LIBRARY
        else "fmod"
        if name in FMOD_USERS
        else None
    )
    own = dtype == torch.float32 and stem in OWN
    if stem is None or not dtype.is_floating_point or own:
        return None
    return stem + ("f" if dtype == torch.float32 else "")


OWN = frozenset({"exp", "exp2", "erf", "sigmoid", "lgamma"})  # of prelude.h, lgamma.h, in float
FMOD_USERS = frozenset({"fmod", "remainder", "floordiv"})


def operation(name: str, dtype: torch.dtype, args: list[str]) -> str:
    """The C++ expression; `dtype` is that of the operands."""
    if name in COMPARISONS:
        return f"({args[0]} {COMPARISONS[name]} {args[1]})"
    suffix = "f" if dtype == torch.float32 else ""
    if name in OWN and suffix:
        return f"op_{name}({args[0]})"
    table = FLOAT if dtype.is_floating_point else BOOL if dtype == torch.bool else INTEGER
    if name in table:
        return table[name].format(*args, f=suffix, t=TYPES[dtype])
    if name in HELPERS:
        return f"op_{name}<{TYPES[dtype]}>({', '.join(args)})"
    if name == "uniform":
        return f"op_uniform({', '.join(args)})"
    if name == "cos" and dtype.is_floating_point:
        return f"cos{suffix}(op_turned({args[0]}))"
    if name in LIBRARY and dtype.is_floating_point:
        return f"{name}{suffix}({', '.join(args)})"
    raise KeyError(name)


def literal(value: bool | int | float, dtype: torch.dtype) -> str:
    if dtype == torch.bool:
        return "true" if value else "false"
    if not dtype.is_floating_point:
        return f"({TYPES[dtype]}){_integer(int(value))}"
    suffix = "f" if dtype == torch.float32 else ""
    number = ctypes.c_float(value).value if suffix else float(value)
    if math.isnan(number):
        return f'__builtin_nan{suffix}("")'
    if math.isinf(number):
        return f"({'-' if number < 0 else ''}__builtin_inf{suffix}())"
    text = float(number).hex()
    return f"({text}{suffix})" if number < 0 or text.startswith("-") else text + suffix


def _integer(value: int) -> str:
    return (
        "(-9223372036854775807LL - 1)"
        if value == -(2**63)
        else f"{value}LL"
        if value >= 0
        else f"({value}LL)"
    )


def lowest(dtype: torch.dtype) -> str:
    return (
        "(-__builtin_inf())" if dtype.is_floating_point else literal(torch.iinfo(dtype).min, dtype)
    )


def highest(dtype: torch.dtype) -> str:
    return "__builtin_inf()" if dtype.is_floating_point else literal(torch.iinfo(dtype).max, dtype)


# Added to what is truncated: else GCC takes (float)(int)x for trunc(x), which keeps infinities,
# NaN and the sign of zero. A kernel reads it where nothing is known of it.
HIDDEN_ZERO = "hidden_zero"


def conversion(text: str, source: torch.dtype, target: torch.dtype) -> str:
    """`text` of `source` as `target`, as c10::convert does it on x86: half types go through float,
    float to uint8 through int64_t."""
    if source in (torch.bfloat16, torch.float16):
        as_float = f"from_{TYPES[source]}({text})"
        return as_float if target == torch.float32 else conversion(as_float, torch.float32, target)
    if target == torch.bool:
        return f"({text} != 0)"
    if target in (torch.bfloat16, torch.float16):
        as_float = text if source == torch.float32 else f"(float)({text})"
        return f"to_{TYPES[target]}({as_float})"
    if source == torch.bool and target.is_floating_point:  # GCC has no vectors of a cast
        return f"({text} ? {literal(1, target)} : {literal(0, target)})"
    if source.is_floating_point and target in (torch.int32, torch.int64):
        return f"(({TYPES[target]})({text}) + {HIDDEN_ZERO})"
    if source.is_floating_point and target in (torch.uint8, torch.int8, torch.int16):
        between = "int64_t" if target == torch.uint8 else "int32_t"
        return f"({TYPES[target]})({between})({text})"
    return f"({TYPES[target]})({text})"


def division(dtype: torch.dtype) -> str:
    f = "f" if dtype == torch.float32 else ""
    return f"FLOAT_DIVISION({TYPES[dtype]}, fmod{f}, __builtin_floor{f}, __builtin_copysign{f})"


def extremum_reductions(name: str, dtype: torch.dtype) -> str:
    low, high = ("-__builtin_inf()", "__builtin_inf()")
    if not dtype.is_floating_point:
        info = torch.iinfo(dtype)
        low, high = f"({name})({info.min + 1}LL - 1)", f"({name}){info.max}LL"
    return "\n".join(
        f"#pragma omp declare reduction(op_{kind} : {name} : omp_out ="
        f" op_{kind}imum<{name}>(omp_in, omp_out)) initializer(omp_priv = ({name})({start}))"
        for kind, start in (("max", low), ("min", high))
    )
