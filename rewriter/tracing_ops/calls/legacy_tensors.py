"""`torch.LongTensor([1, 2])` and its like: the constructors of old, as the functions that say the
same."""

from typing import Any

import torch

try:
    import numpy as np
except ImportError:  # torch does without
    np = None  # type: ignore[assignment]

from ... import catalogue
from ...capture.nested import concretize, plain_in
from ...capture.numbers import constant_values, moving_arrays, traced_arrays
from ...capture.trace import Recorder
from ...capture.values import Meta, TracedTensor
from .. import items

_DTYPES: dict[Any, torch.dtype] = {
    torch.FloatTensor: torch.float32,
    torch.DoubleTensor: torch.float64,
    torch.HalfTensor: torch.float16,
    torch.LongTensor: torch.int64,
    torch.IntTensor: torch.int32,
    torch.ShortTensor: torch.int16,
    torch.CharTensor: torch.int8,
    torch.ByteTensor: torch.uint8,
    torch.BoolTensor: torch.bool,
}
_NUMBERS_OF_NUMPY: tuple[type, ...] = () if np is None else (np.number, np.bool_)


def takes(function: Any) -> bool:
    old = isinstance(function, type(torch.LongTensor)) or function is torch.Tensor
    return old or function in (torch.autograd.Variable, torch.nn.Parameter)


def call(rec: Recorder, cls: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if cls is torch.autograd.Variable:
        return _variable(rec, args, kwargs)
    if cls is torch.nn.Parameter:
        return _parameter(rec, *args, **kwargs)
    dtype = torch.get_default_dtype() if cls is torch.Tensor else _DTYPES.get(cls)
    given = concretize(args)
    if dtype is None or kwargs or torch.get_default_device().type != "cpu":
        return _unknown(rec, cls, args, kwargs)
    if all(type(size) is int for size in given):
        return torch.empty(given or (0,), dtype=dtype)
    if len(given) == 1 and traced_arrays.entry(rec, given[0]) is not None:
        return traced_arrays.index_tensor(rec, given[0]).to(dtype, copy=True)
    if len(given) == 1 and constant_values.is_array(given[0]):
        moving = moving_arrays.as_input(rec, given[0])
        if moving is not None:
            return moving.to(dtype)
        items.guard_arguments(rec, args, kwargs)
        return constant_values.as_tensor(rec, cls, given[0])
    if len(given) == 1 and type(given[0]) is torch.Size:
        return torch.empty(given[0], dtype=dtype)
    if len(given) == 1 and type(given[0]) in (list, tuple, range) and _fits(given[0], dtype):
        return torch.tensor(given[0], dtype=dtype)
    if len(given) == 1 and type(given[0]) is torch.Tensor and given[0].dtype == dtype:
        return torch.ops.aten.alias.default(given[0])
    return _unknown(rec, cls, args, kwargs)


def _fits(value: Any, dtype: torch.dtype) -> bool:
    if type(value) in (list, tuple):
        return all(_fits(part, dtype) for part in value)
    if isinstance(value, float) and dtype.is_floating_point:
        return True
    return type(value) in (int, bool, float, range) or isinstance(value, _NUMBERS_OF_NUMPY)


def _variable(rec: Recorder, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """`Variable(t)`: the same data, without history."""
    plain = len(args) == 1 and isinstance(args[0], torch.Tensor)
    if plain and set(kwargs) <= {"requires_grad", "volatile"} and not any(kwargs.values()):
        return args[0].detach()
    return _unknown(rec, torch.autograd.Variable, args, kwargs)


def _parameter(rec: Recorder, data: Any = None, requires_grad: Any = True) -> Any:
    """To operators, the same data without history. One that learns is a leaf: it may be returned or
    kept, or be used in this graph, but not both."""
    if type(requires_grad) is not bool or type(data) not in (torch.Tensor, torch.nn.Parameter):
        return _unknown(rec, torch.nn.Parameter, (data, requires_grad), {})
    with rec.paused():
        result = torch.nn.Parameter(data, requires_grad)
        origin = rec.origin_text()
        node = rec.segment.call("call_method", "detach", (rec.node(data),), {}, origin)
        value = TracedTensor(rec.segment.index, node, -1, Meta.of(result))
        rec.tracker.add(result, value)
        if requires_grad:
            rec.made_parameters.append(value)
    return result


def _unknown(rec: Recorder, cls: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    rec.stop(catalogue.OPAQUE_CALL, f"torch.{cls.__name__} of {[type(a).__name__ for a in args]}")
    return cls(*plain_in(args), **plain_in(kwargs))
