"""Traced scalars as operands of tensor operators: the number stays in the graph, as a 0-dim tensor.

A Python number is a double (or a 64-bit integer) that torch rounds to the operand's dtype when it
meets a tensor; the graph does the same with a 0-dim tensor of float64 or int64. Only cases where
the two agree are taken: exactly, but for integers of more than 53 bits. Elsewhere the scalar
settles and breaks.
"""

import dataclasses
import operator
from collections.abc import Callable
from typing import Any

import torch
import torch.fx

from ....lowering.opinfo import having
from ....runtime.programs.recipes import Apply, Recipe
from ..segments import SegmentBuilder
from ..values import TracedTensor
from . import scalars


@dataclasses.dataclass(frozen=True, eq=False)
class ScalarForm:
    """How the graph makes a scalar: from a one-element tensor's value, or by arithmetic on other
    forms and constants."""

    function: Callable[..., Any] | None
    parts: tuple[Any, ...]


_WIDE = {float: torch.float64, int: torch.int64}
_ARITHMETIC = {operator.add, operator.sub, operator.mul, operator.truediv, operator.neg, abs}
_CONVERSIONS = {  # by way of which method, to which dtype
    float: ("", torch.float64),
    int: ("trunc", torch.int64),
    round: ("round", torch.int64),
}
_EXTREMES = {max: operator.gt, min: operator.lt}
_SUMS = having("adds_number")
_OPERATIONS = _SUMS | frozenset("__rpow__ gt lt ge le eq ne __eq__ __ne__".split())
_DIVISIONS = frozenset("div true_divide __truediv__ div_ truediv __rdiv__ __rtruediv__".split())
_NAMED = {  # the number that scales what is added; `lowering.graph.tensor_numbers` writes it out
    **dict.fromkeys(having("scaled_by_alpha"), "alpha"),
    **dict.fromkeys(having("scaled_by_value"), "value"),
}
_FUSED = frozenset("_fused_adam_ _fused_adamw_ _fused_sgd_ _fused_adagrad_".split())
# What schedules move; `lowering.graph.fused_steps` takes numbers and tensors.
_RATES = ("lr", "beta1", "momentum")
_NORM = frozenset(
    "weight bias training momentum eps".split()
)  # as torch.nn.functional hands them on
_THIRD = having("third_is_number")
_FILLS = having("second_is_number")
_BOUNDED = frozenset("clamp clamp_ clip clip_".split())
_OF_LISTS = frozenset("_foreach_mul _foreach_mul_".split())
_HALVES = (torch.bfloat16, torch.float16)
# Those that take the number unrounded.
_OF_HALVES = _SUMS | _DIVISIONS | _OF_LISTS | {"_foreach_lerp", "_foreach_lerp_"}


def of_tensor(value: TracedTensor) -> ScalarForm:
    """The form of `tensor.item()`."""
    return ScalarForm(None, (value,))


def of_call(function: Any, args: tuple[Any, ...]) -> ScalarForm | None:
    """The form of arithmetic on scalars, if the graph can do it as Python does (where its int64
    does not overflow, which `checked` asks for)."""
    kinds = [type(scalars.plain(arg)) for arg in args]
    if len(args) == 1 and function is kinds[0]:
        return args[0].form if has_form(args[0]) else None
    if not set(kinds) <= {int, float} or not _is_known(function, kinds):
        return None
    parts = tuple(arg.form if scalars.is_live(arg) else arg for arg in args)
    pairs = zip(parts, args, strict=True)
    lost = any(part is None or scalars.size_form(arg) for part, arg in pairs)
    return None if lost else ScalarForm(function, parts)


def _is_known(function: Any, kinds: list[type]) -> bool:
    """`int`s of more than 53 bits are rounded where they meet floats, or are divided."""
    if function in _CONVERSIONS:
        return len(kinds) == 1
    whole = float not in kinds and function in (operator.floordiv, operator.mod)
    return whole or function in _EXTREMES or function in _ARITHMETIC


def checked(rec: Any, function: Any, args: tuple[Any, ...], recipe: Recipe, result: Any) -> Any:
    """The form of a call, which later calls take if its integer is none that int64, or float64, may
    not have."""
    form = of_call(function, args)
    if form is None or type(result) is not int or function in _EXTREMES:
        return form
    if abs(result) > 2**53:
        return None
    rec.must_work(Apply(_small, (recipe,)))
    return form


def _small(number: int) -> None:
    if abs(number) > 2**53:
        raise OverflowError(f"{number} has more than 53 bits")


def node_of(form: Any, segment: SegmentBuilder, origin: str) -> Any:
    """The node (0-dim, float64 or int64) of a form in `segment`; a constant as it is."""
    if not isinstance(form, ScalarForm):
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
    if form.function in _CONVERSIONS:
        name, wide = _CONVERSIONS[form.function]
        whole = segment.call("call_method", name, parts, {}, origin) if name else parts[0]
        return segment.call("call_method", "to", (whole, wide), {}, origin)
    if _is_real(form):
        pairs = zip(form.parts, parts, strict=True)
        parts = tuple(_as_real(part, node, segment, origin) for part, node in pairs)
    if form.function in _EXTREMES:
        return _extreme(_EXTREMES[form.function], parts, segment, origin)
    return segment.call("call_function", form.function, parts, {}, origin)


def _is_real(form: Any) -> bool:
    """Whether the node of a form is of float64."""
    if not isinstance(form, ScalarForm):
        return isinstance(form, float)
    if form.function is None:
        return bool(form.parts[0].meta.dtype.is_floating_point)
    if form.function in _CONVERSIONS:
        return _CONVERSIONS[form.function][1] is torch.float64
    return form.function is operator.truediv or any(map(_is_real, form.parts))


def _as_real(form: Any, node: Any, segment: SegmentBuilder, origin: str) -> Any:
    """The node in float64: beside a Python float, an int64 tensor of no axis gives float32."""
    if not isinstance(form, ScalarForm) or _is_real(form):
        return node
    return segment.call("call_method", "to", (node, torch.float64), {}, origin)


def _extreme(beats: Any, parts: tuple[Any, ...], segment: SegmentBuilder, origin: str) -> Any:
    """Python's `max` and `min` of two: the second if it beats the first (a NaN beats nothing)."""
    first, second = parts
    wins = segment.call("call_function", beats, (second, first), {}, origin)
    return segment.call("call_function", torch.where, (wins, second, first), {}, origin)


Places = tuple[int | str, ...]


def places_in(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Places:
    """Where an operator takes numbers that may be tensors of no axis in the graph: arguments by
    place or by name."""
    if any(type(arg) in scalars.OF_NUMPY for arg in (*args, *kwargs.values())):
        return ()
    if name in _FUSED:
        return tuple(rate for rate in _RATES if type(kwargs.get(rate)) in scalars.TRACED)
    sides = [arg for arg in args[1:] if isinstance(arg, torch.Tensor)]  # of a choice by a mask
    dtype = dtype_of(args if name != "where" else tuple(sides))
    if dtype is torch.int64:
        whole = len(args) == 2 and not kwargs and name in _OPERATIONS and type(args[1]) is not float
        return (1,) if whole and not _is_real(getattr(args[1], "form", None)) else ()
    if dtype in _HALVES:
        place = _number_in(name, args, kwargs) if name in _OF_HALVES or name in _NAMED else None
        return () if place is None else (place,)
    if dtype not in (torch.float32, torch.float64):
        return ()
    if name in _BOUNDED:
        bounds = dict(zip((1, 2), args[1:], strict=False)) | kwargs
        return tuple(place for place, bound in bounds.items() if bound is not None)
    if name == "where":
        return _sides(args) if len(args) == 3 and not kwargs else ()
    place = _number_in(name, args, kwargs)
    return () if place is None else (place,)


def _sides(args: tuple[Any, ...]) -> Places:
    """The number of the two that a mask chooses from."""
    numbers = [at for at in (1, 2) if not isinstance(args[at], torch.Tensor)]
    return tuple(numbers) if len(numbers) == 1 and isinstance(args[0], torch.Tensor) else ()


def _number_in(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int | str | None:
    if name == "batch_norm":
        tensors = len(args) == 3 and all(isinstance(arg, torch.Tensor) for arg in args)
        averages = tensors and kwargs.keys() == _NORM
        return "momentum" if averages and kwargs["training"] is True else None
    if kwargs:
        named = _NAMED.get(name, "")
        return named if list(kwargs) == [named] and isinstance(kwargs[named], float) else None
    on_list = not isinstance(args[0], torch.Tensor)
    known = _OF_LISTS if on_list else _OPERATIONS | _DIVISIONS | _FILLS
    if len(args) == 3 and name in _THIRD:
        return 2
    return 1 if len(args) == 2 and name in known else None


def operands(rec: Any, name: str, args: Any, kwargs: Any, places: Places) -> Any:
    """(arguments, keywords, the nodes that stand for some) of a call with numbers at `places`: it
    runs with the numbers, the graph gets them as tensors: of the operand's dtype, or in full beside
    halves and for a fused step, which round late."""
    first = _operand(args)
    dtype = torch.float64 if name in _FUSED or first.dtype in _HALVES else first.dtype
    args, kwargs, given, origin = list(args), dict(kwargs), {}, rec.origin_text()
    for place in places:
        into = kwargs if isinstance(place, str) else args
        number = into[place]
        into[place] = scalars.plain(number)
        if has_form(number):
            form = node_of(number.form, rec.segment, origin)
            # a number on the host goes with a tensor on any device, another with its own alone
            to = (dtype,) if _is_on(number.form, "cpu") else (first.device, dtype)
            given[place] = rec.segment.call("call_method", "to", (form, *to), {}, origin)
        else:
            how = {"dtype": dtype, "device": first.device}
            given[place] = rec.segment.call(
                "call_function", torch.scalar_tensor, (into[place],), how, origin
            )
    return *rec.settled(tuple(args), kwargs), given


def _operand(args: Any) -> torch.Tensor:
    """The first tensor of numbers, or of a list of such."""
    lists = [[arg] if isinstance(arg, torch.Tensor) else arg for arg in args]
    given = [each for each in lists if isinstance(each, list | tuple) and each]
    return next((each[0] for each in given if _is_real_like(each)), given[0][0])


def _is_on(form: Any, device: str) -> bool:
    if not isinstance(form, ScalarForm):
        return True
    if form.function is None:
        return bool(form.parts[0].meta.device.type == device)
    return all(_is_on(part, device) for part in form.parts)


def _is_real_like(tensors: Any) -> bool:
    dtype = dtype_of((tensors,))
    return dtype in (torch.float32, torch.float64, torch.int64, *_HALVES)


def mentions(form: Any, value: TracedTensor) -> bool:
    """Whether a form is made of what a tensor holds."""
    return isinstance(form, ScalarForm) and any(
        p is value or mentions(p, value) for p in form.parts
    )


def has_form(number: Any) -> bool:
    """Whether a traced scalar can be made in the graph."""
    return isinstance(getattr(number, "form", None), ScalarForm)


def dtype_of(args: tuple[Any, ...]) -> torch.dtype | None:
    """The dtype of an operator's first tensor, or of its first list of tensors, if it is one."""
    first = args[0] if args else None
    tensors = first if isinstance(first, list | tuple) else [first]
    dtypes = {each.dtype if isinstance(each, torch.Tensor) else None for each in tensors}
    return dtypes.pop() if len(dtypes) == 1 else None
