"""Truth of a value while recording."""

from typing import Any

import torch

from ..capture.numbers import scalars, traced_arrays
from ..capture.trace import Recorder
from . import c_calls, items
from .lookup import MISSING, guard_classes, on_class, python_method


def truth(rec: Recorder, value: Any) -> bool:
    """`bool(value)`; a tensor's or traced scalar's truth is an outcome, a container's depends on
    its length."""
    if value is None or isinstance(value, bool):
        return bool(value)
    value = traced_arrays.as_one(rec, value)
    if isinstance(value, torch.Tensor) or type(value) in scalars.TRACED:
        return bool(value)
    for name in _ASKED:
        method = python_method(rec, value, name)
        if method is not None:
            answer: Any = rec.call(method, (value,), {})
            if name == "__len__" and type(answer) in scalars.TRACED and answer >= 0:
                return bool(answer)
            return bool(c_calls.given(rec, bool, value, name, answer))
    if all(on_class(type(value), name) is MISSING for name in _ASKED):
        rec.known.touch(value)
        for name in _ASKED:
            guard_classes(rec, type(value), name)
        return True
    items.guard_structure(rec, value)
    return rec.once(bool, (value,))


_ASKED = ("__bool__", "__len__")
