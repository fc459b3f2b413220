"""NumPy's functions of numbers and constant arrays: computed anew while recording, their arguments
guarded, as `math`'s are. An array has no other way into a recording: what would make one of a
tensor's values ends it."""

import sys
from typing import Any

import torch

try:
    import numpy as np
except ImportError:
    np = None  # type: ignore[assignment]

from ... import catalogue
from ...capture.guarded_kinds import is_constant
from ...capture.nested import concretize
from ...capture.numbers import constant_values, moving_arrays, traced_arrays
from ...capture.trace import Recorder
from ...capture.values import storage_of
from .. import items
from ..lookup import owner_of

# They read or write something besides their arguments.
_NOT_PURE = (
    "load save fromfile tofile memmap open seterr geterr set printoptions show info source empty"
    " dump ctypes data".split()
)


_NAMESPACES = ("numpy", "numpy.linalg", "numpy.fft", "numpy.lib.scimath")


def takes(function: Any) -> bool:
    """A function of NumPy's namespaces of mathematics, or a method of a ufunc, a NumPy number or an
    array."""
    if np is None or isinstance(function, type):
        return np is not None and isinstance(function, type) and issubclass(function, np.generic)
    owner = owner_of(function)
    if isinstance(function, np.ufunc) or isinstance(owner, np.ufunc | np.generic):
        return True
    module = getattr(function, "__module__", None) or ""
    is_method, named = type(owner) is np.ndarray, module in _NAMESPACES
    if not (is_method or named):
        return False  # an object of the user's is not asked for a name
    name = getattr(function, "__name__", "")
    known = is_method or getattr(sys.modules.get(module), name, None) is function
    return known and not any(part in name for part in _NOT_PURE)


def call(rec: Recorder, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if traced_arrays.among(rec, (owner_of(function), *args, *kwargs.values())):
        return traced_arrays.call(rec, function, args, kwargs)
    array = [owner for owner in (owner_of(function),) if constant_values.is_array(owner)]
    items.guard_arguments(rec, (*array, *args), kwargs)
    args, kwargs = concretize(args), concretize(kwargs)
    if not all(map(_is_known, (*args, *kwargs.values()))):
        rec.stop(catalogue.OPAQUE_CALL, f"numpy.{function.__name__} of an object")
        return rec.once(function, args, kwargs)
    with rec.paused():
        result = rec.once(function, args, kwargs)
    if not _is_known(result):
        rec.stop(catalogue.OPAQUE_CALL, f"numpy.{function.__name__} gave an object")
    return result


def _is_known(value: Any) -> bool:
    """A number, text or type, an array of numbers, or a nested sequence of them."""
    if isinstance(value, tuple | list):
        return all(map(_is_known, value))
    if type(value) is np.ndarray:
        return not value.dtype.hasobject
    return is_constant(value) or isinstance(value, np.generic | np.dtype | type | slice)


def makes_tensor(function: Any) -> bool:
    return function is torch.from_numpy


def copies_arrays(function: Any) -> bool:
    return function in _MAKERS or makes_tensor(function)


def copies(function: Any, given: Any) -> bool:
    """Whether the function makes a tensor of an array."""
    return function in _MAKERS and traced_arrays.is_array_or_number(given)


def from_array(rec: Recorder, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """`torch.from_numpy(a)`, `torch.tensor(a)`."""
    if len(args) == 1 and traced_arrays.is_traced(rec, args[0]):
        return traced_arrays.as_tensor(rec, function, args[0], kwargs)
    if len(args) == 1 and constant_values.is_array(args[0]) and set(kwargs) <= {"dtype"}:
        moving = moving_arrays.as_input(rec, args[0])
        if moving is not None:
            return _of_moving(function, moving, **kwargs)
    items.guard_arguments(rec, args, kwargs)
    if len(args) != 1 or not constant_values.is_array(args[0]) or kwargs.get("requires_grad"):
        rec.stop(catalogue.OPAQUE_CALL, f"torch.{function.__name__} of an array")
        return rec.once(function, args, kwargs)
    result = constant_values.as_tensor(rec, function, args[0], **kwargs)
    address = args[0].__array_interface__["data"][0]
    if any(np.may_share_memory(args[0], given) for given, _ in rec.known.arrays):
        with rec.paused():
            if result.data_ptr() == address:
                rec.on_arrays.add(storage_of(result))
    return result


def _of_moving(function: Any, tensor: torch.Tensor, dtype: Any = None) -> torch.Tensor:
    return tensor.to(dtype or tensor.dtype, copy=function is torch.tensor)


def with_dtype(
    rec: Recorder, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> dict[str, Any]:
    """A tensor made of NumPy's numbers has their dtype; a graph knows them as Python's."""
    if function not in _MAKERS or "dtype" in kwargs or np is None:
        return kwargs
    if not any(isinstance(part, np.generic) for part in _flat(args)):
        return kwargs
    with rec.paused():
        return {**kwargs, "dtype": function(*concretize(args), **kwargs).dtype}


_MAKERS = (torch.tensor, torch.as_tensor, torch.asarray)


def _flat(value: Any) -> list[Any]:
    if type(value) in (tuple, list):
        return [part for each in value for part in _flat(each)]
    return [value]
