"""Subscripts while recording."""

import collections
import operator
from typing import Any

import torch

from ...runtime.guards.guard import Attr, HasIndex, Item, Length, TypeIs
from .. import catalogue
from ..capture.effects import SideEffect
from ..capture.guarded_kinds import BY_WHAT_IT_IS, MAPPINGS, PLAIN_KEYS, SEQUENCES, is_constant
from ..capture.nested import concretize
from ..capture.numbers import constant_values, moving_arrays, scalars, traced_arrays
from ..capture.provenance import Unguardable, item_path
from ..capture.trace import Recorder
from . import c_calls
from .calls import kernel_launches
from .lookup import MISSING, guard_classes, is_stable, on_class, python_method, special_method

_COUNTED = (*SEQUENCES, str, bytes, range)


def load(rec: Recorder, obj: Any, key: Any) -> Any:
    """`obj[key]`, guarded if the container is from outside."""
    if isinstance(obj, torch.Tensor):
        return obj[_with_tensors(rec, key)]
    if traced_arrays.entry(rec, obj) is not None or (
        constant_values.is_array(obj) and traced_arrays.among(rec, (key,))
    ):
        return traced_arrays.call(rec, operator.getitem, (obj, key), {})
    if type(obj) in scalars.TRACED:
        return scalars.concretize_scalar(obj)[concretize(key)]
    if kernel_launches.is_kernel(obj):
        return kernel_launches.Launch(obj, key)
    method = python_method(rec, obj, "__getitem__")
    if method is not None:
        return rec.call(method, (obj, key), {})
    if isinstance(obj, type) and not hasattr(type(obj), "__getitem__"):
        made = on_class(obj, "__class_getitem__")
        if made is not MISSING and special_method(made) is not None and not is_stable(obj):
            return _parametrised(rec, obj, key, made)
    key = concretize(as_index(rec, key) if isinstance(obj, _COUNTED) else key)
    if not is_constant(key):
        c_calls.check(rec, ("__eq__", "__hash__", "__index__"), key)
        if not rec.active:
            return rec.once(operator.getitem, (obj, key))
        guard_content(rec, key)
    path = rec.known.touch(obj)
    if isinstance(obj, dict):
        rec.known.assume_distinct_keys(obj, key)
    if isinstance(obj, MAPPINGS) and not isinstance(key, slice) and key not in obj:
        return mapped(rec, obj, key)
    if path is None or isinstance(obj, type) or rec.known.is_own(obj, _hashable(key)):
        return rec.once(operator.getitem, (obj, key))
    if isinstance(obj, MAPPINGS) and not rec.known.was_written(obj):
        return mapped(rec, obj, key)
    if (
        isinstance(key, slice)
        or not is_constant(key)
        or rec.known.was_written(obj)
        or not isinstance(obj, SEQUENCES + MAPPINGS)
    ):
        return _whole(rec, obj, key)
    try:
        value = rec.once(operator.getitem, (obj, key))
    except IndexError:  # the caller may catch it: that the element is not there is what it read
        guard_structure(rec, obj)
        raise
    return rec.known.loaded(value, Item(path, key))


def _parametrised(rec: Recorder, cls: Any, key: Any, made: Any) -> Any:
    """`cls[key]` by a `__class_getitem__` in Python."""
    guard_classes(rec, cls, "__class_getitem__")
    getter = getattr(type(made), "__get__", None)
    return rec.call(made if getter is None else getter(made, None, cls), (key,), {})


def _with_tensors(rec: Recorder, key: Any) -> Any:
    """The index of a tensor, with tensors for the arrays in it."""
    if type(key) is tuple:
        parts = tuple(_with_tensors(rec, part) for part in key)
        return key if all(a is b for a, b in zip(parts, key, strict=True)) else parts
    if type(key) is slice:
        bounds = (key.start, key.stop, key.step)
        return slice(*(_with_tensors(rec, bound) for bound in bounds))
    key = as_index(rec, key)
    if traced_arrays.entry(rec, key) is not None:
        return traced_arrays.index_tensor(rec, key)
    if not constant_values.is_array(key):
        return key
    moving = moving_arrays.as_input(rec, key)
    if moving is not None:
        return moving
    guard_arguments(rec, (key,), {})
    return constant_values.as_tensor(rec, torch.from_numpy, key)


def as_index(rec: Recorder, value: Any) -> Any:
    """The number that an object of the user's stands for where one is needed."""
    known = type(value) in scalars.TRACED or constant_values.is_array(value)
    if isinstance(value, torch.Tensor) or known or is_constant(value):
        return value
    method = python_method(rec, value, "__index__")
    return value if method is None else rec.call(method, (value,), {})


def check_key(rec: Recorder, key: Any) -> None:
    """A dict or set is about to ask a key for its hash, and whether it equals another."""
    if not is_constant(key) and type(key) not in scalars.TRACED:
        c_calls.check(rec, ("__eq__", "__hash__"), key)
        guard_arguments(rec, (key,), {})


def guard_key(rec: Recorder, container: Any, key: Any) -> None:
    """A dict or set is asked for the key: which one it is, or what it equals, is relied upon."""
    rec.known.assume_distinct_keys(container, key)
    if type(key).__hash__ not in BY_WHAT_IT_IS:
        guard_arguments(rec, (key,), {})


def mapped(rec: Recorder, obj: Any, key: Any) -> Any:
    """`obj[key]` of a mapping from outside: guards the element, or that there is none."""
    c_calls.check(rec, ("__eq__", "__hash__"), key)
    if not is_constant(key):
        guard_content(rec, key)
    if not has(obj, key):
        lacks(rec, obj, key)
        return _missing(rec, obj, key)
    path = rec.known.path_of(obj)
    value = (
        dict.__getitem__(obj, key)
        if isinstance(obj, dict)
        else rec.once(operator.getitem, (obj, key))
    )
    return value if path is None else rec.known.loaded(value, item_path(obj, path, key))


def _missing(rec: Recorder, obj: Any, key: Any) -> Any:
    """A key that is not there: `__missing__` is called, a defaultdict makes and stores it."""
    method = python_method(rec, obj, "__missing__")
    if method is not None:
        return rec.call(method, (obj, key), {})
    factory = _default_factory(rec, obj) if isinstance(obj, collections.defaultdict) else None
    if factory is None:
        return rec.once(operator.getitem, (obj, key))
    value = rec.call(factory, (), {})
    store(rec, obj, key, value)
    return value


def _default_factory(rec: Recorder, obj: Any) -> Any:
    path = rec.known.path_of(obj)
    factory = obj.default_factory
    return factory if path is None else rec.known.loaded(factory, Attr(path, "default_factory"))


def has(obj: Any, key: Any) -> bool:
    """Whether a mapping holds the key, whatever its class's `__contains__` says."""
    return dict.__contains__(obj, key) if isinstance(obj, dict) else key in obj


def lacks(rec: Recorder, obj: Any, key: Any) -> bool:
    try:
        return bool(rec.known.lacks(obj, scalars.plain(key)))
    except Unguardable as error:
        rec.stop(catalogue.UNSUPPORTED, str(error))
        return True


def _hashable(key: Any) -> Any:
    try:
        hash(key)
    except TypeError:
        return repr(key)
    return key


def _whole(rec: Recorder, obj: Any, key: Any) -> Any:
    guard_structure(rec, obj)
    return rec.once(operator.getitem, (obj, key))


def guard_structure(rec: Recorder, obj: Any) -> None:
    """Rewritten code goes through a container; what no guard can watch stops the recording."""
    try:
        rec.known.structure(obj)
    except Unguardable as error:
        rec.stop(catalogue.UNSUPPORTED, str(error))


def guard_content(rec: Recorder, obj: Any) -> None:
    """Code that is not rewritten gets the object; what no guard can watch stops the recording."""
    try:
        rec.known.content(obj)
    except Unguardable as error:
        rec.stop(catalogue.UNSUPPORTED, str(error))


def guard_arguments(rec: Recorder, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    try:
        rec.known.arguments(args)
        rec.known.arguments(kwargs.values())
    except Unguardable as error:
        rec.stop(catalogue.UNSUPPORTED, str(error))


def store(rec: Recorder, obj: Any, key: Any, value: Any) -> None:
    if isinstance(obj, torch.Tensor):
        obj[_with_tensors(rec, key)] = value
        return
    if constant_values.is_array(obj):
        if traced_arrays.among(rec, (obj, key, value)):
            return traced_arrays.store(rec, obj, key, value)
        value = concretize(value)
        if rec.known.is_lent(obj):
            rec.stop(catalogue.UNSUPPORTED, "an array is written that shares a tensor's memory")
    method = python_method(rec, obj, "__setitem__")
    if method is not None:
        rec.call(method, (obj, key, value), {})
        return
    key = concretize(key)
    _check_place(rec, obj, key)
    if isinstance(obj, SEQUENCES):
        _guard_place(rec, obj, key)
    _before(rec, obj)
    rec.once(set_item, (obj, key, value))
    # a slice takes the elements of now
    kept = list(value) if isinstance(key, slice) and isinstance(value, list) else value
    _after(rec, obj, key, SideEffect(set_item, (obj, key, kept)))


def delete(rec: Recorder, obj: Any, key: Any) -> None:
    method = python_method(rec, obj, "__delitem__")
    if method is not None:
        rec.call(method, (obj, key), {})
        return
    key = concretize(key)
    _check_place(rec, obj, key)
    _guard_place(rec, obj, key)
    _before(rec, obj)
    rec.once(delete_item, (obj, key))
    _after(rec, obj, key, SideEffect(delete_item, (obj, key)))


def _check_place(rec: Recorder, obj: Any, key: Any) -> None:
    if not is_constant(key):
        c_calls.check(rec, ("__eq__", "__hash__"), key)


def _guard_place(rec: Recorder, obj: Any, key: Any) -> None:
    """Whether there is such an item to write decides whether the statement raises."""
    path = rec.known.touch(obj)
    if path is None or rec.known.was_written(obj) or not rec.active:
        return
    named = type(obj) is dict and type(key) in PLAIN_KEYS
    if isinstance(obj, SEQUENCES) and type(key) is int:
        rec.known.guard(path, HasIndex(key, -len(obj) <= key < len(obj)))
    elif isinstance(obj, SEQUENCES) and isinstance(key, slice) and key.step is not None:
        rec.known.guard(path, Length(len(obj)))
    elif isinstance(obj, MAPPINGS) and has(obj, key) and not named:
        value = dict.__getitem__(obj, key) if isinstance(obj, dict) else obj[key]
        rec.known.guard(item_path(obj, path, key), TypeIs(type(value)))
    elif isinstance(obj, MAPPINGS):
        lacks(rec, obj, key)


def _before(rec: Recorder, obj: Any) -> None:
    rec.known.before_write(obj)
    if rec.known.touch(obj) is not None:
        rec.before_change(obj)


def _after(rec: Recorder, obj: Any, key: Any, effect: SideEffect) -> None:
    if rec.known.touch(obj) is not None:
        rec.effects.append(effect)
    if not isinstance(key, slice) and isinstance(obj, MAPPINGS):
        rec.known.wrote(obj, key)


def set_item(obj: Any, key: Any, value: Any) -> None:
    obj[key] = value


def delete_item(obj: Any, key: Any) -> None:
    del obj[key]
