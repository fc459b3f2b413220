"""Methods of torch.optim that torch keeps from its own compiler: they are Python as any other."""

import types
from typing import Any

from ..capture.trace import Recorder
from .lookup import module_name


def takes(function: Any) -> bool:
    """Whether `torch._disable_dynamo` wraps a method of an optimizer."""
    if not isinstance(function, types.FunctionType) or module_name(function) != "torch._compile":
        return False
    inner = getattr(function, "__wrapped__", None)
    return isinstance(inner, types.FunctionType) and module_name(inner).startswith("torch.optim")


def call(rec: Recorder, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return rec.call(function.__wrapped__, args, kwargs)
