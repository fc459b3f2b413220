"""Calls of nn.Modules while recording: the call protocol (hooks, then forward), with guards on the
hook tables."""

import dataclasses
import warnings
from collections.abc import Iterable
from typing import Any

import torch
from torch.nn.modules import module as torch_module

from ....runtime.errors import GraphBreakError
from ....runtime.guards.guard import ClassAttr, InstDict, Is, Item, Length, Obj
from ... import catalogue
from ...capture.trace import Recorder
from .. import attribute_ops
from ..lookup import guard_classes, is_distributed, is_module_call

_TABLES = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_BACKWARD = ("_backward_hooks", "_backward_pre_hooks")
_ENTRIES = ("__call__", "_call_impl")  # the first asks for the second


def call_entry(rec: Recorder, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    module = args[0]
    if _is_left_alone(rec, module):
        return rec.once(function, args, kwargs)
    return _protocol(rec, module, args[1:], kwargs)


def call_module(
    rec: Recorder, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """`module(*args)`; a class with its own `__call__` runs that, rewritten."""
    if _is_left_alone(rec, module):
        return rec.once(module, args, kwargs)
    # a GraphModule's own call only words errors
    own = None if isinstance(module, torch.fx.GraphModule) else _own_call(type(module))
    path = rec.known.path_of(module)
    if own is not None and path is not None and not isinstance(path, Obj):
        rec.known.guard(path, ClassAttr("__call__", own))
    else:
        guard_classes(rec, type(module), "__call__")
        _guard_entries(rec)
    if own is not None:
        return rec.call(own, (module, *args), kwargs)
    return _protocol(rec, module, args, kwargs)


def _is_left_alone(rec: Recorder, module: Any) -> bool:
    """Whether the module's call ends the recording."""
    rec.known.touch(module)
    if isinstance(module, torch.jit.ScriptModule):
        rec.stop(catalogue.OPAQUE_CALL, f"a {type(module).__name__}")
        return True
    if is_distributed(module):
        rec.stop(catalogue.PARALLEL_UNIT, f"a {type(module).__name__}")
        return True
    return False


def _own_call(cls: type) -> Any:
    """What stands, in the class or in nn.Module itself, in the place of nn.Module's call."""
    for name in _ENTRIES:
        found = next(base.__dict__[name] for base in cls.__mro__ if _defines(base, name))
        if not is_module_call(found):
            return found
    return None


def _defines(base: type, name: str) -> bool:
    return name in base.__dict__ and not hasattr(base.__dict__[name], "__dynfix_entry__")


def _guard_entries(rec: Recorder) -> None:
    """nn.Module's call methods, which counters of calls and the like rebind."""
    path = Obj(torch.nn.Module, "torch.nn.Module")
    for name in _ENTRIES:
        rec.known.guard(Item(InstDict(path), name), Is(torch.nn.Module.__dict__[name]))


def _protocol(rec: Recorder, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    result = _called(rec, module, args, kwargs)
    rec.module_done(module)
    return result


def _called(rec: Recorder, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    hooks = _guard_hooks(rec, module)
    if not hooks:
        return rec.call(_forward(rec, module), args, kwargs)
    if any(module.__dict__[name] or _of_all(name) for name in _BACKWARD):
        rec.stop(catalogue.UNSUPPORTED, f"{type(module).__name__} has backward hooks")
        return rec.once(module._call_impl, args, kwargs)
    return _with_hooks(rec, module, args, kwargs)


def _forward(rec: Recorder, module: Any) -> Any:
    return rec.safely(lambda: attribute_ops.load(rec, module, "forward"), lambda: module.forward)


def _guard_hooks(rec: Recorder, module: Any) -> bool:
    """Guard the sizes of all hook tables; whether any holds a hook."""
    path = rec.known.path_of(module)
    for name in _TABLES:
        if path is not None:
            given = rec.known.as_given(module.__dict__[name])
            rec.known.guard(Item(InstDict(path), name), Length(len(given)))
        rec.known.guard(_path_of_all(name), Length(len(_of_all(name))))
    return any(module.__dict__[name] or _of_all(name) for name in _TABLES)


def _of_all(table: str) -> Any:
    """The hooks of a kind that every module has."""
    return getattr(torch_module, f"_global{table}")


def _path_of_all(table: str) -> Obj:
    return Obj(_of_all(table), f"torch.nn.modules.module._global{table}")


def _hooks(rec: Recorder, module: Any, table: str) -> Iterable[tuple[int, Any]]:
    """Those of all modules, then the module's own."""
    path, hooks, of_all = rec.known.path_of(module), module.__dict__[table], _of_all(table)
    if of_all:
        rec.known.register(of_all, _path_of_all(table))
        rec.known.content(of_all)
    if path is not None:
        rec.known.register(hooks, Item(InstDict(path), table))
        rec.known.content(hooks)
    return [*of_all.items(), *hooks.items()]


def _with_hooks(rec: Recorder, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    state = _State(module, args, kwargs)
    try:
        for key, hook in _hooks(rec, module, "_forward_pre_hooks"):
            state.args, state.kwargs = _pre_hook(
                rec,
                module,
                hook,
                key in module._forward_pre_hooks_with_kwargs,
                state.args,
                state.kwargs,
            )
        forward = _forward(rec, module)
        state.result = rec.call(forward, state.args, state.kwargs)
        for key, hook in _hooks(rec, module, "_forward_hooks"):
            state.begun.add(key)
            _forward_hook(rec, state, key, hook)
    except GraphBreakError:
        raise
    except Exception:
        if module._forward_hooks_always_called or torch_module._global_forward_hooks_always_called:
            _hooks_after_error(rec, state)
        raise
    return state.result


@dataclasses.dataclass
class _State:
    """One call of a module with hooks, which change what it was given and what it gives."""

    module: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    result: Any = None
    begun: set[int] = dataclasses.field(default_factory=set)


def _forward_hook(rec: Recorder, state: _State, key: int, hook: Any) -> None:
    of_all = torch_module._global_forward_hooks_with_kwargs
    named = (
        (state.kwargs,) if key in state.module._forward_hooks_with_kwargs or key in of_all else ()
    )
    changed = rec.call(hook, (state.module, state.args, *named, state.result), {})
    if changed is not None:
        state.result = changed


def _hooks_after_error(rec: Recorder, state: _State) -> None:
    """Those registered with `always_call=True` that have not begun; their own errors are told."""
    of_all = torch_module._global_forward_hooks_always_called
    for key, hook in _hooks(rec, state.module, "_forward_hooks"):
        if key in state.begun or key not in {*of_all, *state.module._forward_hooks_always_called}:
            continue
        try:
            _forward_hook(rec, state, key, hook)
        except GraphBreakError:
            raise
        except Exception as error:
            text = f"{'global ' if key in of_all else ''}{_SILENCED}{error}"
            rec.call(warnings.warn, (text,), {"stacklevel": 2})


# as torch words them
_NO_PAIR = "forward pre-hook must return None or a tuple of (new_args, new_kwargs), but got "
_SILENCED = (
    "module forward hook with ``always_call=True`` raised an exception "
    "that was silenced as another error was raised in forward: "
)


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
        if not isinstance(changed, tuple) or len(changed) != 2:
            raise RuntimeError(f"{_NO_PAIR}{changed}.")
        return changed
    return (changed if isinstance(changed, tuple) else (changed,)), kwargs
