"""Tensors whose sizes only the data of a call decides, kept in the graph as long as Python does not
ask for their sizes.

Where it does, the graph is cut there, and later calls compare the shape. In a graph of our own
compiler, the operators with such results are calls of the library.
"""

from collections.abc import Iterator
from typing import Any

import torch

from ....lowering.opinfo import having
from ....runtime.programs.recipes import Apply, ConstRecipe
from ....runtime.programs.steps import CALL_INPUT
from ... import catalogue
from .. import opsets
from ..nested import tensors_in
from ..node_arguments import as_nodes
from ..segments import LIBRARY
from . import constant_values, scalar_forms, scalars, traced_sizes

_PARTS = having("parts")


def may_stay(rec: Any) -> bool:
    """Whether the backend gets graphs with such tensors."""
    return rec.options.backend != "aot_eager" and not rec.bodies


def may_take_size(rec: Any, name: str, size: torch.Tensor) -> bool:
    """Whether the operator may take the size as the tensor that it is."""
    made = rec.value(size).home != CALL_INPUT and name not in _PARTS
    return made and may_stay(rec) and not constant_values.are(rec, size)


def numbers(rec: Any, name: str, args: Any) -> frozenset[int]:
    """The places of arguments that are, or hold, sizes which an operator takes and which are read
    from tensors of the graph."""
    if not may_stay(rec) or name in _PARTS - {"split", "split_with_sizes"}:
        return frozenset()
    where = slice(1, 2) if name == "__getitem__" else opsets.SIZES_AT.get(name, slice(0))
    return frozenset(at for at in range(len(args))[where] if any(_read(rec, args[at])))


_NUMBER: Any = scalars.TracedInt


def _read(rec: Any, part: Any) -> Iterator[bool]:
    """Whether each number in an argument is one that the graph has."""
    if type(part) is _NUMBER and scalars.live_in(rec, part):
        yield isinstance(part.form, scalar_forms.ScalarForm) and part.recipe.graph
    elif type(part) in (tuple, list, torch.Size, slice):
        inside = (part.start, part.stop, part.step) if type(part) is slice else part
        for each in inside:
            yield from _read(rec, each)


def nodes(rec: Any, part: Any) -> Any:
    """An argument as the graph has it, with the tensors that such numbers are."""
    if any(_read(rec, part)) and type(part) is _NUMBER:
        return scalar_forms.node_of(part.form, rec.segment, rec.origin_text())
    if type(part) is slice:
        return slice(*(nodes(rec, end) for end in (part.start, part.stop, part.step)))
    if type(part) in (tuple, list, torch.Size):
        made = [nodes(rec, each) for each in part]
        return made if type(part) is list else tuple(made)
    return as_nodes(rec, part)


def asked(rec: Any, name: str, args: Any, kwargs: Any) -> Any:
    """What describes a tensor that data gives its size, in numbers that the graph makes; None where
    that is not asked, or is the length of a list."""
    tensor = args[0] if args else None
    if not isinstance(tensor, torch.Tensor) or not may_stay(rec) or kwargs:
        return None
    value = rec.value(tensor)
    if value not in rec.open_shapes or value.home != rec.segment.index:
        return None
    if name == "get:shape" or (name == "size" and len(args) == 1):
        return torch.Size([_number(rec, tensor, value, "size", (i,)) for i in range(tensor.dim())])
    if name == "size":
        return _number(rec, tensor, value, "size", (int(args[1]),))
    if name in ("numel", "nelement"):
        return _number(rec, tensor, value, "numel", ())
    return _number(rec, tensor, value, "size", (0,)) if name == "__len__" else None


def _number(rec: Any, tensor: Any, value: Any, method: str, arguments: tuple[int, ...]) -> Any:
    seen = getattr(tensor, method)(*arguments)
    form = traced_sizes.OpenRead(seen, value, value.meta, method, arguments)
    parts = (rec.value_recipe(value), *map(ConstRecipe, arguments))
    recipe = Apply(getattr(torch.Tensor, method), parts)
    return scalars.traced(seen, recipe, form, rec)


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


def spread(rec: Any, node: Any, given: Any, result: Any, opened: bool) -> None:
    """What an operator makes of such tensors is such a tensor."""
    opened |= any(traced_sizes.OPEN in each.meta for each in node.all_input_nodes)
    if opened:
        node.meta[LIBRARY] = True
    sources = (rec.tracker.get(tensor) for tensor in tensors_in(given))
    rec.segment.open |= opened
    if opened or any(each is not None and each.value in rec.open_shapes for each in sources):
        made = (rec.tracker.get(tensor) for tensor in tensors_in((result,)))
        rec.open_shapes.update(each.value for each in made if each is not None)


def shape(tensor: torch.Tensor) -> tuple[int, ...]:
    return tuple(tensor.shape)
