"""Nested arguments: tensors found, traced scalars replaced."""

from collections.abc import Callable
from typing import Any

import torch

from .numbers import scalars


def tensors_in(obj: Any) -> list[torch.Tensor]:
    """The tensors in nested lists, tuples and dicts; what stands at two places counts once."""
    found: list[torch.Tensor] = []
    seen: set[int] = set()
    rest = [obj]
    while rest:
        part = rest.pop()
        if isinstance(part, torch.Tensor):
            found.append(part)
        elif isinstance(part, list | tuple | dict) and (key := id(part)) not in seen:
            seen.add(key)
            rest.extend(reversed(part.values() if isinstance(part, dict) else part))
    return found


def concretize(obj: Any) -> Any:
    """`obj` with every traced scalar in it replaced by its plain value, its outcome recorded; `obj`
    itself where there is none."""
    return _changed(obj, scalars.concretize_scalar, {})


def settle_but_sizes(obj: Any) -> Any:
    """As `settle_in`, but for scalars that follow from sizes: they stay traced."""
    return _changed(
        obj,
        lambda value: (
            value if scalars.size_form(value) is not None else scalars.concretize_scalar(value)
        ),
        {},
    )


def plain_in(obj: Any) -> Any:
    """`obj` with plain values for traced scalars; no outcome is recorded."""
    return _changed(obj, scalars.plain, {})


_MAX_PARTS = 64  # parts of a list or dict that are looked at for every call


def plain_where_they_are(obj: Any) -> Any:
    """`obj` with plain values for the traced scalars in it and in its parts: a short list or dict
    stays the same one, a tuple is made anew."""
    if type(obj) in scalars.TRACED:
        return scalars.plain(obj)
    if type(obj) is tuple:
        parts = tuple(map(plain_where_they_are, obj))
        return obj if all(a is b for a, b in zip(parts, obj, strict=True)) else parts
    if type(obj) in (list, dict) and len(obj) <= _MAX_PARTS:
        for place, part in list(enumerate(obj) if type(obj) is list else obj.items()):
            if type(part) in scalars.TRACED or type(part) is tuple:
                obj[place] = plain_where_they_are(part)
    return obj


def has_traced(values: Any) -> bool:
    """Whether a flat sequence holds a traced scalar."""
    return any(type(value) in scalars.TRACED for value in values)


def _changed(obj: Any, change: Callable[[Any], Any], done: dict[int, Any]) -> Any:
    if type(obj) in scalars.TRACED:
        return change(obj)
    if type(obj) not in _NESTED:
        return obj
    key = id(obj)
    if key not in done:
        done[key] = obj  # one that holds itself
        done[key] = _parts_changed(obj, change, done)
    return done[key]


_NESTED = (list, tuple, torch.Size, dict, slice, set, frozenset)


def _parts_changed(obj: Any, change: Callable[[Any], Any], done: dict[int, Any]) -> Any:
    if type(obj) is dict:
        values = {key: _changed(part, change, done) for key, part in obj.items()}
        return values if any(values[key] is not obj[key] for key in obj) else obj
    given = (obj.start, obj.stop, obj.step) if type(obj) is slice else tuple(obj)
    parts = [_changed(part, change, done) for part in given]
    if all(a is b for a, b in zip(parts, given, strict=True)):
        return obj
    return slice(*parts) if type(obj) is slice else type(obj)(parts)
