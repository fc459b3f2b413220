"""Special methods of `object` called by name while recording: `super().__setattr__(name, value)`,
`object.__getattribute__(self, name)`; and `__init__` of Python's exceptions."""

import copyreg
import types
from typing import Any

from ....runtime.guards.guard import InstDict
from ... import catalogue
from ...capture.effects import SideEffect, constant
from ...capture.nested import concretize
from ...capture.trace import Recorder
from .. import attribute_ops, descriptors
from ..lookup import MISSING, on_class

_NAMES = ("__getattribute__", "__setattr__", "__delattr__", "__init__", "__init_subclass__")


def takes(function: Any) -> bool:
    """`type.__call__` of a class, or a slot of `object`, bound (`super().__setattr__`) or not
    (`object.__setattr__`)."""
    if isinstance(function, types.MethodWrapperType):
        if function.__name__ == "__call__" and isinstance(function.__self__, type):
            return True
        if function.__name__ == "__get__" and isinstance(function.__self__, types.FunctionType):
            return True
    elif isinstance(function, types.BuiltinMethodType) and function.__name__ == "__reduce_ex__":
        return _is_plain(function.__self__)
    elif not isinstance(function, types.WrapperDescriptorType):
        return False
    owner = function.__objclass__
    return (owner is object and function.__name__ in _NAMES) or (
        function.__name__ == "__init__" and issubclass(owner, BaseException)
    )


def call_slot(rec: Recorder, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if isinstance(function, types.MethodWrapperType) and function.__name__ == "__call__":
        return rec.rewriter.construct(rec, function.__self__, args, kwargs)
    if isinstance(function, types.MethodWrapperType) and function.__name__ == "__get__":
        return function(*args, **kwargs)
    if isinstance(function, types.BuiltinMethodType):
        return _reduce(rec, function.__self__, concretize(args))
    if isinstance(function, types.MethodWrapperType):
        args = (function.__self__, *args)
    if isinstance(args[0], BaseException) and function.__name__ == "__init__":
        return _initialise(rec, function, args, kwargs)
    if function.__name__ == "__getattribute__":
        return attribute_ops.plainly(rec, args[0], concretize(args[1]))
    if function.__name__ == "__setattr__":
        return _set(rec, args[0], concretize(args[1]), args[2])
    if function.__name__ == "__delattr__":
        return _delete(rec, args[0], concretize(args[1]))
    return getattr(object, function.__name__)(*args, **kwargs)


def _initialise(
    rec: Recorder, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    """An exception takes its arguments."""
    if rec.known.path_of(args[0]) is not None:
        rec.stop(catalogue.UNSUPPORTED, "an exception object from outside is constructed again")
    getattr(function.__objclass__, "__init__")(*args, **kwargs)  # noqa: B009


def _set(rec: Recorder, obj: Any, name: str, value: Any) -> None:
    if descriptors.changed(rec, obj, name, on_class(type(obj), name), "__set__", value):
        return
    outside = rec.known.touch(obj) is not None
    if outside:
        rec.before_change(obj)
    rec.known.before_store(obj)
    rec.once(object.__setattr__, (obj, name, value))
    if outside:
        rec.effects.append(SideEffect(object.__setattr__, (obj, constant(name), value)))
    rec.known.wrote(obj, name)


def _delete(rec: Recorder, obj: Any, name: str) -> None:
    if descriptors.changed(rec, obj, name, on_class(type(obj), name), "__delete__"):
        return
    outside = rec.known.touch(obj) is not None
    if outside:
        rec.before_change(obj)
    rec.known.before_store(obj)
    rec.once(object.__delattr__, (obj, name))
    if outside:
        rec.effects.append(SideEffect(object.__delattr__, (obj, constant(name))))
    rec.known.wrote(obj, name)


def _is_plain(obj: Any) -> bool:
    """Whether `object` alone says what there is to copy: all that the instance's `__dict__` has."""
    cls = type(obj)
    hooks = ("__reduce__", "__getstate__", "__getnewargs__", "__getnewargs_ex__")
    own = [on_class(cls, name) for name in hooks]
    base = [getattr(object, name, MISSING) for name in hooks]
    return own == base and bool(getattr(obj, "__dict__", None)) and not copyreg._slotnames(cls)  # type: ignore[attr-defined]


def _reduce(rec: Recorder, obj: Any, args: tuple[Any, ...]) -> Any:
    """What `copy.copy` makes a copy of: the attributes are read where it takes them from the
    dict."""
    path = rec.known.touch(obj)
    if path is not None:
        rec.known.register(vars(obj), InstDict(path))
    return obj.__reduce_ex__(*args)
