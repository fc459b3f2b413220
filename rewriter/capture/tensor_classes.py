"""Subclasses of torch.Tensor in a recording. What answers torch's functions in Python is called, as
rewritten source, for each function that a tensor of such a class is given to. A class that changes
nothing else has tensors as any other: graphs take them as plain ones, and results get their class
back.
"""

from collections.abc import Iterable

import torch


def overrides(cls: type) -> bool:
    """Whether tensors of the class answer torch's functions themselves."""
    answers = getattr(cls, "__torch_function__", torch._C._disabled_torch_function_impl)
    return cls is not torch.Tensor and answers is not torch._C._disabled_torch_function_impl


def overriding(classes: Iterable[type]) -> list[type]:
    """Those of the classes that are to answer now."""
    if not torch._C._is_torch_function_enabled():
        return []
    return [cls for cls in classes if overrides(cls) and not _is_of_torch(cls)]


def _is_of_torch(cls: type) -> bool:
    """Whether it is a class of torch's own, such as that of nested tensors, whose code is called
    as it is."""
    return cls.__module__.partition(".")[0] == "torch"


def with_class(tensor: torch.Tensor, cls: type) -> torch.Tensor:
    with torch._C.DisableTorchFunctionSubclass():
        return tensor.as_subclass(cls)
