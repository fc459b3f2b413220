"""What makes a tensor one of another class, of which torch tells no mode; and the functions that a
class or a mode is given for what is read of a tensor's attributes."""

import types
from typing import Any

import torch

from ... import catalogue
from ...capture import tensor_classes
from ...capture.stops import RecordingStopped
from ...capture.trace import Recorder
from .. import attribute_ops
from ..lookup import is_stable, owner_of
from . import custom_functions


def takes(function: Any) -> bool:
    """Whether this is `as_subclass`, of a tensor or of the class, or what makes a subclass's tensor
    of another one without its history."""
    if function is torch.Tensor.as_subclass or function is torch.Tensor._make_subclass:
        return True
    owner = owner_of(function)
    return isinstance(owner, torch.Tensor) and function.__name__ == "as_subclass"


def call(rec: Recorder, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    owner = owner_of(function)
    given = args if owner is None else (owner, *args)
    if function is torch.Tensor._make_subclass and len(args) == 2:
        given = rec.call(torch.Tensor.detach, args[1:], {}), args[0]
    if len(given) != 2 or kwargs or not isinstance(given[1], type):
        rec.stop(catalogue.UNSUPPORTED, f"these arguments of {function.__name__}()")
        return rec.once(function, args, kwargs)
    try:
        return rec.with_class(*given)
    except RecordingStopped:
        return tensor_classes.with_class(*given)


def takes_wrapper(function: Any) -> bool:
    """Whether this is a class of the user's whose tensors answer each operator: what makes one is a
    call in the graph, run as it is."""
    if not isinstance(function, type) or not issubclass(function, torch.Tensor):
        return False
    own: Any = function.__torch_dispatch__
    return own is not torch._C._disabled_torch_dispatch_impl and not is_stable(function)


def wrap(rec: Recorder, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return custom_functions.as_node(rec, function, args, kwargs)


def takes_getter(function: Any) -> bool:
    """Whether this is `torch.Tensor.shape.__get__` or another one's."""
    getter = type(function) is types.MethodWrapperType and function.__name__ == "__get__"
    return getter and isinstance(function.__self__, types.GetSetDescriptorType)


def get(rec: Recorder, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if kwargs or not args or not isinstance(args[0], torch.Tensor):
        return rec.once(function, args, kwargs)
    return attribute_ops.load(rec, args[0], function.__self__.__name__)
