"""Custom operators whose results fake tensors cannot tell: their sizes depend on data, or they have
no fake form."""

from typing import Any

import torch
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
    UnsupportedOperatorException,
)
from torch.utils._pytree import tree_map_only

from .values import Meta

_REFUSALS = (
    DataDependentOutputException,
    DynamicOutputShapeException,
    UnsupportedOperatorException,
)
_OWN = frozenset({"aten", "prims", "prim", "dynfix"})
_known: dict[Any, bool] = {}  # by operator, as its first call answered


def has_unknown_shape(func: Any, args: Any, kwargs: Any) -> bool:
    """Whether `func` is such an operator; asked of each once, on tensors like its arguments."""
    packet = getattr(func, "overloadpacket", func)
    if not isinstance(packet, torch._ops.OpOverloadPacket):
        return False
    if packet._qualified_op_name.split("::")[0] in _OWN:
        return False
    if packet not in _known:
        _known[packet] = _is_refused(func, args, kwargs)
    return _known[packet]


def _is_refused(func: Any, args: Any, kwargs: Any) -> bool:
    try:
        with torch._C.DisableTorchFunction(), FakeTensorMode(), torch.no_grad():
            like = tree_map_only(torch.Tensor, lambda each: Meta.of(each).fake(), (args, kwargs))
            func(*like[0], **like[1])
    except _REFUSALS:
        return True
    except Exception as error:  # others will come again from the operator itself
        return "no fake impl" in str(error)
    return False
