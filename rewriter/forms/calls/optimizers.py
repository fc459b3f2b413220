"""Methods of torch.optim that torch keeps from its own compiler: they are Python as any other."""

import types
from typing import Any

from ...capture.trace import Recorder
from ..lookup import module_name


def takes(function: Any) -> bool:
    """Whether torch keeps a method of an optimizer from Dynamo, by `torch._disable_dynamo`, or once
    Dynamo has been at work in the process."""
    return _method_behind(function) is not None


def call(rec: Recorder, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    given = (function.__self__, *args) if isinstance(function, types.MethodType) else args
    return rec.call(_method_behind(function), given, kwargs)


def _method_behind(function: Any) -> types.FunctionType | None:
    if isinstance(function, types.MethodType):
        function = function.__func__
    if not isinstance(function, types.FunctionType):
        return None
    if module_name(function) == "torch._compile":
        inner = getattr(function, "__wrapped__", None)
    else:
        inner = vars(function).get("_torchdynamo_orig_callable")
    if not isinstance(inner, types.FunctionType) or not module_name(inner).startswith(
        "torch.optim"
    ):
        return None
    return inner
