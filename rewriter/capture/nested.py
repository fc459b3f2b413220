"""Nested arguments: tensors found, traced scalars replaced."""

from collections.abc import Callable
from typing import Any

import torch

from . import scalars


def tensors_in(obj: Any) -> list[torch.Tensor]:
    """The tensors in nested lists, tuples and dicts."""
    if isinstance(obj, torch.Tensor):
        return [obj]
    if isinstance(obj, list | tuple):
        return [tensor for part in obj for tensor in tensors_in(part)]
    if isinstance(obj, dict):
        return [tensor for part in obj.values() for tensor in tensors_in(part)]
    return []


def settle_in(obj: Any) -> Any:
    """`obj` with every traced scalar in it replaced by its plain value, its outcome recorded; `obj` itself where there is none."""
    return _changed(obj, scalars.settle)


def settle_but_sizes(obj: Any) -> Any:
    """As `settle_in`, but for scalars that follow from sizes: they stay traced."""
    return _changed(obj, lambda value: value if scalars.size_form(value) is not None else scalars.settle(value))


def plain_in(obj: Any) -> Any:
    """`obj` with plain values for traced scalars; no outcome is recorded."""
    return _changed(obj, scalars.plain)


def _changed(obj: Any, change: Callable[[Any], Any]) -> Any:
    if type(obj) in scalars.TRACED:
        return change(obj)
    if type(obj) in (list, tuple, torch.Size):
        parts = [_changed(part, change) for part in obj]
        return type(obj)(parts) if any(a is not b for a, b in zip(parts, obj, strict=True)) else obj
    if type(obj) is dict:
        values = {key: _changed(part, change) for key, part in obj.items()}
        return values if any(values[key] is not obj[key] for key in obj) else obj
    if isinstance(obj, slice):
        ends = (obj.start, obj.stop, obj.step)
        return (
            slice(*(_changed(end, change) for end in ends)) if any(type(end) in scalars.TRACED for end in ends) else obj
        )
    return obj
