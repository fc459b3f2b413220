"""Tensors that only the library takes, nested, sparse or wrapped ones: what Python asks of them is
compared at later calls, and sizes that are no numbers stand in the graph."""

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

from ...runtime.programs.recipes import Apply, ConstRecipe
from .. import catalogue
from . import opsets
from .guarded_kinds import BY_IDENTITY, is_constant

# What follows from more than class, dtype and device.
_COMPARED = opsets.SIZED | {"is_coalesced", "sparse_dim", "dense_dim"}


def described(rec: Any, func: Callable[..., Any], name: str, args: Any, kwargs: Any) -> Any:
    """What `func` says of the tensor, relied upon. Raises Stopped."""
    result, value = func(*args, **kwargs), rec.value(args[0])
    if name not in _COMPARED:
        return result
    sizes = result if isinstance(result, tuple | list) else (result,)
    dims = enumerate(sizes) if len(args) == 1 else [(int(args[1]), result)]
    if name in ("get:shape", "size"):
        found = [(each, value, dim) for dim, each in dims if isinstance(each, torch.SymInt)]
        rec.symbols_of += found
    recipe = Apply(
        lambda tensor, *rest: numbers(func(tensor, *rest)),
        (rec.value_recipe(value), *map(ConstRecipe, args[1:])),
    )
    rec.outcomes.append((recipe.after, recipe, numbers(result)))
    return result


def hold(rec: Any, tensor: torch.Tensor, name: str, held: Any) -> None:
    """An attribute of the tensor is relied upon. Raises Stopped where it cannot be compared."""
    if not all(map(_is_compared, tree_leaves(held))):
        rec.stop_here(catalogue.UNSUPPORTED, f"{name} of a {type(tensor).__name__} of the call's")
    with rec.paused():
        recipe = Apply(getattr, (rec.value_recipe(rec.value(tensor)), ConstRecipe(name)))
    rec.outcomes.append((recipe.after, recipe, tree_map(lambda each: each, held)))


def _is_compared(value: Any) -> bool:
    """Whether nobody writes to it, and `==` tells it from others."""
    return is_constant(value) or isinstance(value, BY_IDENTITY)


def numbers(result: Any) -> Any:
    """What is compared of an answer: not the sizes that are no numbers."""
    if isinstance(result, tuple | list):
        return tuple(map(numbers, result))
    return None if isinstance(result, torch.SymInt) else result


def size_node(rec: Any, size: torch.SymInt) -> Any:
    """The node of a size that was read of a nested tensor, or None."""
    for symbol, value, dim in rec.symbols_of:
        if symbol.node is size.node or bool(symbol == size):
            node = rec.segment.node(value, value.meta)
            return rec.segment.call("call_method", "size", (node, dim), {}, rec.origin_text())
    return None
