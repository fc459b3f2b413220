"""Operators whose result has a shape that data decides, where that data is constant: the graph gets
an operator that says the same for a known shape."""

from collections.abc import Callable, Iterator
from typing import Any

import torch

from ....lowering.opinfo import having
from .. import opsets
from ..nested import tensors_in
from . import constant_values, open_shapes, traced_sizes

_PACKED = frozenset(("_pack_padded_sequence", "_pad_packed_sequence"))
_WHOLE = having("data_shape_of_all")


def settled(rec: Any, name: str, args: Any) -> bool:
    """Whether the operator may stay as it is: what has one shape for all data, as packed sequences
    of constant lengths. AOTAutograd does not take them."""
    if not open_shapes.may_stay(rec) or rec.options.backend == "native":
        return False  # our own compiler takes none
    if name in opsets.READING:
        return True
    return name in _PACKED and constant_values.are(rec, args[1], given=True)


def call(rec: Any, func: Callable[..., Any], name: str, args: Any, kwargs: Any) -> Any:
    """What the operator gives, in a tuple; None where data that is not constant decides."""
    if name in _WHOLE or (name == "where" and len(args) == 1):
        return _whole(rec, func, args, kwargs)
    if name == "__getitem__":
        return _masked(rec, func, args)
    if name == "repeat_interleave" and len(args) > 1 and args[1].dim() == 1:
        return _repeated(rec, func, args, kwargs)
    return None


def _whole(rec: Any, func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    if not constant_values.are(rec, (args, kwargs), given=True):
        return None
    result = func(*args, **kwargs)
    for tensor in tensors_in(result):
        constant_values.bind(rec, tensor)
    return (result,)


def _repeated(rec: Any, func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    if not constant_values.are(rec, args[1], given=True):
        return None
    size, each = int(args[1].detach().sum()), "repeat_interleave"
    if args[1].numel() == 1:  # of every element
        return (rec.operate(func, each, (args[0], size, *args[2:]), kwargs),)
    return (rec.operate(func, each, args, {**kwargs, "output_size": size}),)


def _masked(rec: Any, func: Callable[..., Any], args: Any) -> Any:
    """`t[mask]`: the places that the mask chooses, in numbers."""
    key = args[1] if isinstance(args[1], tuple) else (args[1],)
    masks = [part for part in key if opsets.is_mask(part)]
    whole = any(part.dim() == 0 for part in masks)  # which adds an axis
    if whole or not constant_values.are(rec, masks, given=True) or not _fit(rec, args[0], key):
        return None
    places: list[Any] = []
    for part in key:
        chosen = torch.nonzero(part, as_tuple=True) if opsets.is_mask(part) else (part,)
        for index in chosen if opsets.is_mask(part) else ():
            constant_values.bind(rec, index)
        places += chosen
    return (rec.operate(func, "__getitem__", (args[0], tuple(places)), {}),)


def _fit(rec: Any, tensor: torch.Tensor, key: tuple[Any, ...]) -> bool:
    """Whether the masks have the sizes of the axes that they stand for, which later calls have,
    too: places that they choose say nothing of them."""
    rec.value(tensor)  # whose sizes may be the first that are symbols
    sizes = list(masked_sizes(tensor, key))
    fit = all(tensor.dim() > dim and tensor.shape[dim] == size for dim, size in sizes)
    if fit and rec.has_symbols():
        traced_sizes.rely_on(rec, tensor, [dim for dim, _ in sizes])
    return fit


def masked_sizes(tensor: torch.Tensor, key: Any) -> Iterator[tuple[int, Any]]:
    """The dims of the tensor that masks among the key stand for, and their sizes in these."""
    parts = key if isinstance(key, tuple | list) else (key,)
    taken = [_axes(part) for part in parts]
    dim = 0
    for part, axes in zip(parts, taken, strict=True):
        if opsets.is_mask(part):
            yield from enumerate(part.shape, dim)
        dim += tensor.dim() - sum(taken) if part is Ellipsis else axes


def _axes(part: Any) -> int:
    """How many axes a part of a key stands for."""
    if part is None or part is Ellipsis or isinstance(part, bool):
        return 0
    return int(part.dim()) if opsets.is_mask(part) else 1


def at_places(rec: Any, args: Any) -> Any:
    """The arguments of `t[mask] = rows`, a row for each place, which learn: the places in numbers,
    for AOTAutograd cannot know how many a backward reads there."""
    if rec.options.backend not in ("native", "aot_eager"):
        return args
    tensor, key, rows = args
    key = key if isinstance(key, tuple) else (key,)
    masks = [at for at, part in enumerate(key) if opsets.is_mask(part)]
    learn = isinstance(rows, torch.Tensor) and rows.requires_grad and torch.is_grad_enabled()
    if not learn or len(masks) != 1 or not key[masks[0]].dim():
        return args
    (at,) = masks
    mask = key[at]
    if any(not isinstance(part, slice) for part in (*key[:at], *key[at + 1 :])):
        return args
    if not _fit(rec, tensor, key):
        return args
    axis = at - (tensor.dim() - mask.dim() + 1)  # of the places, from the end
    if rows.dim() < -axis or rows.shape[axis] == 1:
        return args
    if constant_values.are(rec, [mask], given=True):
        places: Any = torch.nonzero(mask, as_tuple=True)
        for index in places:
            constant_values.bind(rec, index)
    else:
        places = rec.operate(torch.nonzero, "nonzero", (mask,), {"as_tuple": True})
    return tensor, (*key[:at], *places, *key[at + 1 :]), rows
