"""A compiled module: a new object of a dynamic subclass of the module's class, sharing the
original's `__dict__`.

Sharing the dict is what keeps `state_dict` keys, attributes, hooks, `.to()` and `.train()` as they
were, with no wrapper between. The original object stays eager, and it is the original that runs
inside: `type(self)` in the user's `forward` is the user's own class.
"""

import copy
import copyreg
import types
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.nn.modules.utils import consume_prefix_in_state_dict_if_present

from .tracebacks import without_own_frames

_PREFIX = "_orig_mod."  # of the keys of torch.compile's result
CompileFn = Callable[[Any], Any]  # compiles a module again, with the arguments of the first time


def module_call_entry(module: torch.nn.Module, /, *args: Any, **kwargs: Any) -> Any:
    """What is compiled for a module: its call, hooks included. Argument 0 is the eager original."""
    return module(*args, **kwargs)


def begun_call_entry(module: torch.nn.Module, /, *args: Any, **kwargs: Any) -> Any:
    """The same of a call that `nn.Module.__call__` has begun: what the class does before that, in a
    `__call__` of its own, is not done again."""
    return module._call_impl(*args, **kwargs)  # type: ignore[no-untyped-call]


def module_entry(cls: type, of: Callable[..., Any] = module_call_entry) -> Callable[..., Any]:
    """`module_call_entry` or `begun_call_entry` under the name of the module's class, which
    messages show; the code is the same object."""
    entry = types.FunctionType(of.__code__, of.__globals__, cls.__name__)
    entry.__qualname__, entry.__module__ = cls.__qualname__, module_call_entry.__module__
    return entry


def awaits_shapes(args: tuple[Any, ...]) -> bool:
    """Whether argument 0 is a module with lazy layers that no call has given their sizes yet."""
    module = args[0] if args else None
    return isinstance(module, torch.nn.Module) and any(
        torch.nn.parameter.is_lazy(tensor) for tensor in (*module.parameters(), *module.buffers())
    )


class CompiledModule:
    """Mixed into the dynamic subclass, whose slots hold our own state: the shared `__dict__` stays
    the user's."""

    __slots__ = ()
    _dynfix_original: torch.nn.Module
    _dynfix_entry: Callable[..., Any]
    _dynfix_again: CompileFn
    _dynfix_aot_compile: Callable[..., Any]

    def aot_compile(self, example_inputs: tuple[Any, Any]) -> Any:
        """As of compiled functions."""
        return self._dynfix_aot_compile(example_inputs)

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        try:
            return self._dynfix_entry(self._dynfix_original, *args, **kwargs)
        except Exception as error:
            raise without_own_frames(error)  # noqa: B904, it is the same one

    @property
    def _orig_mod(self) -> torch.nn.Module:
        """The eager original, under the name that torch.compile's result has for it."""
        return self._dynfix_original

    def load_state_dict(self, state_dict: Any, *args: Any, **kwargs: Any) -> Any:
        """As the module's; also what was saved of torch.compile's result, under other keys."""
        if state_dict and all(key.startswith(_PREFIX) for key in state_dict):
            state_dict, metadata = copy.copy(state_dict), getattr(state_dict, "_metadata", None)
            if metadata is not None:
                state_dict._metadata = copy.copy(metadata)
            consume_prefix_in_state_dict_if_present(state_dict, _PREFIX)
        return self._dynfix_original.load_state_dict(state_dict, *args, **kwargs)

    def __copy__(self) -> Any:
        return self._dynfix_again(copy.copy(self._dynfix_original))

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return self._dynfix_again(copy.deepcopy(self._dynfix_original, memo))

    def __reduce_ex__(self, protocol: Any) -> Any:
        return _rebuild, (self._dynfix_original, self._dynfix_again)


def _rebuild(original: torch.nn.Module, again: CompileFn) -> Any:
    return again(original)


def compiled_module(
    original: torch.nn.Module,
    entry: Callable[..., Any],
    again: CompileFn,
    aot_compile: Callable[..., Any],
) -> Any:
    """A compiled twin of `original`: calls go to `entry(original, ...)`; `again`, which pickles,
    compiles a copy; `aot_compile` compiles for one example."""
    twin: Any = object.__new__(_subclass(type(original)))
    object.__setattr__(twin, "__dict__", original.__dict__)
    for name in copyreg._slotnames(type(original)):  # type: ignore[attr-defined]
        if hasattr(original, name):
            object.__setattr__(twin, name, getattr(original, name))
    own = {"original": original, "entry": entry, "again": again, "aot_compile": aot_compile}
    for name, value in own.items():
        object.__setattr__(twin, f"_dynfix_{name}", value)
    return twin


def eager_original(module: torch.nn.Module) -> torch.nn.Module:
    """The module itself, or the eager one behind a compiled twin."""
    return module._dynfix_original if isinstance(module, CompiledModule) else module


_classes: "weakref.WeakKeyDictionary[type, weakref.ref[type]]" = weakref.WeakKeyDictionary()


def _subclass(base: type) -> type:
    """The compiled class of `base`: one while objects of it live, with the name, module and
    documentation of `base`."""
    known = _classes.get(base, lambda: None)()
    if known is None:
        slots = ("_dynfix_original", "_dynfix_entry", "_dynfix_again", "_dynfix_aot_compile")
        body = {name: getattr(base, name) for name in ("__module__", "__qualname__", "__doc__")}
        known = type(base)(base.__name__, (CompiledModule, base), {**body, "__slots__": slots})
        _classes[base] = weakref.ref(known)
    return known
