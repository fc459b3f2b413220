"""Finding what Python would run: special methods written in Python, class attributes, without
running anything."""

import dataclasses
import functools
import types
from collections.abc import Callable
from typing import Any

import torch
from torch.nn.modules import module as torch_module

from ...runtime.guards.guard import (
    ABSENT,
    Attr,
    ClassAttr,
    Equals,
    InstDict,
    Is,
    Item,
    Missing,
    Obj,
    Path,
    TypeIs,
)
from ..source.live_source import TORCHS_COMPILER, runs_torchs_compiler

MISSING: Any = object()
PLAIN_TYPES = frozenset(
    {
        int,
        float,
        bool,
        str,
        bytes,
        complex,
        type(None),
        list,
        tuple,
        dict,
        set,
        frozenset,
        range,
        slice,
        type(Ellipsis),
        torch.Tensor,
        torch.nn.Parameter,
        torch.Size,
        torch.dtype,
        torch.device,
        types.FunctionType,
        type,
        types.ModuleType,
    }
)


_HOOKS = ("forward", "forward_pre", "backward", "backward_pre")


def keeps_eager(function: Any, replaced: Callable[[Any], Any] = lambda _: None) -> str:
    """The attribute under which what `compile` made, ours or `torch.compile`, keeps the function or
    module that it was given; "" for others, and where torch's compiler alone can take it: no other
    is run for it (`replaced`). (`functools.wraps` copies such attributes.)"""
    if not isinstance(function, types.FunctionType | torch.nn.Module):
        return ""
    if "_dynfix_original" in own_attributes(function):
        return "_dynfix_original"
    if isinstance(function, torch.nn.Module):
        wrapper = type(function).__module__ == "torch._dynamo.eval_frame"
        hooked = any(vars(function).get(f"_{name}_hooks") for name in _HOOKS)
        return "_orig_mod" if wrapper and not hooked else ""
    own, kept = vars(function), "_torchdynamo_orig_callable"
    made = kept in own and function.__code__.co_filename.endswith(TORCHS_COMPILER)
    made = made and not own.get("_torchdynamo_disable")
    return kept if made and (not runs_torchs_compiler(own[kept]) or replaced(own[kept])) else ""


def on_class(cls: type, name: str) -> Any:
    """What `name` is bound to in the MRO of `cls`, unbound, or MISSING."""
    for base in cls.__mro__:
        if name in base.__dict__:
            return base.__dict__[name]
    return MISSING


def own_attributes(obj: Any) -> dict[str, Any]:
    """The object's own; a bound method answers with those of its function."""
    try:
        return object.__getattribute__(obj, "__dict__")  # type: ignore[no-any-return]
    except AttributeError:
        return {}


@dataclasses.dataclass(frozen=True)
class SpecialMethod:
    """What a class has under the name of a special method, where that is no function: a descriptor
    that Python binds to the object, or a callable. Called with the object, as a function would
    be."""

    descriptor: Any

    def __call__(self, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        return self.bound(obj)(*args, **kwargs)

    def bound(self, obj: Any) -> Any:
        """What Python calls."""
        getter = on_class(type(self.descriptor), "__get__")
        return self.descriptor if getter is MISSING else getter(self.descriptor, obj, type(obj))


_BINDING = (
    staticmethod,
    classmethod,
    property,
    functools.partial,
    functools.partialmethod,
    functools.singledispatchmethod,
    functools._lru_cache_wrapper,
    types.MethodType,
)


def special_method(found: Any) -> Any:
    """A function in Python that a class has under the name of a special method, or a SpecialMethod;
    None for what C has, and torch."""
    if isinstance(found, types.FunctionType):
        return None if is_torch_internal(found) else found
    if isinstance(found, _BINDING):
        inner = getattr(found, "__func__", found)
        return None if isinstance(inner, _IN_C) else SpecialMethod(found)
    asked = (on_class(type(found), name) for name in ("__get__", "__call__"))
    in_python = any(isinstance(each, types.FunctionType) for each in asked)
    return SpecialMethod(found) if in_python and found is not MISSING else None


_IN_C = (types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType, type)


def python_method(rec: Any, obj: Any, name: str) -> Any:
    """The Python function (or SpecialMethod) behind a special method of `obj`, or None if there is
    none or it is written in C. With a recorder, what the class of an object from outside has there
    is guarded."""
    if type(obj) in PLAIN_TYPES:
        return None
    found = on_class(type(obj), name)
    path = (
        None
        if rec is None or type(obj).__module__.partition(".")[0] in ("torch", "builtins")
        else rec.known.path_of(obj)
    )
    method = special_method(found)
    if path is not None and not isinstance(path, Obj):
        rec.known.guard(path, ClassAttr(name, ABSENT if found is MISSING else found))
    elif rec is not None and (method is not None or isinstance(found, types.FunctionType)):
        guard_classes(rec, type(obj), name)
    return method


def python_getter(found: Any) -> Any:
    """The `__get__` of a descriptor, if it is Python of the user's."""
    getter = on_class(type(found), "__get__")
    return getter if isinstance(getter, types.FunctionType) and not is_stable(getter) else None


def guard_classes(rec: Any, cls: type, name: str) -> Path | None:
    """What `cls` has under `name` is relied upon where no object from outside has that class:
    guarded on the classes themselves. Where the value lies, if somebody could rebind it there."""
    guard_bases(rec, cls)
    for base in cls.__mro__:
        path = Obj(base, base.__qualname__)
        free = can_change(base) and not is_stable(base) and not _is_made(rec, base)
        if name in base.__dict__:
            value = base.__dict__[name]
            if not free or rec.known.is_own(base, name):
                return None
            if isinstance(value, _DESCRIPTORS):
                rec.known.guard(Item(InstDict(path), name), Is(value))
            return Item(InstDict(path), name)  # type: ignore[no-any-return]
        if free:
            rec.known.guard(path, Missing(name))
    return None


def is_method_of_class(cls: type, name: str, value: Any) -> bool:
    """Whether `value`, which was read there, is bound to the class; methods of C that each read
    binds anew alone (`Function.apply` is one from torch 2.14 on)."""
    if isinstance(value, types.BuiltinMethodType):
        return getattr(cls, name) is not value
    return isinstance(value, types.MethodType)


def guard_method(rec: Any, method: Any, path: Path) -> Any:
    """Another object at `path` will do for the method if it is bound to the same function and
    object. Those of C have no function to compare, but a name."""
    if isinstance(method, types.MethodType):
        rec.known.guard(Attr(path, "__func__"), Is(method.__func__))
    else:
        rec.known.guard(path, TypeIs(types.BuiltinMethodType))
        rec.known.guard(Attr(path, "__name__"), Equals(method.__name__))
    rec.known.guard(Attr(path, "__self__"), Is(method.__self__))
    return method


def guard_bases(rec: Any, cls: type) -> None:
    """Which classes `cls` is made of is relied upon: `__bases__` can be assigned."""
    if can_change(cls) and not is_stable(cls) and not _is_made(rec, cls):
        rec.known.guard(Attr(Obj(cls, cls.__qualname__), "__mro__"), Is(cls.__mro__))


_DESCRIPTORS = (types.FunctionType, classmethod, staticmethod, property)


def _is_made(rec: Any, cls: type) -> bool:
    """Whether the call made the class; one without a method does not matter."""
    local = "<locals>" in cls.__qualname__ and rec.known.path_of(cls) is None
    return local and any(rec.rewriter.made_in_call(rec, each) for each in vars(cls).values())


_HEAP_TYPE = 1 << 9  # Py_TPFLAGS_HEAPTYPE


def can_change(holder: types.ModuleType | type) -> bool:
    """Whether attributes may be set on a module or class: not on one that C code laid out."""
    return isinstance(holder, types.ModuleType) or bool(holder.__flags__ & _HEAP_TYPE)


DIRECT = (
    "torch.nn.functional",
    "torch.functional",
    "torch._tensor",
    "torch.overrides",
    "torch._C",
    "torch._ops",
    "torch._jit_internal",
    "torch.jit",
    "torch.cuda",
    "torch.autograd",
    "torch.special",
    "torch.fft",
    "torch.linalg",
    "torch.random",
    "torch._utils",
    "torch.serialization",
    "torch.storage",
    "torch.types",
    "torch.version",
    "torch.library",
    "torch._library",
    "torch.utils.dlpack",
    "torch._prims_common",
    "torch._refs",
    "torch._decomp",
    "torch.return_types",
    "torch.masked",
    "torch.sparse",
    "torch.nn.parameter",
    "torch.nn.grad",
    "torch._higher_order_ops",
    "torch._functorch",
    "torch.func",
    "torch.fx",
    "torch.distributed",
    "torch._vmap_internals",
    "torch._meta_registrations",
    "torch._subclasses",
    "torch._numpy",
    "torch._lowrank",
    "torch._dynamo.mutation_guard",
)


# Python that is rewritten, as the user's own: it maps functions of the user's over tensors, or it
# is the hooks by which a module becomes parallel.
_REWRITTEN = frozenset(
    {
        *(f"torch._higher_order_ops.{n}" for n in ("associative_scan", "flex_attention", "map")),
        "torch._higher_order_ops.scan",
        "torch.distributed.tensor._api",
        "torch.distributed.tensor.parallel.style",
    }
)


def module_name(fn: types.FunctionType) -> str:
    """The module whose globals the function uses: wrappers made by functools.wraps carry another
    one's `__module__`."""
    return str(fn.__globals__.get("__name__", ""))


def is_torch_internal(fn: types.FunctionType) -> bool:
    """Whether torch's own Python code is called as it is: its tensor work dispatches through the
    recorder's mode."""
    return is_internal(module_name(fn))


@functools.lru_cache(maxsize=1024)
def is_internal(name: str) -> bool:
    """The same of the module `name`."""
    return name == "torch" or (
        name.startswith("torch.")
        and name not in _REWRITTEN
        and any(name == part or name.startswith(part + ".") for part in DIRECT)
    )


def is_stable(obj: Any) -> bool:
    """torch's and the standard library's own namespaces of functions are taken as they are: nobody
    rebinds `torch.relu` between calls."""
    name = (
        obj.__name__
        if isinstance(obj, types.ModuleType)
        else module_name(obj)
        if isinstance(obj, types.FunctionType)
        else obj.__module__
    )
    return str(name).partition(".")[0] in (
        "torch",
        "math",
        "operator",
        "builtins",
        "typing",
        "functools",
        "itertools",
        "collections",
        "contextlib",
        "abc",
        "dataclasses",
        "enum",
        "os",
        "re",
        "copy",
        "inspect",
    )


def is_module_call(function: Any) -> bool:
    """Whether it is nn.Module's own `__call__` or `_call_impl`, unbound, as torch has them: scripts
    put others in their places."""
    return (
        isinstance(function, types.FunctionType)
        and function.__globals__ is vars(torch_module)
        and function.__name__ in ("_call_impl", "_wrapped_call_impl")
    )


def is_distributed(module: torch.nn.Module) -> bool:
    """Whether torch's data parallelism stands around the module, or has changed its class: its own
    calls talk to other devices and processes, and run as they are."""
    return any(is_of_wrapper(base) for base in type(module).__mro__)


def is_of_wrapper(defined: type | types.FunctionType) -> bool:
    """Whether a class or a function is part of torch's data parallelism."""
    return str(defined.__module__).startswith(("torch.nn.parallel.", "torch.distributed."))


_BOUND = (types.BuiltinMethodType, types.MethodType, types.MethodWrapperType)


def owner_of(function: Any) -> Any:
    """The object that a method is bound to. Other callables may answer to `__self__` with anything:
    a class by the `__getattr__` of its metaclass."""
    return function.__self__ if isinstance(function, _BOUND) else None
