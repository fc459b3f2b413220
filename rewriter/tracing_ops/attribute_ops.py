"""Attribute loads and stores while recording: the lookup that Python does, with a guard on each
outside thing it depends on."""

import functools
import threading
import types
import warnings
from typing import Any

import torch

from ...runtime.guards.guard import ABSENT, Attr, HasKey, InstDict, Is, Item, Missing, Obj, Path
from ...runtime.programs.recipes import Apply, ConstRecipe, Input
from .. import catalogue
from ..capture import opaque_tensors
from ..capture.effects import SideEffect, constant, set_attributes
from ..capture.guarded_kinds import BY_IDENTITY, is_constant
from ..capture.numbers import scalars, traced_arrays
from ..capture.recording import may_be_made
from ..capture.trace import Recorder
from ..capture.values import is_opaque
from . import data_stores, descriptors, items
from .calls import custom_functions, distributed_tensors, gradients, host_calls, log_calls
from .descriptors import guard_class
from .lookup import (
    MISSING,
    can_change,
    guard_bases,
    guard_classes,
    guard_method,
    is_method_of_class,
    is_stable,
    on_class,
    own_attributes,
    python_getter,
    python_method,
)

_C_DESCRIPTORS = (
    property,
    types.FunctionType,
    classmethod,
    staticmethod,
    types.MemberDescriptorType,
    types.GetSetDescriptorType,
    types.BuiltinFunctionType,
    types.MethodDescriptorType,
    types.WrapperDescriptorType,
    type,
)
REPLACEABLE = ("torch", "torch.nn.functional", "torch.linalg", "torch.special", "torch.fft")
_SLOTS = (types.MemberDescriptorType, types.GetSetDescriptorType)


def load(rec: Recorder, obj: Any, name: str) -> Any:
    """`obj.name`, guarded. Raises what Python raises."""
    if isinstance(obj, torch.Tensor):
        return _of_tensor(rec, obj, name)
    if traced_arrays.is_traced(rec, obj):
        return traced_arrays.attribute(rec, obj, name)
    if type(obj) in scalars.TRACED:
        return getattr(scalars.concretize_scalar(obj), name)
    if isinstance(obj, types.ModuleType | type):
        return _of_namespace(rec, obj, name)
    if isinstance(obj, super):
        return _of_super(rec, obj, name)
    if type(obj) is types.MethodType and on_class(types.MethodType, name) is MISSING:
        return _of_function(rec, obj.__func__, name)
    plain = type(obj).__module__ == "builtins" and not hasattr(obj, "__dict__")
    if plain and type(obj) is not types.CellType:
        return rec.once(getattr, (obj, name))
    if rec.known.is_own(obj, name):
        return rec.once(getattr, (obj, name))
    if type(obj) in (threading.local, types.CellType):
        return _unlisted(rec, obj, name)
    if isinstance(obj, torch._ops.OpOverloadPacket):
        getattr(obj, name)  # which puts it there when it is first read
    hook = python_method(rec, obj, "__getattribute__")
    if hook is not None:
        return _hooked(rec, obj, name, hook)
    return _ordinary(rec, obj, name)


def _of_function(rec: Recorder, function: Any, name: str) -> Any:
    """What the function behind a bound method holds under a name."""
    if not rec.rewriter.made_in_call(rec, function):
        rec.known.register(function, Obj(function, getattr(function, "__qualname__", "?")))
    return load(rec, function, name)


def _unlisted(rec: Recorder, obj: threading.local | types.CellType, name: str) -> Any:
    """What stands in no `__dict__` of the object: each thread's own, or what a variable holds."""
    path = rec.known.touch(obj)
    try:
        value = rec.once(getattr, (obj, name))
    except (AttributeError, ValueError):  # of an empty cell
        rec.stop(catalogue.UNSUPPORTED, f"{name} of a {type(obj).__name__} is not there")
        raise
    return value if path is None else rec.known.loaded(value, Attr(path, name))


def _of_super(rec: Recorder, obj: Any, name: str) -> Any:
    """`super().name`: the function found in a base class is guarded there."""
    mro = obj.__self_class__.__mro__ if obj.__self_class__ is not None else ()
    after = mro[mro.index(obj.__thisclass__) + 1 :] if obj.__thisclass__ in mro else ()
    if after:
        guard_bases(rec, obj.__self_class__)
    for base in after:
        if is_stable(base):
            if name in base.__dict__:
                break
            continue
        path = Obj(base, base.__qualname__)
        if name in base.__dict__:
            return _through_super(rec, obj, name, base.__dict__[name], path)
        rec.known.guard(path, Missing(name))
    return rec.once(getattr, (obj, name))


def _through_super(rec: Recorder, obj: Any, name: str, found: Any, path: Path) -> Any:
    """What `super().name` gives where a base class of the user's holds `found`."""
    if python_getter(found) is not None:
        rec.stop(catalogue.UNSUPPORTED, f"super().{name}, which a descriptor computes")
        return rec.once(getattr, (obj, name))
    if isinstance(found, property) and found.fget and not isinstance(obj.__self__, type):
        rec.known.guard(Item(InstDict(path), name), Is(found))
        return rec.call(found.fget, (obj.__self__,), {})
    getter = MISSING if isinstance(found, _C_DESCRIPTORS) else on_class(type(found), "__get__")
    if getter is not MISSING:
        rec.stop(catalogue.UNSUPPORTED, f"super().{name}, which a descriptor computes")
    if isinstance(found, _C_DESCRIPTORS):
        rec.known.guard(Item(InstDict(path), name), Is(found))
        return rec.once(getattr, (obj, name))
    return rec.known.loaded(found, Item(InstDict(path), name))


def _of_tensor(rec: Recorder, obj: torch.Tensor, name: str) -> Any:
    """Tensors' own attributes pass by the mode; one that a user set on a tensor is guarded by its
    path."""
    attributes = obj.__dict__ if hasattr(obj, "__dict__") else {}
    path = rec.known.path_of(obj)
    if any(name in base.__dict__ and not is_stable(base) for base in type(obj).__mro__):
        return _ordinary(rec, obj, name)
    if name in gradients.ATTRIBUTES:
        return gradients.load(rec, obj, name)
    if distributed_tensors.has(obj, name):
        return distributed_tensors.load(rec, obj, name)
    if name == "_version":
        return host_calls.version(rec, obj)
    if name == "volatile" and name not in attributes:
        log_calls.call(rec, warnings.warn, (_VOLATILE,), {})
        return False
    if path is not None and name == "__dict__":
        return _namespace(rec, attributes, path)
    if path is not None and not rec.known.is_own(obj, name):
        if name in attributes:
            return rec.known.loaded(attributes[name], Item(InstDict(path), name))
        if not hasattr(type(obj), name):
            rec.known.guard(path, Missing(name))
    if not is_stable(type(obj)):
        guard_classes(rec, type(obj), name)
    if path is None and name in attributes:
        return _of_wrapper(rec, obj, name)
    return getattr(obj, name)


def _of_wrapper(rec: Recorder, obj: torch.Tensor, name: str) -> Any:
    """What a tensor holds that an operator gave: what its class's code put there was not seen. A
    tensor is read in the graph, anything else is compared at later calls."""
    held, flatten = obj.__dict__[name], getattr(obj, "__tensor_flatten__", None)
    if (
        flatten is None
        or rec.tracker.get(obj) is None
        or isinstance(held, type | types.FunctionType)
    ):
        return held
    if not isinstance(held, torch.Tensor):
        opaque_tensors.hold(rec, obj, name, held)
    elif rec.tracker.get(held) is None and flatten and name in flatten()[0]:
        return custom_functions.as_node(rec, getattr, (obj, name), {})
    return held


_VOLATILE = "volatile was removed (Variable.volatile is always False)"


def _of_namespace(rec: Recorder, obj: Any, name: str) -> Any:
    if isinstance(obj, type) and _has_python_lookup(type(obj), name):
        rec.stop(catalogue.UNSUPPORTED, f"{obj.__name__}.{name}, which the metaclass computes")
    hook = _lazy(obj, name)
    if hook is not None:
        return _of_lazy_module(rec, obj, name, hook)
    try:
        value = rec.once(getattr, (obj, name))
    except AttributeError:
        _guard_absence(rec, obj, name)
        raise
    if isinstance(value, list | dict | set) and may_be_made(rec, obj):
        rec.stop(catalogue.UNSUPPORTED, f"{name} of a class that the call makes")
    if name == "__dict__" and not rec.rewriter.made_in_call(rec, obj):
        rec.known.register(value, InstDict(Obj(obj, getattr(obj, "__name__", "?"))))
        return value
    if (
        rec.known.is_own(obj, name)
        or (is_stable(obj) and (name.startswith("__") or _is_fixed(value, obj)))
        or rec.rewriter.made_in_call(rec, obj)
        or _is_bound_anew(obj, name, value)
    ):
        _guard_function(rec, obj, name, value)
        return value
    path = Attr(Obj(obj, getattr(obj, "__name__", "?")), name)
    if isinstance(obj, type) and is_method_of_class(obj, name, value):
        return guard_method(rec, value, path)
    return rec.known.loaded(value, path)


def _lazy(obj: Any, name: str) -> Any:
    """The function in Python that a module of the user's asks for what it does not hold
    (https://peps.python.org/pep-0562/)."""
    if not isinstance(obj, types.ModuleType) or name in vars(obj) or is_stable(obj):
        return None
    if on_class(type(obj), name) is not MISSING:
        return None
    hook = vars(obj).get("__getattr__")
    return hook if isinstance(hook, types.FunctionType) else None


def _of_lazy_module(rec: Recorder, module: Any, name: str, hook: Any) -> Any:
    path = Obj(module, module.__name__)
    if not rec.known.is_own(module, name):
        rec.known.guard(path, Missing(name))
    if not rec.known.is_own(module, "__getattr__"):
        rec.known.loaded(hook, Item(InstDict(path), "__getattr__"))
    return rec.call(hook, (name,), {})


def _guard_function(rec: Recorder, obj: Any, name: str, value: Any) -> None:
    """A function of torch's own modules may be replaced by another one later."""
    if not isinstance(value, types.FunctionType | types.BuiltinFunctionType):
        return
    if isinstance(obj, types.ModuleType) and obj.__name__ in REPLACEABLE:
        names = vars(obj)
        if names.get(name) is value and not rec.known.is_own(obj, name):
            rec.known.guard(Item(Obj(names, obj.__name__), name), Is(value))


def _guard_absence(rec: Recorder, obj: Any, name: str) -> None:
    """No module or class has the name that was asked for."""
    if rec.rewriter.made_in_call(rec, obj):
        return
    holders = [obj] if isinstance(obj, types.ModuleType) else [*obj.__mro__, *type(obj).__mro__]
    for holder in holders:
        if not rec.known.is_own(holder, name) and can_change(holder):
            rec.known.guard(Obj(holder, getattr(holder, "__name__", "?")), Missing(name))


def _is_bound_anew(obj: Any, name: str, value: Any) -> bool:
    """Whether each read of a special method of a class makes another object for the same
    method."""
    return name.startswith("__") and not is_constant(value) and getattr(obj, name) is not value


def _has_python_lookup(meta: type, name: str) -> bool:
    """Whether a metaclass in Python has a say in what an attribute of its classes is."""
    if meta is type or is_stable(meta):
        return False
    hooks = (
        on_class(meta, "__getattr__"),
        on_class(meta, "__getattribute__"),
        on_class(meta, name),
    )
    return any(isinstance(hook, types.FunctionType | property) for hook in hooks)


def _is_fixed(value: Any, owner: Any) -> bool:
    """What a library's namespace holds for good: functions, classes, modules, constants; not
    `os.environ`, nor the flags of `torch.backends`."""
    if callable(value) or isinstance(value, types.ModuleType):
        return True
    return is_constant(value) and not isinstance(owner, torch.backends.PropModule)


def _hooked(rec: Recorder, obj: Any, name: str, hook: Any) -> Any:
    """A class with its own `__getattribute__`: it runs rewritten, and `__getattr__` after it as in
    Python."""
    try:
        return rec.call(hook, (obj, name), {})
    except AttributeError:
        fallback = python_method(rec, obj, "__getattr__")
        if fallback is None:
            raise
        return rec.call(fallback, (obj, name), {})


def _ordinary(rec: Recorder, obj: Any, name: str, fallback: bool = True) -> Any:
    path = rec.known.touch(obj)
    found = on_class(type(obj), name)
    getter = python_getter(found)
    if getter is not None:
        return descriptors.given(rec, obj, name, found, getter, path)
    if isinstance(found, property):
        return descriptors.of_property(rec, obj, name, found, path)
    attributes = own_attributes(obj)
    if name == "__dict__" and hasattr(obj, "__dict__"):
        return _namespace(rec, attributes, path)
    if name in attributes and not isinstance(found, _SLOTS):
        value = attributes[name]
        if path is None:
            return value
        if found is MISSING:  # a property there would come before it
            guard_classes(rec, type(obj), name)
        return rec.known.loaded(value, Item(InstDict(path), name))
    if found is MISSING:
        return _fallback(rec, obj, name, path) if fallback else _absent(rec, obj, name, path)
    if isinstance(found, functools.cached_property):
        return _cached(rec, obj, name, found)
    return _from_class(rec, obj, name, found, path)


def _namespace(rec: Recorder, attributes: dict[str, Any], path: Path | None) -> dict[str, Any]:
    if path is not None:
        rec.known.register(attributes, InstDict(path))
    return attributes


def plainly(rec: Recorder, obj: Any, name: str) -> Any:
    """`object.__getattribute__(obj, name)`."""
    if isinstance(obj, torch.Tensor | type | types.ModuleType) or rec.known.is_own(obj, name):
        return object.__getattribute__(obj, name)
    try:
        return _ordinary(rec, obj, name, fallback=False)
    except AttributeError:
        return object.__getattribute__(obj, name)


def _cached(rec: Recorder, obj: Any, name: str, found: Any) -> Any:
    path = rec.known.touch(obj)
    if path is not None:
        rec.known.guard(path, Missing(name))
        guard_class(rec, path, name, found)
    value = rec.call(found.func, (obj,), {})
    store(rec, obj, name, value)
    return value


def _from_class(rec: Recorder, obj: Any, name: str, found: Any, path: Path | None) -> Any:
    try:
        value = rec.once(getattr, (obj, name))
    except AttributeError:
        if path is not None and isinstance(found, _SLOTS):  # a slot that holds nothing
            held = Apply(_holds, (Input(rec.input_index(path)), ConstRecipe(name)))
            rec.outcomes.append((0, held, False))
        raise
    if isinstance(obj, types.FunctionType) and path is not None and isinstance(found, _SLOTS):
        return value if is_stable(obj) else rec.known.loaded(value, Attr(path, name))
    if path is None or isinstance(path, Obj):
        return _of_made(rec, obj, name, value)
    if isinstance(found, _SLOTS):
        return value if name.startswith("__") else rec.known.loaded(value, Attr(path, name))
    if name.startswith("__") and name.endswith("__") and not is_constant(found):
        return value
    if hasattr(obj, "__dict__"):
        rec.known.guard(path, Missing(name))
    guard_class(rec, path, name, found)
    if (
        isinstance(found, types.FunctionType | classmethod | staticmethod)
        or getattr(value, "__self__", MISSING) is obj
    ):
        return value
    if value is found:  # the guard on the class says which object it is
        fixed = Obj(value, f"{path.source}.{name}")
        return value if _frozen(value) else rec.known.loaded(value, fixed)
    return rec.known.loaded(value, Attr(path, name))


def _of_made(rec: Recorder, obj: Any, name: str, value: Any) -> Any:
    """What the class of an object has that the call made."""
    if isinstance(obj, BY_IDENTITY) or (name.startswith("__") and name.endswith("__")):
        return value
    path = guard_classes(rec, type(obj), name)
    found = on_class(type(obj), name)
    return value if path is None or value is not found else rec.known.loaded(value, path)


def _holds(obj: Any, name: str) -> bool:
    return hasattr(obj, name)


def _frozen(value: Any) -> bool:
    return isinstance(value, int | float | str | bytes | type(None) | type | types.FunctionType)


def _fallback(rec: Recorder, obj: Any, name: str, path: Path | None) -> Any:
    """`__getattr__`: nn.Module's tables are guarded where they hold the name, another class's
    method is run."""
    hook = python_method(rec, obj, "__getattr__")
    if hook is not None and hook is not torch.nn.Module.__getattr__:
        if path is not None and hasattr(obj, "__dict__"):
            rec.known.guard(path, Missing(name))
        guard_class(rec, path, name, ABSENT)
        return rec.call(hook, (obj, name), {})
    for group in _groups(obj):
        table = obj.__dict__[group]
        if name in table:
            if path is None or rec.known.is_own(obj, name):
                return table[name]
            guard_classes(rec, type(obj), name)
            rec.known.guard(path, Missing(name))  # the module's own would come before the table's
            return rec.known.loaded(table[name], Item(Item(InstDict(path), group), name))
    for group in _groups(obj) if path is not None else ():
        rec.known.guard(Item(InstDict(path), group), HasKey(name, False))
    if path is not None and hasattr(obj, "__dict__"):
        rec.known.guard(path, Missing(name))
    guard_class(rec, path, name, ABSENT)
    hook = on_class(type(obj), "__getattr__")
    if hook is dict.get or hook is on_class(type(obj), "__getitem__") is dict.__getitem__:
        guard_class(rec, path, "__getattr__", hook)  # a dict whose attributes are its items
        if hook is dict.get:
            return rec.call(hook.__get__(obj), (name,), {})
        return items.load(rec, obj, name)
    return _absent(rec, obj, name, path)


def _groups(obj: Any) -> list[str]:
    """The tables of a module."""
    groups = ("_parameters", "_buffers", "_modules")
    return [g for g in groups if isinstance(obj, torch.nn.Module) and g in obj.__dict__]


def _absent(rec: Recorder, obj: Any, name: str, path: Path | None) -> Any:
    if path is not None and hasattr(obj, "__dict__"):
        rec.known.guard(path, Missing(name))
    return object.__getattribute__(obj, name)


def exists(rec: Recorder, obj: Any, name: str) -> bool:
    """`hasattr`, guarded."""
    try:
        load(rec, obj, name)
    except AttributeError:
        return False
    return True


def store(rec: Recorder, obj: Any, name: str, value: Any) -> None:
    """`obj.name = value`: done now, and again at every later call if the object is from outside."""
    if traced_arrays.entry(rec, obj) is not None:
        rec.stop(catalogue.UNSUPPORTED, f"a store to {name} of an array made of a tensor")
    if isinstance(obj, torch.Tensor):
        if name in data_stores.STORES and data_stores.STORES[name](rec, obj, value):
            return
        if name == "grad":
            return gradients.store(rec, obj, value)
        with torch._C.DisableTorchFunctionSubclass():
            opaque = is_opaque(obj)
        if opaque:  # whose class may read it for each operator
            rec.stop(catalogue.UNSUPPORTED, f"a store to {name} of a {type(obj).__name__}")
        if hasattr(type(obj), name) or rec.known.path_of(obj) is None:
            return _set_on_made_tensor(rec, obj, name, value)
    setter = python_method(rec, obj, "__setattr__")
    if setter is not None and setter is not torch.nn.Module.__setattr__:
        rec.call(setter, (obj, name, value), {})
        return
    prop = on_class(type(obj), name)
    if descriptors.changed(rec, obj, name, prop, "__set__", value):
        return
    outside = _is_outside(rec, obj)
    if outside and name in ("__dict__", "__class__"):
        rec.stop(catalogue.UNSUPPORTED, f"a store to {name}")
    if outside:
        rec.before_change(obj)
    elif prop is MISSING:
        guard_classes(rec, type(obj), name)
    rec.known.before_store(obj)
    rec.once(setattr, (obj, name, value))
    if outside:
        rec.effects.append(SideEffect(setattr, (obj, constant(name), value)))
    rec.known.wrote(obj, name)


def _set_on_made_tensor(rec: Recorder, obj: torch.Tensor, name: str, value: Any) -> None:
    """An attribute of a tensor that the call made, and that its class does not know."""
    if hasattr(type(obj), name) or rec.tracker.get(obj) is None:
        rec.stop(catalogue.UNSUPPORTED, f"a store to attribute {name} of a tensor")
    setattr(obj, name, value)
    set_attributes(rec.dressed, obj, name, value)


def _is_outside(rec: Recorder, obj: Any) -> bool:
    if rec.known.touch(obj) is not None:
        return True
    return isinstance(obj, type | types.ModuleType) and not rec.rewriter.made_in_call(rec, obj)


def delete(rec: Recorder, obj: Any, name: str) -> None:
    deleter, prop = python_method(rec, obj, "__delattr__"), on_class(type(obj), name)
    if isinstance(obj, torch.Tensor):
        rec.stop(catalogue.UNSUPPORTED, f"`del` of attribute {name}")
    elif deleter not in (None, torch.nn.Module.__delattr__):
        return rec.call(deleter, (obj, name), {})  # type: ignore[no-any-return]
    elif descriptors.changed(rec, obj, name, prop, "__delete__"):
        return None
    outside = _is_outside(rec, obj)
    if outside:
        rec.before_change(obj)
    rec.known.before_store(obj)
    rec.once(delattr, (obj, name))
    if outside:
        rec.effects.append(SideEffect(delattr, (obj, constant(name))))
    rec.known.wrote(obj, name)
