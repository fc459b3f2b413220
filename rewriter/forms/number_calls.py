"""NumPy's functions of numbers: computed anew while recording, their arguments guarded, as `math`'s
are. What takes or gives an array is opaque."""

from typing import Any

import torch

try:
    import numpy as np
except ImportError:
    np = None  # type: ignore[assignment]

from .. import catalogue
from ..capture.nested import settle_in
from ..capture.provenance import is_constant
from ..capture.trace import Recorder
from . import items
from .lookup import owner_of

# They read or write something besides their arguments.
_NOT_PURE = (
    "load save fromfile tofile memmap open seterr geterr set printoptions show info source".split()
)


def takes(function: Any) -> bool:
    """A function of NumPy's namespaces of mathematics, or a method of a ufunc or a NumPy number."""
    if np is None or isinstance(function, type):
        return np is not None and isinstance(function, type) and issubclass(function, np.generic)
    owner = owner_of(function)
    if isinstance(function, np.ufunc) or isinstance(owner, np.ufunc | np.generic):
        return True
    module = getattr(function, "__module__", None) or ""
    name = getattr(function, "__name__", "")
    return (
        module in ("numpy", "numpy.linalg", "numpy.lib.scimath")
        and getattr(np, name, None) is function
        and not any(part in name for part in _NOT_PURE)
    )


def call(rec: Recorder, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    items.guard_arguments(rec, args, kwargs)
    args, kwargs = settle_in(args), settle_in(kwargs)
    if not all(map(_is_number, (*args, *kwargs.values()))):
        rec.stop(catalogue.OPAQUE_CALL, f"numpy.{function.__name__} of an array or object")
        return function(*args, **kwargs)
    with rec.paused():
        result = function(*args, **kwargs)
    if not _is_number(result):
        rec.stop(catalogue.OPAQUE_CALL, f"numpy.{function.__name__} gave an array")
    return result


def _is_number(value: Any) -> bool:
    """A number, text or type, or a nested sequence of them."""
    if type(value) in (tuple, list):
        return all(map(_is_number, value))
    return is_constant(value) or isinstance(value, np.generic | np.dtype | type)


def with_dtype(
    rec: Recorder, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> dict[str, Any]:
    """A tensor made of NumPy's numbers has their dtype; a graph knows them as Python's."""
    if function not in _MAKERS or "dtype" in kwargs or np is None:
        return kwargs
    if not any(isinstance(part, np.generic) for part in _flat(args)):
        return kwargs
    with rec.paused():
        return {**kwargs, "dtype": function(*settle_in(args), **kwargs).dtype}


_MAKERS = (torch.tensor, torch.as_tensor, torch.asarray)


def _flat(value: Any) -> list[Any]:
    if type(value) in (tuple, list):
        return [part for each in value for part in _flat(each)]
    return [value]
