"""Statements whose parts Python reads by itself while recording: `match`, the body of a class."""

import types
from collections.abc import Callable
from typing import Any

import torch

from .. import catalogue
from ..capture.guarded_kinds import is_constant
from ..capture.nested import concretize
from ..capture.numbers.scalars import TRACED
from ..capture.trace import Recorder
from . import attribute_ops, items
from .c_calls import is_generated, runs_python
from .lookup import guard_bases, guard_classes, is_stable, on_class

_READING = ("__eq__", "__getitem__", "__len__", "get", "keys", "__getattr__", "__getattribute__")
MAX_MATCH_OBJECTS = 2_000  # objects that a pattern can be about


def watch(
    rec: Recorder, value: Any, patterns: tuple[Any, ...], attributes: tuple[str, ...]
) -> None:
    """All that matching `value` against the patterns could read is guarded, or ends the
    recording."""
    for read, *path in patterns:
        _pattern_name(rec, read, path)
    items.guard_arguments(rec, (value,), {})
    rest, seen = [value], set()
    while rest and rec.active:
        obj = rest.pop()
        if id(obj) in seen or is_constant(obj) or type(obj) in TRACED:
            continue
        seen.add(id(obj))
        if len(seen) > MAX_MATCH_OBJECTS:
            rec.stop(catalogue.UNSUPPORTED, "`match` of more than it can look through")
        rest.extend(_parts(rec, obj, attributes))


def _pattern_name(rec: Recorder, read: Callable[[], Any], path: list[str]) -> None:
    """`K.A` in a pattern: read as rewritten code would. A name that is not there raises only where
    its case is tried."""
    try:
        value = read()
        for name in path:
            if _is_computed(on_class(type(value), name)):
                rec.stop(catalogue.UNSUPPORTED, f"a pattern reads {name}, which is computed")
            value = attribute_ops.load(rec, value, name)
        value = concretize(value)
    except (NameError, AttributeError):
        rec.stop(catalogue.UNSUPPORTED, "a pattern names what is not there")
        return
    if isinstance(value, type):
        meta = type(value)
        if not is_stable(meta):
            guard_classes(rec, meta, "__instancecheck__")
        if not is_stable(meta) and runs_python(meta, "__instancecheck__"):
            rec.stop(catalogue.UNSUPPORTED, f"`match` asks {meta.__name__}.__instancecheck__")
    elif runs_python(type(value), "__eq__"):
        rec.stop(catalogue.UNSUPPORTED, f"`match` compares with a {type(value).__name__}")


def _is_computed(found: Any) -> bool:
    kept = isinstance(found, types.FunctionType | types.MemberDescriptorType)
    return hasattr(type(found), "__get__") and not kept


def _parts(rec: Recorder, obj: Any, attributes: tuple[str, ...]) -> list[Any]:
    """What a pattern could reach through `obj`."""
    if isinstance(obj, list | tuple):
        found = list(tuple.__iter__(obj) if isinstance(obj, tuple) else list.__iter__(obj))
    elif isinstance(obj, dict):
        found = list(dict.values(obj))
    else:
        found = []
    if isinstance(obj, torch.Tensor):
        return []
    if isinstance(obj, torch.nn.Module | type | types.ModuleType | types.FunctionType):
        return [attribute_ops.load(rec, obj, name) for name in attributes if hasattr(obj, name)]
    _check_methods(rec, obj, attributes)
    return found + list(getattr(obj, "__dict__", {}).values())


def _check_methods(rec: Recorder, obj: Any, attributes: tuple[str, ...]) -> None:
    """Code of the user's that matching would run unseen."""
    cls = type(obj)
    for name in _READING:
        if runs_python(cls, name) and not is_generated(on_class(cls, name)):
            rec.stop(catalogue.UNSUPPORTED, f"`match` runs {cls.__name__}.{name}")
    positional = on_class(cls, "__match_args__")
    for name in (*attributes, *(positional if isinstance(positional, tuple) else ())):
        found = on_class(cls, name)
        if isinstance(found, property) and not is_stable(cls):
            rec.stop(catalogue.UNSUPPORTED, f"`match` runs {cls.__name__}.{name}")
        elif not is_stable(cls):
            attribute_ops.exists(rec, obj, name)
    guard_bases(rec, cls)


def class_body(
    rec: Recorder,
    fn: types.FunctionType,
    reads: tuple[Callable[[], Any], ...],
    computes: bool,
) -> None:
    """A class statement: the names that its body reads are guarded as they are read; a body that
    computes with anything but constants and what libraries hold for good ends the recording."""
    rec.class_scopes.add(f"{fn.__qualname__}.<locals>.")
    for read in reads:
        try:
            value = concretize(read())
        except NameError:  # the body raises it, or binds the name itself
            continue
        if computes and not _is_harmless(value):
            rec.stop(
                catalogue.UNSUPPORTED,
                f"the body of a class that computes with a {type(value).__name__}",
            )


def class_base(rec: Recorder, base: Any) -> None:
    """Python of the user's that making a class with this base, or of this metaclass, runs unseen
    ends the recording."""
    if not isinstance(base, type):
        return
    makers = [(type(base), name) for name in _MAKING]
    if issubclass(base, type):
        makers += [(base, name) for name in _MAKING]
    for cls, name in (*makers, (base, "__init_subclass__")):
        found = on_class(cls, name)
        function = getattr(found, "__func__", found)
        if isinstance(function, types.FunctionType) and not is_stable(function):
            rec.stop(catalogue.UNSUPPORTED, f"a class statement runs {cls.__name__}.{name}")


_MAKING = ("__new__", "__init__", "__call__", "__prepare__")


def _is_harmless(value: Any) -> bool:
    if is_constant(value) or type(value) in TRACED or isinstance(value, torch.Tensor):
        return True
    if isinstance(value, types.BuiltinFunctionType):
        return True
    known = isinstance(value, type | types.ModuleType | types.FunctionType)
    return known and is_stable(value)
