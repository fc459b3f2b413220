"""Arguments of a tensor operator as an fx graph holds them."""

from typing import Any

import torch

from .. import catalogue
from . import opaque_tensors
from .numbers import scalars, traced_sizes

CONSTANTS = (
    bool,
    int,
    float,
    complex,
    str,
    torch.dtype,
    torch.device,
    torch.layout,
    torch.memory_format,
    range,
)

_DTYPES = {
    bool: torch.bool,
    int: torch.int64,
    float: torch.float64,
    complex: torch.complex128,
}  # of Python's types, which torch takes for dtypes
_TENSOR_TYPE = type(torch.FloatTensor)


def as_nodes(rec: Any, obj: Any) -> Any:
    """Tensors and traced sizes become nodes, numbers and texts exact builtins. Raises Stopped for
    what a graph cannot hold."""
    if isinstance(obj, torch.Tensor):
        return rec.node(obj)
    form = scalars.size_form(obj)
    if form is not None:
        return traced_sizes.node_of(form, rec.segment, rec.origin_text())
    if isinstance(obj, list | tuple):
        parts = [as_nodes(rec, part) for part in obj]
        return parts if isinstance(obj, list) else tuple(parts)
    if isinstance(obj, dict):
        return {key: as_nodes(rec, part) for key, part in obj.items()}
    if isinstance(obj, slice):
        return slice(*(as_nodes(rec, end) for end in (obj.start, obj.stop, obj.step)))
    if obj is None or obj is Ellipsis or type(obj) in CONSTANTS:
        return obj
    if isinstance(obj, type) and obj in _DTYPES:
        return _DTYPES[obj]
    if isinstance(obj, _TENSOR_TYPE):
        return f"{obj.__module__}.{obj.__name__}"
    if isinstance(
        obj, int | float | complex | str
    ):  # numpy's numbers, IntEnum, a user's subclass: torch takes the value
        return _exact(obj)
    if isinstance(obj, torch.SymInt) and (node := opaque_tensors.size_node(rec, obj)) is not None:
        return node
    if type(obj).__module__ == "numpy" and hasattr(obj, "item") and obj.ndim == 0:
        return obj.item()  # a number of NumPy's own
    return rec.stop_here(
        catalogue.UNSUPPORTED, f"a {type(obj).__name__} is an argument of a tensor operator"
    )


def _exact(value: Any) -> Any:
    """The builtin number or text that a value of a subclass stands for."""
    kinds: tuple[Any, ...] = (int, float, complex, str)
    return next(kind(value) for kind in kinds if isinstance(value, kind))
