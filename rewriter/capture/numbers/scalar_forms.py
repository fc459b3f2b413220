"""Traced scalars as operands of tensor operators: the number stays in the graph, as a 0-dim tensor.

A Python number is a double (or a 64-bit integer) that torch rounds to the operand's dtype when it
meets a tensor; the graph does the same with a 0-dim tensor of float64 or int64. Only cases where
the two agree exactly are taken; elsewhere the scalar settles and breaks.
"""

import dataclasses
import operator
from collections.abc import Callable
from typing import Any

import torch
import torch.fx

from ..segments import SegmentBuilder
from ..values import Value
from . import scalars


@dataclasses.dataclass(frozen=True, eq=False)
class Form:
    """How the graph makes a scalar: from a one-element tensor's value, or by arithmetic on other
    forms and constants."""

    function: Callable[..., Any] | None
    parts: tuple[Any, ...]


_WIDE = {float: torch.float64, int: torch.int64}
_ARITHMETIC = {operator.add, operator.sub, operator.mul, operator.truediv, operator.neg, abs}
_EXTREMES = {max: operator.gt, min: operator.lt}
_OPERATIONS = frozenset(
    "add sub mul __radd__ __rsub__ __rmul__ __rpow__ __add__ __sub__ __mul__ gt lt ge le eq ne"
    " __eq__ __ne__ mul_ add_ sub_".split()
)
_DIVISIONS = frozenset("div true_divide __truediv__ div_ truediv __rdiv__ __rtruediv__".split())
_NAMED = {  # the number that scales what is added; `lowering.graphs.tensor_numbers` writes it out
    **dict.fromkeys("add add_ sub sub_ _foreach_add _foreach_add_".split(), "alpha"),
    **dict.fromkeys("addcdiv addcdiv_ addcmul addcmul_".split(), "value"),
}
_NORM = frozenset(
    "weight bias training momentum eps".split()
)  # as torch.nn.functional hands them on
_WEIGHTED = frozenset("lerp lerp_ _foreach_lerp _foreach_lerp_".split())
_OF_LISTS = frozenset("_foreach_mul _foreach_mul_".split())


def of_tensor(value: Value) -> Form:
    """The form of `tensor.item()`."""
    return Form(None, (value,))


def of_call(function: Any, args: tuple[Any, ...]) -> Form | None:
    """The form of arithmetic on scalars, if the graph can do it exactly: int64 may overflow where
    Python does not, so floats alone."""
    floats = all(type(scalars.plain(arg)) is float or type(arg) is int for arg in args)
    ordered = function in _EXTREMES and all(type(scalars.plain(arg)) is int for arg in args)
    if not ordered and (not floats or function not in _ARITHMETIC | _EXTREMES.keys()):
        return None
    parts = tuple(arg.form if scalars.is_live(arg) else arg for arg in args)
    return (
        None
        if any(
            part is None or scalars.size_form(arg) for part, arg in zip(parts, args, strict=True)
        )
        else Form(function, parts)
    )


def node_of(form: Any, segment: SegmentBuilder, origin: str) -> Any:
    """The node (0-dim, float64 or int64) of a form in `segment`; a constant as it is."""
    if not isinstance(form, Form):
        return form
    if form.function is None:
        (value,) = form.parts
        flat = segment.call(
            "call_method", "reshape", (segment.node(value, value.meta), ()), {}, origin
        )
        detached = segment.call("call_method", "detach", (flat,), {}, origin)
        wide = torch.float64 if value.meta.dtype.is_floating_point else torch.int64
        return segment.call("call_method", "to", (detached, wide), {}, origin)
    parts = tuple(node_of(part, segment, origin) for part in form.parts)
    if form.function in _EXTREMES:
        return _extreme(_EXTREMES[form.function], parts, segment, origin)
    return segment.call("call_function", form.function, parts, {}, origin)


def _extreme(beats: Any, parts: tuple[Any, ...], segment: SegmentBuilder, origin: str) -> Any:
    """Python's `max` and `min` of two: the second if it beats the first (a NaN beats nothing)."""
    first, second = parts
    wins = segment.call("call_function", beats, (second, first), {}, origin)
    return segment.call("call_function", torch.where, (wins, second, first), {}, origin)


def number_in(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int | str | None:
    """Where an operator on float32 or float64 takes a number that may be a tensor in the graph:
    argument 1 (2 of a weighted sum), or the name of a keyword; None elsewhere."""
    if dtype_of(args) not in (torch.float32, torch.float64):
        return None
    if name == "batch_norm":
        tensors = len(args) == 3 and all(isinstance(arg, torch.Tensor) for arg in args)
        averages = tensors and kwargs.keys() == _NORM
        return "momentum" if averages and kwargs["training"] is True else None
    if kwargs:
        named = _NAMED.get(name, "")
        return named if list(kwargs) == [named] and isinstance(kwargs[named], float) else None
    on_list = not isinstance(args[0], torch.Tensor)
    known = _OF_LISTS if on_list else _OPERATIONS | _DIVISIONS
    if len(args) == 3 and name in _WEIGHTED:
        return 2
    return 1 if len(args) == 2 and name in known else None


def has_form(number: Any) -> bool:
    """Whether a traced scalar can be made in the graph."""
    return isinstance(getattr(number, "form", None), Form)


def dtype_of(args: tuple[Any, ...]) -> torch.dtype | None:
    """The dtype of an operator's first tensor, or of its first list of tensors, if it is one."""
    first = args[0] if args else None
    tensors = first if isinstance(first, list | tuple) else [first]
    dtypes = {each.dtype if isinstance(each, torch.Tensor) else None for each in tensors}
    return dtypes.pop() if len(dtypes) == 1 else None
