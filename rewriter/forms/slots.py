"""Special methods of `object` called by name while recording: `super().__setattr__(name, value)`,
`object.__getattribute__(self, name)`."""

import types
from typing import Any

from ..capture.effects import Effect, constant
from ..capture.nested import settle_in
from ..capture.trace import Recorder
from . import attribute_ops

_NAMES = ("__getattribute__", "__setattr__", "__delattr__", "__init__", "__init_subclass__")


def takes(function: Any) -> bool:
    """`type.__call__` of a class, or a slot of `object`, bound (`super().__setattr__`) or not
    (`object.__setattr__`)."""
    if isinstance(function, types.MethodWrapperType):
        if function.__name__ == "__call__" and isinstance(function.__self__, type):
            return True
        return function.__name__ in _NAMES and function.__objclass__ is object  # type: ignore[attr-defined]
    return (
        isinstance(function, types.WrapperDescriptorType)
        and function.__objclass__ is object
        and function.__name__ in _NAMES
    )


def call_slot(rec: Recorder, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if isinstance(function, types.MethodWrapperType) and function.__name__ == "__call__":
        return rec.rewriter.construct(rec, function.__self__, args, kwargs)
    if isinstance(function, types.MethodWrapperType):
        args = (function.__self__, *args)
    if function.__name__ == "__getattribute__":
        return attribute_ops.plainly(rec, args[0], settle_in(args[1]))
    if function.__name__ == "__setattr__":
        return _set(rec, args[0], settle_in(args[1]), args[2])
    return getattr(object, function.__name__)(*args, **kwargs)


def _set(rec: Recorder, obj: Any, name: str, value: Any) -> None:
    rec.known.before_store(obj)
    object.__setattr__(obj, name, value)
    if rec.known.touch(obj) is not None:
        rec.effects.append(Effect(object.__setattr__, (obj, constant(name), value)))
    rec.known.wrote(obj, name)
