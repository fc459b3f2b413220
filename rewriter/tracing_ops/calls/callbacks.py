"""Functions of the user's that torch's own Python calls, which is not rewritten: they run rewritten
all the same."""

import contextlib
import functools
import types
from collections.abc import Iterator
from typing import Any

import torch

from ....runtime.guards.guard import InstDict, Item
from ... import catalogue
from ...capture.nested import concretize
from ...capture.trace import Recorder
from .. import items
from ..lookup import is_torch_internal, module_name

Args = tuple[Any, ...]
Kwargs = dict[str, Any]
_AROUND_INIT = "torch._dynamo.mutation_guard"  # where torch.compile wraps `Module.__init__`


def rewritten(
    rec: Recorder, function: types.FunctionType, args: Args, kwargs: Kwargs
) -> tuple[Args, Kwargs]:
    """The arguments of a function of torch's own, with what runs the user's functions rewritten in
    their place. A module might be called, or read: that ends the recording."""
    if module_name(function) == _AROUND_INIT:
        return args, kwargs
    if not any(map(_is_users, (*args, *kwargs.values()))):
        return args, kwargs
    calls = module_name(function).startswith("torch._functorch.")  # and reads no module
    named = {name: _rewritten(rec, value, calls) for name, value in kwargs.items()}
    return tuple(_rewritten(rec, value, calls) for value in args), named


def settling(rec: Recorder, function: Any, args: Args, kwargs: Kwargs) -> tuple[Args, Kwargs]:
    """The arguments of a function that may be `re.sub`, which reads what a callback gives and asks
    nobody."""
    if getattr(function, "__name__", "") not in ("sub", "subn"):
        return args, kwargs
    named = {name: _settling(rec, value) for name, value in kwargs.items()}
    return tuple(_settling(rec, value) for value in args), named


def _settling(rec: Recorder, value: Any) -> Any:
    if not isinstance(value, types.FunctionType | types.MethodType | functools.partial):
        return value
    callback = rec.rewriter.callback(rec, value)
    return lambda match: concretize(callback(match))


def _is_users(value: Any) -> bool:
    if isinstance(value, types.FunctionType):
        return not is_torch_internal(value)
    return isinstance(value, types.MethodType | functools.partial | torch.nn.Module)


def _rewritten(rec: Recorder, value: Any, calls_modules: bool) -> Any:
    if not _is_users(value):
        return value
    if isinstance(value, torch.nn.Module) and not calls_modules:
        rec.stop(catalogue.UNSUPPORTED, f"a {type(value).__name__} is given to a function of torch")
        return value

    @functools.wraps(value, updated=() if isinstance(value, torch.nn.Module) else ("__dict__",))
    def called(*args: Any, **kwargs: Any) -> Any:
        if not rec.active:
            return value(*args, **kwargs)
        with rec.resumed():
            return rec.call(value, args, kwargs)

    return called


# -- torch.func.functional_call


def calls_functionally(function: Any) -> bool:
    return function is torch.func.functional_call


def functional_call(rec: Recorder, function: Any, args: Args, kwargs: Kwargs) -> Any:
    """The module is called as any other while it holds other tensors: to read one of them is no
    read of the outside."""
    if not args or not isinstance(args[0], torch.nn.Module):
        rec.stop(catalogue.UNSUPPORTED, "functional_call() whose first argument is not the module")
        return rec.once(function, args, kwargs)
    module, *rest = args
    items.guard_arguments(rec, tuple(rest), kwargs)
    tensors = [tensor for *_, tensor in _parameters_of(module) if tensor is not None]
    if len({id(tensor) for tensor in tensors}) < len(tensors):
        rec.stop(catalogue.UNSUPPORTED, "functional_call() of a module with tied parameters")
    rec.known.assume_distinct(*tensors)
    rec.before_change()  # what it holds meanwhile must not be taken for what it held before
    with rec.paused():
        return rec.once(function, (_stand_in(rec, module, _parameters_of(module)), *rest), kwargs)


_Held = list[tuple[Any, str, str, Any]]


def _parameters_of(module: torch.nn.Module) -> _Held:
    """(module, table, name, tensor) of each parameter and buffer."""
    return [
        (each, table, name, tensor)
        for each in module.modules()
        for table in ("_parameters", "_buffers")
        for name, tensor in each.__dict__[table].items()
    ]


def _stand_in(rec: Recorder, module: torch.nn.Module, before: _Held) -> torch.nn.Module:
    """A module that holds what `module` holds, and passes its calls on."""

    class StandIn(torch.nn.Module):
        def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
            if not rec.active:
                return rec.once(module, args, kwargs)
            with rec.resumed(), _swapped(rec, module, before):
                return rec.call(module, args, kwargs)

    StandIn.__name__ = type(module).__name__
    made = StandIn.__new__(StandIn)
    object.__setattr__(made, "__dict__", module.__dict__)
    return made


@contextlib.contextmanager
def _swapped(rec: Recorder, module: torch.nn.Module, before: _Held) -> Iterator[None]:
    """The module holds other tensors than `before`; which names there are is guarded."""
    swapped = [
        (each, name) for each, table, name, held in before if _at(each, table, name) is not held
    ]
    for each, table in {(each, table) for each, table, name, _ in before}:
        path = rec.known.path_of(each)
        if path is not None:
            rec.known.keys(each.__dict__[table], Item(InstDict(path), table))
    new = [(each, name) for each, name in swapped if not rec.known.is_own(each, name)]
    for each, name in new:
        rec.known.wrote(each, name)
    inside = _parameters_of(module)
    try:
        yield
    finally:
        for each, name in new:
            rec.known.took_back(each, name)
    after = _parameters_of(module)
    if len(after) != len(inside) or any(
        a[3] is not b[3] for a, b in zip(inside, after, strict=True)
    ):
        rec.stop(
            catalogue.UNSUPPORTED, "a module stores a parameter or buffer in functional_call()"
        )


def _at(module: torch.nn.Module, table: str, name: str) -> Any:
    return module.__dict__[table].get(name)
