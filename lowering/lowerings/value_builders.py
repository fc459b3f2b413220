"""Building values with their types right."""

import torch

from ..loops import sizes
from ..loops.ir import Cast, Const, IndexValue, Op, Value
from ..loops.ops import OPS
from ..loops.polynomials import Poly

HALVES = (torch.float16, torch.bfloat16)


def op(name: str, *args: Value) -> Op:
    return Op(name, args, OPS[name].result or args[0].dtype)


def const(value: bool | int | float | Poly, dtype: torch.dtype) -> Value:
    """`value` converted to `dtype` (rounded, for float16 and bfloat16)."""
    if isinstance(value, Poly):
        number = IndexValue(sizes.const(value))  # type: ignore[arg-type]
        return cast(cast(number, torch.float32), dtype) if dtype in HALVES else cast(number, dtype)
    if dtype == torch.bool:
        return Const(bool(value), dtype)
    if dtype.is_floating_point:
        return (
            cast(Const(float(value), torch.float32), dtype)
            if dtype in HALVES
            else Const(float(value), dtype)
        )
    return Const(wrap(int(value), dtype), dtype)


def wrap(value: int, dtype: torch.dtype) -> int:
    """The integer of `dtype` that equals `value` modulo two to its width."""
    info = torch.iinfo(dtype)
    return (value - info.min) % (info.max - info.min + 1) + info.min


def cast(value: Value, dtype: torch.dtype) -> Value:
    """`value.to(dtype)`; nothing if it has the type."""
    if value.dtype == dtype:
        return value
    if (
        isinstance(value, Const)
        and not (value.dtype.is_floating_point and not dtype.is_floating_point)
        and dtype not in HALVES
    ):
        return const(value.value, dtype)
    return Cast(value, dtype)


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """The type arithmetic on `dtype` is done in."""
    return torch.float32 if dtype in HALVES else dtype
