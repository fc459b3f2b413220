"""Tensors whose sizes only the data of a call decides, kept in the graph as long as Python does not
ask for their sizes.

Where it does, the graph is cut there, and later calls compare the shape. Our own compiler takes no
such graph; for it, operators with such results run between the graphs.
"""

from typing import Any

import torch

from ....lowering.opinfo import having
from ....runtime.programs.recipes import Apply
from ... import catalogue
from .. import opsets
from ..nested import tensors_in
from ..values import CALL_INPUT
from . import constant_values, scalar_forms, scalars

_PARTS = having("parts")


def may_stay(rec: Any) -> bool:
    """Whether the backend gets graphs with such tensors."""
    return rec.options.backend not in ("native", "aot_eager")


def may_take_size(rec: Any, name: str, size: torch.Tensor) -> bool:
    """Whether the operator may take the size as the tensor that it is."""
    made = rec.value(size).home != CALL_INPUT and name not in _PARTS
    return made and may_stay(rec) and not constant_values.are(rec, size)


def numbers(rec: Any, name: str, args: Any) -> dict[int, scalar_forms.ScalarForm]:
    """The forms of the numbers among the sizes that an operator takes which are read from tensors
    of the graph, by position."""
    if not may_stay(rec) or name in _PARTS:
        return {}
    found: dict[int, scalar_forms.ScalarForm] = {}
    for index in range(len(args))[opsets.SIZES_AT.get(name, slice(0))]:
        form = getattr(args[index], "form", None)
        if (
            not isinstance(form, scalar_forms.ScalarForm)
            or type(args[index]) is not scalars.TracedInt
        ):
            continue
        if args[index].recipe.graph and scalars.live_in(rec, args[index]):
            found[index] = form
    return found


def settle_sizes(rec: Any, name: str, args: Any, kwargs: Any) -> None:
    """Python asks for sizes, or how many parts there are."""
    if name in opsets.SIZED or name in _PARTS:
        for tensor in tensors_in((args, kwargs)):
            _fix(rec, tensor, name)


def _fix(rec: Any, tensor: torch.Tensor, name: str) -> None:
    value = rec.value(tensor)
    if value not in rec.open_shapes:
        return
    if value.home == rec.segment.index:
        rec.breaks(catalogue.DYNAMIC_SHAPE, f"{name} of a tensor that data gives its size")
        rec.cut()
    imported(rec, value, tensor)


def imported(rec: Any, value: Any, tensor: torch.Tensor) -> None:
    """A later graph takes the tensor: it stands for the one shape."""
    if value in rec.open_shapes and value.home != rec.segment.index:
        rec.open_shapes.discard(value)
        recipe = Apply(shape, (rec.value_recipe(value),))
        rec.outcomes.append((len(rec.segments) - 1, recipe, tuple(tensor.shape)))


def spread(rec: Any, given: Any, result: Any, opened: bool) -> None:
    """What an operator makes of such tensors is such a tensor."""
    sources = (rec.tracker.get(tensor) for tensor in tensors_in(given))
    rec.segment.open |= opened
    if opened or any(each is not None and each.value in rec.open_shapes for each in sources):
        made = (rec.tracker.get(tensor) for tensor in tensors_in((result,)))
        rec.open_shapes.update(each.value for each in made if each is not None)


def shape(tensor: torch.Tensor) -> tuple[int, ...]:
    return tuple(tensor.shape)
