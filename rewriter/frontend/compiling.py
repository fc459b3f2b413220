"""`compile`: the signature of `torch.compile`. Loads no recorder: calls that stored recordings
serve do without."""

import functools
import importlib
import inspect
import os
from collections.abc import Callable, Mapping
from typing import Any

import torch

from ... import __getattr__ as public  # the package's lazy table
from ...runtime import diagnostics
from ...runtime.environment import supported_torch  # noqa: F401, it raises if torch is too old
from ...runtime.errors import OptionError
from ...runtime.options import Options
from ..tracing_ops import lookup
from .config import make_options
from .module_class import (
    begun_call_entry,
    compiled_module,
    eager_original,
    module_call_entry,
    module_entry,
)
from .stored_function import compiled_function
from .tracebacks import without_own_frames


def compile(
    model: Any = None,
    *,
    fullgraph: bool = False,
    dynamic: bool | None = None,
    backend: str | Callable[..., Any] | None = "native",
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
    disable: bool = False,
    recompile_limit: int | None = None,
) -> Any:
    """Compile a function, method, `nn.Module` or `nn.Module` class; a decorator, with or without
    arguments.

    `fullgraph`: a graph break is a GraphBreakError. `dynamic`: True starts with symbolic sizes,
    False keeps every size static, None goes symbolic at the second size. `backend`: a name of
    `list_backends()` or a callable `(GraphModule, example_inputs) -> callable`. `mode`: a name of
    `list_mode_options()`. `options`: a dict, names of `list_options()`. `disable`: return `model`
    as it is. `recompile_limit`: variants kept before new ones run in eager (config's, 8).

    A module gives a new object of a subclass of its class that shares its `__dict__`; the original
    stays eager. A class is changed in place, so that calls of its objects are compiled, and
    returned. Raises OptionError for unknown names.
    """
    record = make_options(fullgraph, dynamic, backend, mode, options)
    if recompile_limit is not None:
        record = record.replace(recompile_limit=recompile_limit)
    again = functools.partial(
        compile,
        fullgraph=fullgraph,
        dynamic=dynamic,
        backend=backend,
        mode=mode,
        options=options,
        disable=disable,
        recompile_limit=recompile_limit,
    )
    if model is None:
        return again
    return model if disable else _compile(model, record, again)


def _compile(model: Any, options: Options, again: Callable[[Any], Any]) -> Any:
    if isinstance(model, torch.jit.ScriptModule):
        diagnostics.warn_once(
            "script", "a ScriptModule is compiled already: it is returned as it is"
        )
        return model
    model = _eager(model)
    if isinstance(model, torch.nn.Module):
        original = eager_original(model)
        entry = _entry_of(original, options)
        aot_compile = functools.partial(_aot_compile, entry, original)
        return compiled_module(original, entry, again, aot_compile)
    if inspect.isclass(model):
        return _compile_class(model, options)
    if not callable(model):
        raise OptionError(
            f"compile() takes a function, a module or a class, not {type(model).__name__}"
        )
    return _compile_callable(model, options)


def _entry_of(
    module: torch.nn.Module, options: Options, of: Callable[..., Any] = module_call_entry
) -> Any:
    entry = compiled_function(module_entry(type(module), of), options)
    if lookup.is_distributed(module):
        entry.open()
    return entry


def compile_begun(module: torch.nn.Module, **arguments: Any) -> Any:
    """What serves calls of `module` that `nn.Module.__call__` has begun, with arguments of
    `compile`: it takes the module and what that was given."""
    return _entry_of(module, make_options(**arguments), begun_call_entry)


def _eager(model: Any) -> Any:
    """What was compiled before, by us or by `torch.compile`, as it was given; anything else as it
    is."""
    while kept := lookup.keeps_eager(model):
        model = getattr(model, kept)
    return model


def _compile_class(cls: type, options: Options) -> type:
    """Calls of its objects are compiled, as under torch.compile; the class itself is returned."""
    if "__call__" not in dir(cls) or cls.__call__ is type.__call__:
        raise OptionError(
            f"compile() takes a class whose objects can be called; {cls.__name__} has no __call__"
        )
    cls.__call__ = _function(cls.__call__, options)  # type: ignore[method-assign]
    return cls


def _compile_callable(fn: Callable[..., Any], options: Options) -> Callable[..., Any]:
    if inspect.ismethod(fn):
        return _method(fn, options)
    if inspect.isfunction(fn):
        return _function(fn, options)
    entry = compiled_function(_call_entry, options)
    return _wrapper(functools.partial(entry, fn), fn, entry)


def _call_entry(fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """What is compiled for a callable object: a builtin, a partial, an object with `__call__`."""
    return fn(*args, **kwargs)


def _method(method: Any, options: Options) -> Callable[..., Any]:
    """Compiled as the function with its object as argument 0; a compiled module stands for its
    eager original."""
    owner = method.__self__
    owner = eager_original(owner) if isinstance(owner, torch.nn.Module) else owner
    entry = compiled_function(_eager(method.__func__), options)
    return _wrapper(functools.partial(entry, owner), method, entry)


def _function(fn: Callable[..., Any], options: Options) -> Callable[..., Any]:
    entry = compiled_function(fn, options)
    return _wrapper(entry, fn, entry)


def _wrapper(call: Callable[..., Any], original: Any, entry: Any) -> Callable[..., Any]:
    """A plain function, so that it binds as a method and shows the user's name and signature."""

    def compiled(*args: Any, **kwargs: Any) -> Any:
        try:
            return call(*args, **kwargs)
        except Exception as error:
            raise without_own_frames(error)  # noqa: B904, it is the same one

    functools.update_wrapper(compiled, original)
    compiled._dynfix_original = original  # type: ignore[attr-defined]
    compiled._dynfix_entry = entry  # type: ignore[attr-defined]
    compiled.aot_compile = functools.partial(_aot_compile, entry, original)  # type: ignore[attr-defined]
    return compiled


def _aot_compile(entry: Any, original: Any, example_inputs: tuple[Any, Any]) -> Any:
    """What `torch.compile(f).aot_compile` is: compile for calls like `example_inputs`, a pair of
    arguments; `save_compiled_function(path)` of the result writes a package."""
    packaging = importlib.import_module(".packaging", __package__)
    return packaging.aot_compile(packaging.packaged_of(entry, original), example_inputs)


if os.environ.get("DYNFIX_LOCK") or os.environ.get("DYNFIX_LOCK_CHECK"):
    begin_lock: Any = public("begin_lock")  # which loads the compiler
    begin_lock()
