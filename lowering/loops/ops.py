"""The pointwise functions of the loop IR: name -> arity, operand and result types. Targets print
exactly these."""

import dataclasses

import torch

FLOATS = frozenset({torch.float32, torch.float64})
INTEGERS = frozenset({torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8})
NUMBERS = FLOATS | INTEGERS
LOGICAL = INTEGERS | {torch.bool}
ALL = NUMBERS | {torch.bool}


@dataclasses.dataclass(frozen=True)
class Signature:
    """`operands`: dtypes allowed; all arguments have one dtype, and the result has it too unless
    `result` says otherwise."""

    arity: int
    operands: frozenset[torch.dtype]
    result: torch.dtype | None = None
    cost: int = 1


def _table(names: str, signature: Signature) -> dict[str, Signature]:
    return dict.fromkeys(names.split(), signature)


OPS: dict[str, Signature] = {
    # maximum, minimum propagate NaN and keep the first of two zeros; neg, abs, add, sub, mul of
    # integers wrap around
    **_table("add sub mul maximum minimum", Signature(2, NUMBERS)),
    **_table("neg abs sign", Signature(1, NUMBERS)),
    # integers: floordiv rounds down, truncdiv to zero; remainder has the divisor's sign (Python's
    # %), fmod the dividend's
    **_table("floordiv truncdiv remainder fmod", Signature(2, NUMBERS, cost=8)),
    **_table("div", Signature(2, FLOATS, cost=4)),
    **_table("pow atan2 copysign hypot", Signature(2, FLOATS, cost=30)),
    **_table(
        "exp exp2 expm1 log log2 log10 log1p sin cos tanh erf sigmoid",
        Signature(1, FLOATS, cost=16),
    ),
    **_table(
        "tan asin acos atan sinh cosh asinh acosh atanh erfc lgamma", Signature(1, FLOATS, cost=60)
    ),
    **_table("sqrt rsqrt reciprocal", Signature(1, FLOATS, cost=6)),
    **_table("floor ceil trunc round", Signature(1, FLOATS)),  # round: half to even
    **_table("fma", Signature(3, FLOATS)),
    **_table("and or xor", Signature(2, LOGICAL)),
    **_table("not", Signature(1, LOGICAL)),  # bool: logical, integers: bitwise
    **_table(
        "shl shr", Signature(2, INTEGERS)
    ),  # a shift outside [0, bits): 0 or the sign, as in torch
    **_table("eq ne lt le gt ge", Signature(2, ALL, torch.bool)),
    # a random number in [0, 1): seed, stream, place; the same for the same three
    "uniform": Signature(3, frozenset({torch.int64}), torch.float32, cost=50),
    # to the ten bits of a mantissa that tensor cores take, to nearest, ties away from zero
    "tf32": Signature(1, frozenset({torch.float32})),
    **_table("isnan isinf signbit", Signature(1, FLOATS, torch.bool)),
}
