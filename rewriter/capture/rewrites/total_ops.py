"""What the core operators may do that only their data decides: the proof that one may be run though
eager would not have run it.

An operator is *total* when it gives a result for every value of arguments of these shapes and
dtypes: it raises nothing, draws nothing, writes nothing, reads nothing on the host. Its backward is
*exact at zero* when a zero gradient coming in gives zeros, whatever the values: a product with
a tensor is not (0 * inf is NaN), a product with a number is.
"""

import math
from collections.abc import Callable
from typing import Any

import torch

from ....lowering.opinfo import having

_TOTAL = having("total")
_PARTIAL_OF_INTEGERS = having("raises_by_integers")
_EXACT_AT_ZERO = having("zero_gradient_stays")
_BY_NUMBERS = frozenset({"mul", "div"})
_TAKES_NUMBERS = having("takes_fill")
_OF_SOME = having("raises_if_empty")


def why_not_total(func: Any, args: Any) -> str:
    """Why running `func` where eager would not may be seen; "" where it cannot."""
    name = func.overloadpacket.__name__
    if func._schema.is_mutable:
        return f"{name} writes"
    if torch.Tag.nondeterministic_seeded in func.tags:
        return f"{name} draws random numbers"
    pointwise = torch.Tag.pointwise in func.tags
    if pointwise or name in _TOTAL:
        return "" if _fits(name, args, pointwise) else f"{name} may raise"
    if name == "native_batch_norm" and args[5] is False:
        return ""
    return f"{name} may raise, or do more than compute"


def _fits(name: str, args: Any, pointwise: bool) -> bool:
    if (name in _TAKES_NUMBERS or pointwise) and not all(map(_has_room(args), args)):
        return False
    if name in _PARTIAL_OF_INTEGERS:
        return any(isinstance(arg, torch.Tensor) and arg.is_floating_point() for arg in args)
    return name not in _OF_SOME or args[0].numel() > 0


def _has_room(args: Any) -> Callable[[Any], bool]:
    """Whether a Python number is one that the tensors' dtypes have: torch raises for others. (Bools
    are masks beside tensors of numbers.)"""
    dtypes = {arg.dtype for arg in args if isinstance(arg, torch.Tensor)} - {torch.bool}

    def fits(number: Any) -> bool:
        if not isinstance(number, int | float) or isinstance(number, bool):
            return True
        return all(_is_in(number, dtype) for dtype in dtypes)

    return fits


def _is_in(number: float, dtype: torch.dtype) -> bool:
    if dtype.is_floating_point:
        return not math.isfinite(number) or abs(number) <= torch.finfo(dtype).max
    if dtype.is_complex or isinstance(number, float):
        return abs(number) <= torch.finfo(torch.float32).max
    return torch.iinfo(dtype).min <= number <= torch.iinfo(dtype).max


def why_backward_inexact(func: Any, args: Any) -> str:
    """Why the backward of `func` may make more than zeros of zeros; "" where it cannot."""
    name = func.overloadpacket.__name__
    if name in _EXACT_AT_ZERO or (name in _BY_NUMBERS and _by_number(name, args)):
        return ""
    return f"the backward of {name} may turn zeros into NaN"


def _by_number(name: str, args: Any) -> bool:
    """A product with, or a quotient by, a finite Python number."""
    finite = [isinstance(arg, int | float) and math.isfinite(arg) for arg in args[:2]]
    return finite[1] and args[1] != 0 if name == "div" else any(finite)
