"""Methods of torch.optim that torch keeps from its own compiler: they are Python as any other. And
what these give operators on lists where `is_compiling()`: tensors for numbers, which Dynamo
exchanges and eager refuses."""

import types
from typing import Any

import torch

from ...capture.trace import Recorder
from .. import items
from ..lookup import module_name


def takes(function: Any) -> bool:
    """Whether torch keeps a method of an optimizer from Dynamo, by `torch._disable_dynamo`, or once
    Dynamo has been at work in the process."""
    return _method_behind(function) is not None


def call(rec: Recorder, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    given = (function.__self__, *args) if isinstance(function, types.MethodType) else args
    return rec.call(_method_behind(function), given, kwargs)


def takes_step_count(function: Any) -> bool:
    """Whether it is how torch's optimizers read their counts: numbers in eager, and float32 tensors
    where `is_compiling()`."""
    if not isinstance(function, types.FunctionType) or function.__name__ != "_get_value":
        return False
    return module_name(function) == "torch.optim.optimizer"


def read_step_count(
    rec: Recorder, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """A tensor of float64, so that bias corrections are as exact as with Python's numbers."""
    items.guard_arguments(rec, args, kwargs)
    (count,) = args
    is_number = _is_tensor(count) and count.dim() == 0 and count.dtype == torch.float32
    return count.to(torch.float64) if is_number else count


def takes_numbers(function: Any) -> bool:
    return any(function is each for each in _SCALED)


def call_with_numbers(
    rec: Recorder, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """`function(lists, first, second, numbers)`, where the numbers may be tensors."""
    items.guard_arguments(rec, args, kwargs)
    numbers = args[3] if len(args) > 3 else kwargs.get("scalars")
    if not isinstance(numbers, list | tuple) or not any(map(_is_tensor, numbers)):
        return rec.once(function, args, kwargs)
    combined, added = _SCALED[function]
    change = torch._foreach_mul(combined(*args[1:3]), list(numbers))
    return added(args[0], change)


def _is_tensor(number: Any) -> bool:
    return isinstance(number, torch.Tensor)


_SCALED: dict[Any, tuple[Any, Any]] = {  # what two elements make, and what adds it
    torch._foreach_addcdiv: (torch._foreach_div, torch._foreach_add),
    torch._foreach_addcmul: (torch._foreach_mul, torch._foreach_add),
    torch._foreach_addcdiv_: (torch._foreach_div, torch._foreach_add_),
    torch._foreach_addcmul_: (torch._foreach_mul, torch._foreach_add_),
}


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
