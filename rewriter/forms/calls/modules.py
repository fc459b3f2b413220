"""Calls of nn.Modules while recording: the call protocol (hooks, then forward), with guards on the
hook tables."""

from collections.abc import Iterable
from typing import Any

import torch
from torch.nn.modules import module as torch_module

from ....runtime.guard import ClassAttr, InstDict, Item, Length, Obj
from ... import catalogue
from ...capture.trace import Recorder
from .. import attribute_ops
from ..lookup import guard_classes, is_distributed

_TABLES = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_BACKWARD = ("_backward_hooks", "_backward_pre_hooks")
_GLOBAL = (
    "_global_forward_hooks",
    "_global_forward_pre_hooks",
    "_global_backward_hooks",
    "_global_backward_pre_hooks",
)
_ENTRIES = {
    torch.nn.Module.__call__,
    torch.nn.Module._call_impl,
    torch.nn.Module._wrapped_call_impl,
}


def is_entry(function: Any) -> bool:
    """nn.Module's own call methods, unbound."""
    return (
        getattr(function, "__name__", "") in ("_wrapped_call_impl", "_call_impl")
        and function in _ENTRIES
    )


def call_entry(rec: Recorder, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return _protocol(rec, args[0], args[1:], kwargs)


def call_module(
    rec: Recorder, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """`module(*args)`; a class with its own `__call__` runs that, rewritten."""
    rec.known.touch(module)
    if isinstance(module, torch.jit.ScriptModule):
        rec.stop(catalogue.OPAQUE_CALL, f"a {type(module).__name__}")
        return module(*args, **kwargs)
    if is_distributed(module):
        rec.stop(catalogue.OPAQUE_CALL, f"a {type(module).__name__} talks to other processes")
        return module(*args, **kwargs)
    # a GraphModule's own call only words errors
    own = None if isinstance(module, torch.fx.GraphModule) else _own_call(type(module))
    path = rec.known.path_of(module)
    if own is not None and path is not None and not isinstance(path, Obj):
        rec.known.guard(path, ClassAttr("__call__", own))
    else:
        guard_classes(rec, type(module), "__call__")
    if own is not None:
        return rec.call(own, (module, *args), kwargs)
    return _protocol(rec, module, args, kwargs)


def _own_call(cls: type) -> Any:
    for base in cls.__mro__:
        if base is torch.nn.Module:
            return None
        if "__call__" in base.__dict__ and not hasattr(
            base.__dict__["__call__"], "__dynfix_entry__"
        ):
            return base.__dict__["__call__"]
    return None


def _protocol(rec: Recorder, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    result = _called(rec, module, args, kwargs)
    rec.module_done()
    return result


def _called(rec: Recorder, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    hooks = _guard_hooks(rec, module)
    if not hooks:
        return rec.call(attribute_ops.load(rec, module, "forward"), args, kwargs)
    if any(module.__dict__[name] for name in _BACKWARD) or any(
        getattr(torch_module, name) for name in _GLOBAL
    ):
        rec.stop(catalogue.UNSUPPORTED, f"{type(module).__name__} has backward or global hooks")
        return torch.nn.Module.__call__(module, *args, **kwargs)
    return _with_hooks(rec, module, args, kwargs)


def _guard_hooks(rec: Recorder, module: Any) -> bool:
    """Guard the sizes of all hook tables; whether any holds a hook."""
    path = rec.known.path_of(module)
    for name in _TABLES:
        if path is not None:
            rec.known.guard(Item(InstDict(path), name), Length(len(module.__dict__[name])))
    for name in _GLOBAL:
        table = getattr(torch_module, name)
        rec.known.guard(Obj(table, f"torch.nn.modules.module.{name}"), Length(len(table)))
    return any(module.__dict__[name] for name in _TABLES) or any(
        getattr(torch_module, name) for name in _GLOBAL
    )


def _hooks(rec: Recorder, module: Any, table: str) -> Iterable[tuple[int, Any]]:
    path = rec.known.path_of(module)
    hooks = module.__dict__[table]
    if path is not None:
        rec.known.register(hooks, Item(InstDict(path), table))
        rec.known.content(hooks)
    return list(hooks.items())


def _with_hooks(rec: Recorder, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    for key, hook in _hooks(rec, module, "_forward_pre_hooks"):
        args, kwargs = _pre_hook(
            rec, module, hook, key in module._forward_pre_hooks_with_kwargs, args, kwargs
        )
    result = rec.call(attribute_ops.load(rec, module, "forward"), args, kwargs)
    for key, hook in _hooks(rec, module, "_forward_hooks"):
        given = (
            (module, args, kwargs, result)
            if key in module._forward_hooks_with_kwargs
            else (module, args, result)
        )
        changed = rec.call(hook, given, {})
        result = result if changed is None else changed
    return result


def _pre_hook(
    rec: Recorder,
    module: Any,
    hook: Any,
    with_kwargs: bool,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    changed = rec.call(hook, (module, args, kwargs) if with_kwargs else (module, args), {})
    if changed is None:
        return args, kwargs
    if with_kwargs:
        return changed
    return (changed if isinstance(changed, tuple) else (changed,)), kwargs
