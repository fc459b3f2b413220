"""Attributes that a descriptor computes, stores or deletes, while recording: its Python runs
rewritten, and what the class has is guarded (https://docs.python.org/3/howto/descriptor.html)."""

from typing import Any

from ...runtime.guards.guard import ClassAttr, InstDict, Item, Missing, Obj, Path
from ..capture.trace import Recorder
from .lookup import MISSING, guard_classes, on_class, special_method


def of_property(rec: Recorder, obj: Any, name: str, found: property, path: Path | None) -> Any:
    if path is None or isinstance(path, Obj):
        guard_classes(rec, type(obj), name)
    guard_class(rec, path, name, found)
    if found.fget is None:
        return rec.once(getattr, (obj, name))
    return rec.call(found.fget, (obj,), {})


def given(rec: Recorder, obj: Any, name: str, found: Any, getter: Any, path: Path | None) -> Any:
    """A descriptor whose `__get__` is Python; one that neither stores nor deletes gives way to the
    instance's own attribute."""
    guard_class(rec, path, name, found)
    for special in ("__get__", "__set__"):
        guard_classes(rec, type(found), special)
    rec.known.register(found, Obj(found, f"{type(obj).__qualname__}.{name}"))
    attributes = object.__getattribute__(obj, "__dict__") if hasattr(obj, "__dict__") else {}
    specials = (on_class(type(found), special) for special in ("__set__", "__delete__"))
    if name in attributes and all(each is MISSING for each in specials):
        return (
            attributes[name]
            if path is None
            else rec.known.loaded(attributes[name], Item(InstDict(path), name))
        )
    if path is not None and hasattr(obj, "__dict__"):
        rec.known.guard(path, Missing(name))
    return rec.call(getter, (found, obj, type(obj)), {})


def changed(rec: Recorder, obj: Any, name: str, found: Any, special: str, *value: Any) -> bool:
    """Whether a descriptor in Python, or a property, stored or deleted the attribute: `found`, what
    the class has under its name."""
    method = special_method(on_class(type(found), special))
    if method is not None:
        rec.known.register(found, Obj(found, f"{type(obj).__qualname__}.{name}"))
        rec.call(method, (found, obj, *value), {})
        return True
    if not isinstance(found, property):
        return False
    function = found.fset if special == "__set__" else found.fdel
    if function is not None:
        rec.call(function, (obj, *value), {})
    return function is not None


def guard_class(rec: Recorder, path: Path | None, name: str, found: Any) -> None:
    if path is not None and not isinstance(path, Obj):
        rec.known.guard(path, ClassAttr(name, found))
