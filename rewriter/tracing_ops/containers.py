"""Methods of lists, dicts and sets while recording: those that change one from outside are effects,
the others read it."""

import collections
import functools
import types
from typing import Any

import torch

from .. import catalogue
from ..capture.effects import SideEffect
from ..capture.guarded_kinds import HASHING, MAPPINGS
from ..capture.nested import concretize
from ..capture.numbers import scalars
from ..capture.trace import Recorder
from . import binaries, c_calls, items
from .lookup import owner_of

_TYPES: tuple[type, ...] = (
    list,
    dict,
    set,
    tuple,
    frozenset,
    collections.deque,
    type({}.keys()),
    type({}.values()),
    type({}.items()),
    type(dict.__dict__),
)
# They take the elements of now.
_SET_WRITES = tuple("intersection_update difference_update symmetric_difference_update".split())
_IN_PLACE = tuple("__iadd__ __ior__ __iand__ __isub__ __ixor__".split())
_COPYING = ("extend", "extendleft", "update", "__init__", *_SET_WRITES, *_IN_PLACE)
_WRITES = frozenset(
    "append extend insert remove clear sort reverse add discard update setdefault appendleft"
    " extendleft rotate __setitem__ __delitem__ __imul__ move_to_end".split()
) | {*_COPYING}
_KEEPING = frozenset(
    "append extend add discard remove update appendleft extendleft index count __contains__ __add__"
    " __iadd__".split()
)
_READ_WRITES = frozenset("pop popitem popleft setdefault remove".split())
_ONLY_WRITE = ("append", "insert", "appendleft", "add", "clear")
_ITEMS = {"__setitem__": 2, "__delitem__": 1}  # what statements do, by the number of arguments

_ASKING = {
    **dict.fromkeys(("index", "count", "remove", "__contains__", "__eq__", "__ne__"), ("__eq__",)),
    **dict.fromkeys(("get", "setdefault", "add", "discard", "update"), ("__eq__", "__hash__")),
    **dict.fromkeys((*_SET_WRITES, *_IN_PLACE), ("__eq__", "__hash__")),
    "pop": ("__eq__", "__hash__"),
}
_KEYED = (dict, collections.OrderedDict, collections.defaultdict)
_BY_KEY = frozenset("get setdefault pop __contains__ __getitem__ remove discard".split())


def takes(function: Any) -> bool:
    """A bound method, written in C, of a builtin container."""
    return isinstance(owner_of(function), _TYPES) and type(function).__name__ in (
        "builtin_function_or_method",
        "method-wrapper",
    )


def call_method(rec: Recorder, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    owner, name = function.__self__, function.__name__
    if isinstance(owner, torch.Size):
        return getattr(concretize(owner), name)(*concretize(args), **concretize(kwargs))
    c_calls.check(rec, _ASKING.get(name, ()), owner, args)
    if not rec.active:
        return rec.once(function, args, kwargs)
    if name == "sort":
        kwargs = _in_order(rec, owner, kwargs)
    if name in _ITEMS and type(owner) in (dict, list) and len(args) == _ITEMS[name] and not kwargs:
        return (items.store if name == "__setitem__" else items.delete)(rec, owner, *args)
    if name == "__getitem__" and len(args) == 1 and _misses(owner, concretize(args[0])):
        return items.mapped(rec, owner, concretize(args[0]))
    if rec.known.touch(owner) is None:
        return _internal(rec, function, args, kwargs)
    if isinstance(owner, HASHING) and name in _BY_KEY and args:
        items.guard_key(rec, owner, args[0])
    if (
        name in ("get", "__contains__", "__getitem__")
        and isinstance(owner, MAPPINGS)
        and args
        and not rec.known.was_written(owner)
    ):
        return _looked_up(rec, function, owner, name, tuple(map(_number, args)))
    if name in ("setdefault", "pop") and type(owner) in _KEYED and args and not kwargs:
        return _at_key(rec, function, owner, name, tuple(args))
    if name == "sort" and kwargs.get("key") is not None:
        return _sorted(rec, function, owner, args, kwargs)
    if name in _WRITES | _READ_WRITES:
        return _write(rec, function, owner, name, args, kwargs)
    items.guard_content(rec, owner)
    return rec.by_c(function, concretize(args), concretize(kwargs))


def _misses(owner: Any, key: Any) -> bool:
    """Whether the lookup is to call the owner's `__missing__`, in Python."""
    return (
        isinstance(owner, dict)
        and c_calls.runs_python(type(owner), "__missing__")
        and not items.has(owner, key)
    )


def _looked_up(rec: Recorder, function: Any, owner: Any, name: str, args: tuple[Any, ...]) -> Any:
    if name == "__contains__" or not items.has(owner, args[0]):
        items.lacks(rec, owner, args[0])
        return rec.once(function, args)
    return items.mapped(rec, owner, args[0])


def _at_key(rec: Recorder, function: Any, owner: Any, name: str, args: tuple[Any, ...]) -> Any:
    """`setdefault(key, value)` and `pop(key, value)`: what lies at this key alone decides."""
    key = _number(args[0])
    if items.has(owner, key):
        value = items.load(rec, owner, key)
        if name == "pop":
            items.delete(rec, owner, key)
        return value
    items.lacks(rec, owner, key)
    if name == "pop":
        return rec.once(function, (key, *args[1:]))
    value = args[1] if len(args) > 1 else None
    items.store(rec, owner, key, value)
    return value


def _in_order(rec: Recorder, owner: Any, kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a sort whose key, and whose comparisons, are the user's code."""
    key, ordered = kwargs.get("key"), functools.partial(binaries.ordered, rec)
    if key is not None:
        measure = rec.rewriter.callback(rec, key)
        return {**kwargs, "key": lambda value: ordered(concretize(measure(value)))}
    if any(type(ordered(value)) is binaries.Ordered for value in owner):
        return {**kwargs, "key": ordered}
    return kwargs


def _sorted(
    rec: Recorder, function: Any, owner: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """A list from outside is sorted by a function: later calls, whose lists hold the same and whose
    numbers compare as here, put its elements where they are now."""
    items.guard_content(rec, owner)
    rec.known.before_write(owner)
    rec.before_change(owner)
    try:
        rec.once(function, args, concretize(kwargs))
    except Exception:
        rec.stop(catalogue.UNSUPPORTED, "sort raised, when some were moved")
        raise
    rec.effects.append(SideEffect(items.set_item, (owner, slice(None), list(owner))))


def _internal(rec: Recorder, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    name = function.__name__
    if isinstance(function.__self__, HASHING):
        rec.known.assume_distinct_keys(function.__self__, *(args[:1] if name in _ASKING else ()))
    compares = _ASKING.get(name) == ("__eq__",)
    if compares or name in _COPYING or name in ("union", "difference", "intersection"):
        for arg in (function.__self__, *args) if compares else args:
            items.guard_content(rec, arg)
    named = kwargs if name == "update" else concretize(kwargs)
    return rec.once(function, _taken(name, args), named)


def _taken(name: str, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Arguments that are kept stay traced; those that say where or how many are read by C code."""
    if name in _KEEPING:
        return args
    return (
        (_number(args[0]), *args[1:])
        if name in ("insert", "setdefault", "__setitem__")
        else tuple(map(_number, args))
    )


def _number(value: Any) -> Any:
    """A traced scalar settled; a container stays the object that it is."""
    return scalars.concretize_scalar(value) if type(value) in scalars.TRACED else value


def _write(
    rec: Recorder,
    function: Any,
    owner: Any,
    name: str,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    """Done now, and again at every later call; a method that also reads makes the content part of
    the guards."""
    if name not in _COPYING and name not in _ONLY_WRITE:
        items.guard_content(rec, owner)
    for arg in args:
        items.guard_content(rec, arg) if name in _COPYING else None
    rec.known.before_write(owner)
    taken = (
        type(arg)(arg) if name in _COPYING and type(arg) in (list, set, dict) else arg
        for arg in args
    )
    effect = SideEffect(_c_method(owner, name), (owner, *taken), dict(kwargs))
    rec.effects.append(effect)
    try:
        return rec.once(function, _taken(name, args), kwargs)
    except Exception:
        if name in _COPYING:
            rec.stop(catalogue.UNSUPPORTED, f"{name} raised, when some were taken")
        else:
            rec.effects.remove(effect)  # nothing was done
        raise


def _c_method(owner: Any, name: str) -> Any:
    """The builtin's own method: a subclass's override has run rewritten already, and is what called
    it."""
    kinds = (types.MethodDescriptorType, types.WrapperDescriptorType)
    return next(
        cls.__dict__[name]
        for cls in type(owner).__mro__
        if isinstance(cls.__dict__.get(name), kinds)
    )
