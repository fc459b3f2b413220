"""Calls that a function makes which runs in parts: where nothing is recorded, the functions and
modules that it calls are compiled for themselves."""

import functools
import sys
import types
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn.modules import module as torch_module

from ....lowering.graph.control_flow import chosen_in_truth
from ...capture import current
from ...capture.stops import StoppableMode
from ...frontend.module_class import CompiledModule
from ...instrument import emit
from ...source.live_source import TORCHS_COMPILER, NotRewritable, runs_torchs_compiler
from ..lookup import is_internal, is_module_call, is_of_wrapper, keeps_eager, module_name
from . import known_calls

Args = tuple[Any, ...]
Kwargs = dict[str, Any]
_rewrite: list[Callable[[types.FunctionType], Callable[..., Any]]] = []


def use(rewrite: Callable[[types.FunctionType], Callable[..., Any]]) -> None:
    """Tell how a function is rewritten; the rewriter calls this once."""
    _rewrite[:] = [rewrite]


def call(family: Any, fn: Any, args: Args, kwargs: Kwargs) -> Any:
    """`fn(*args, **kwargs)`: a user's function or module by its compiled form, all else as it
    is. Without a family, a choice alone."""
    kind = type(fn)
    if kind is types.FunctionType:
        if takes_written_code(fn):
            return with_written_code(fn, args, kwargs)
        if is_choice(fn):
            inner = _plainly if family is None else functools.partial(_inner, family)
            return chosen_in_truth(inner, fn, *args, **kwargs)
        if _is_followed(fn):
            return _python(family, fn, None, args, kwargs)
    elif kind is types.MethodType:
        method: Any = fn.__func__
        if _is_followed(method):
            return _python(family, method, fn.__self__, (fn.__self__, *args), kwargs)
    elif isinstance(fn, torch.nn.Module):
        return _module(family, fn, args, kwargs)
    return fn(*args, **kwargs)


def takes_written_code(fn: Any) -> bool:
    """Whether torch's compiler traces what `fn` is given."""
    return fn is torch.compile or runs_torchs_compiler(fn)


def with_written_code(fn: Any, args: Args, kwargs: Kwargs) -> Any:
    """`fn(*args, **kwargs)`, with the user's own functions for those that were rewritten, and
    nothing of ours in torch's way."""
    before = current.open_family(None)
    try:
        with StoppableMode.off_stack():
            return fn(*emit.as_written(args), **emit.as_written(kwargs))
    finally:
        current.open_family(before)


def as_given_to_torchs_compiler(fn: Any) -> Any:
    """The function or module that `torch.compile` was given, where `fn` is what it made of that: it
    is compiled as any other callee."""
    file = fn.__code__.co_filename if type(fn) is types.FunctionType else ""
    if not file.endswith(TORCHS_COMPILER) and type(fn).__module__ != "torch._dynamo.eval_frame":
        return fn
    kept = keeps_eager(fn)
    return getattr(fn, kept) if kept else fn


def is_choice(fn: Any) -> bool:
    """Whether torch would have Dynamo trace what it is given."""
    return fn is torch.cond or fn is torch.while_loop


def _plainly(fn: Any, *args: Any) -> Any:
    return fn(*args)


def _inner(family: Any, fn: Any, *args: Any) -> Any:
    return call(family, fn, args, {})


def _is_followed(fn: Any) -> bool:
    """Whether it is Python code of the user's, or of a library that is written for torch."""
    if type(fn) is not types.FunctionType or fn.__code__.co_flags & _NOT_PLAIN:
        return False
    return (
        _is_users(module_name(fn))
        and not (fn.__dict__ and _is_marked(fn))
        and fn not in _OF_CONTAINERS
        and fn not in known_calls.DISABLED
        and fn not in known_calls.INLINED
        and fn not in known_calls.STOPS
    )


def _is_marked(fn: Any) -> bool:
    return hasattr(fn, "_dynfix_original") or getattr(fn, "_torchdynamo_disable", False)


@functools.lru_cache(maxsize=1024)
def _is_users(module: str) -> bool:
    return not is_internal(module) and module.partition(".")[0] not in _AS_IS


# Which give views of their dicts, iterators and the like: nothing to compile.
_OF_CONTAINERS = frozenset(
    method
    for container in (
        nn.ModuleDict,
        nn.ModuleList,
        nn.Sequential,
        nn.ParameterDict,
        nn.ParameterList,
    )
    for name, method in vars(container).items()
    if type(method) is types.FunctionType and name != "forward"
)
_NOT_PLAIN = 0x20 | 0x80 | 0x100 | 0x200  # generators and coroutines
_AS_IS = frozenset(sys.stdlib_module_names) - {"__main__"} | {
    "numpy",
    "scipy",
    "pandas",
    "matplotlib",
    __name__.partition(".")[0],
}


def _python(family: Any, fn: types.FunctionType, owner: Any, args: Args, kwargs: Kwargs) -> Any:
    """A function that a call makes anew is run as rewritten source, so that what it calls is
    compiled; one that stays is compiled itself."""
    made_anew = any(map(_made_anew, (*args, *kwargs.values())))
    if _stays(fn, owner) and not is_of_wrapper(fn) and not made_anew:
        return family.callee(fn, owner)(*args, **kwargs)
    try:
        rewritten = _rewrite[0](fn)
    except NotRewritable:
        return fn(*args, **kwargs)
    return rewritten(*args, **kwargs)


def _stays(fn: types.FunctionType, owner: Any) -> bool:
    return owner is not None or fn.__closure__ is None or "<locals>" not in fn.__qualname__


def _made_anew(value: Any) -> bool:
    return type(value) is types.FunctionType and value.__closure__ is not None


def module(family: Any, called: Any, /, *args: Any, **kwargs: Any) -> Any:
    """`called(*args, **kwargs)` of a module."""
    return _module(family, called, args, kwargs)


def begun(family: Any, module: Any, /, *args: Any, **kwargs: Any) -> Any:
    """A module's call that `nn.Module.__call__` has begun: hooks as they are, `forward`
    compiled."""
    if not _calls_forward(type(module), "_call_impl") or _has_backward_hooks(module):
        return module._call_impl(*args, **kwargs)
    return _hooks_and_forward(family, module, args, kwargs)


def _module(family: Any, module: Any, args: Args, kwargs: Kwargs) -> Any:
    if (
        isinstance(module, _AS_THEY_ARE)
        or not _calls_forward(type(module), "__call__", "_call_impl")
        or _has_backward_hooks(module)
    ):
        return module(*args, **kwargs)
    return _hooks_and_forward(family, module, args, kwargs)


def _hooks_and_forward(family: Any, module: Any, args: Args, kwargs: Kwargs) -> Any:
    if not (module._forward_pre_hooks or module._forward_hooks):
        return call(family, module.forward, args, kwargs)
    called, result = set[int](), None
    try:
        for key, hook in list(module._forward_pre_hooks.items()):
            args, kwargs = _before(
                module, hook, key in module._forward_pre_hooks_with_kwargs, args, kwargs
            )
        result = call(family, module.forward, args, kwargs)
        for key, hook in list(module._forward_hooks.items()):
            called.add(key)
            changed = _after(module, key, hook, args, kwargs, result)
            result = result if changed is None else changed
    except Exception:
        for key in [key for key in module._forward_hooks_always_called if key not in called]:
            _after_error(module, key, args, kwargs, result)
        raise
    return result


_AS_THEY_ARE = (torch.jit.ScriptModule, CompiledModule)


def _after(module: Any, key: int, hook: Any, args: Args, kwargs: Kwargs, result: Any) -> Any:
    given = (module, args, kwargs) if key in module._forward_hooks_with_kwargs else (module, args)
    return hook(*given, result)


def _after_error(module: Any, key: int, args: Args, kwargs: Kwargs, result: Any) -> None:
    """A hook registered with `always_call`, after another error, which stays the one that is
    raised."""
    if key not in module._forward_hooks:
        return
    try:
        _after(module, key, module._forward_hooks[key], args, kwargs, result)
    except Exception as error:
        warnings.warn(
            "module forward hook with `always_call=True` raised an exception that was silenced as"
            f" another error was raised in forward: {error}",
            stacklevel=2,
        )


def _calls_forward(cls: Any, *entries: str) -> bool:
    """Whether calling does what nn.Module does; a GraphModule's own call only words errors."""
    return issubclass(cls, torch.fx.GraphModule) or all(
        is_module_call(getattr(cls, name)) for name in entries
    )


def _before(
    module: Any, hook: Any, with_kwargs: bool, args: Args, kwargs: Kwargs
) -> tuple[Args, Kwargs]:
    changed = hook(module, args, kwargs) if with_kwargs else hook(module, args)
    if changed is None:
        return args, kwargs
    if with_kwargs:
        args, kwargs = changed
        return args, kwargs
    return (changed if isinstance(changed, tuple) else (changed,)), kwargs


def _has_backward_hooks(module: Any) -> bool:
    return bool(
        module._backward_hooks
        or module._backward_pre_hooks
        or torch_module._global_forward_hooks
        or torch_module._global_forward_pre_hooks
        or torch_module._global_backward_hooks
        or torch_module._global_backward_pre_hooks
    )
