"""Subclasses of torch.Tensor in a recording. What answers torch's functions in Python is called, as
rewritten source, for each function that a tensor of such a class is given to. A class that changes
nothing else has tensors as any other: graphs take them as plain ones, and results get their class
back.
"""

from collections.abc import Iterable
from typing import Any

import torch

from .values import is_plain


def overrides(cls: type) -> bool:
    """Whether tensors of the class answer torch's functions themselves."""
    answers = getattr(cls, "__torch_function__", torch._C._disabled_torch_function_impl)
    return cls is not torch.Tensor and answers is not torch._C._disabled_torch_function_impl


def overriding(classes: Iterable[type]) -> list[type]:
    """Those of the classes that are to answer now."""
    if torch._C._get_torch_function_state() != torch._C._TorchFunctionState.ENABLED:
        return []
    return [cls for cls in classes if overrides(cls) and cls not in _PARAMETERS]


_PARAMETERS = (torch.nn.Parameter, torch.nn.Buffer)


def has_own_memory(tensor: torch.Tensor) -> bool:
    """Whether the tensor is one that a graph can have as an alias that is plain: its class answers
    torch's functions, and no operators."""
    if tensor.layout != torch.strided or is_plain(tensor):
        return tensor.layout == torch.strided
    kind: Any = type(tensor)
    if kind.__torch_dispatch__ is not torch._C._disabled_torch_dispatch_impl:
        return False
    return not torch._C._dispatch_keys(tensor).has(torch._C.DispatchKey.Python)


def with_class(tensor: torch.Tensor, cls: type) -> torch.Tensor:
    with torch._C.DisableTorchFunctionSubclass():
        return tensor.as_subclass(cls)  # type: ignore[arg-type]
