"""Functions of torch by name, and back: what a stored program may call."""

import contextlib
import functools
import importlib
import operator
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

NAMESPACES = frozenset(("aten", "prims", "dynfix"))  # of operators that no user defines
_registered: dict[str, Callable[..., Any]] = {}  # functions of this package that programs call


class Unnamed(Exception):
    """Something has no name under which another process would find it."""


def register(*functions: Callable[..., Any]) -> None:
    """Functions of this package that programs may call."""
    for function in functions:
        _registered[f"{function.__module__}:{function.__qualname__}"] = function


# Arithmetic on sizes.
_SIZES = "add sub mul truediv floordiv mod pow neg pos abs eq ne lt le gt ge and_ or_".split()
register(*(getattr(operator, name) for name in _SIZES))
register(*(getattr(torch, f"sym_{name}") for name in ("float", "int", "max", "min", "not")))


def _places() -> Iterator[tuple[str, Any]]:
    """Where torch's functions without a module of their own are found."""
    yield "torch", torch
    for part in ("_nn", "_fft", "_linalg", "_special", "_sparse", "_nested"):
        yield f"torch._C.{part}", getattr(torch._C, part, None)
    yield "torch._VF", torch._C._VariableFunctions


@functools.cache
def _builtins() -> dict[int, tuple[Any, str]]:
    """Functions in C, by identity. What is kept here keeps the identities."""
    found: dict[int, tuple[Any, str]] = {}
    for place, module in _places():
        for name in dir(module):
            value = getattr(module, name)
            if isinstance(value, types.BuiltinFunctionType):
                found.setdefault(id(value), (value, f"{place}:{name}"))
    return found


@functools.cache
def _by_builtin_name() -> dict[str, Any]:
    return {name: value for value, name in _builtins().values()}


def operator_name(target: torch._ops.OpOverload) -> str:
    """`aten::add.Tensor`. Raises Unnamed for an operator that torch does not define."""
    if target.namespace not in NAMESPACES:
        raise Unnamed(f"{target} is an operator of the user's")
    return str(target.name())  # type: ignore[no-untyped-call]


def callable_name(target: Callable[..., Any]) -> str:
    """A name for what a step calls. Raises Unnamed."""
    if isinstance(target, torch._ops.OpOverload):
        return operator_name(target)
    found = _builtins().get(id(target))
    if found is not None and found[0] is target:
        return found[1]
    name = f"{getattr(target, '__module__', '')}:{getattr(target, '__qualname__', '')}"
    if _registered.get(name) is not target:
        raise Unnamed(f"{target} has no name")
    return name


def by_name(name: str) -> Callable[..., Any]:
    """What `callable_name` named. Raises Unnamed for anything else."""
    found = _registered.get(name) or _by_builtin_name().get(name)
    if found is None and "::" in name:
        found = _operator(name)
    if found is None:
        raise Unnamed(f"there is no function {name}")
    return found


def _operator(name: str) -> Any:
    namespace, _, rest = name.partition("::")
    packet, _, overload = rest.partition(".")
    if namespace not in NAMESPACES:
        return None
    found = getattr(getattr(torch.ops, namespace), packet, None)
    return getattr(found, overload or "default", None)


_MODULES = ("torch", "math", "operator", "_operator", "builtins", "dynfix")


def text_of(target: Any) -> str:
    """What tells functions in a recorded graph apart, between processes. Raises Unnamed for
    functions of the user's, whose text is not known."""
    if isinstance(target, torch._ops.OpOverload):
        return operator_name(target)
    if isinstance(target, torch._ops.OpOverloadPacket):
        return f"packet {operator_name(getattr(target, target.overloads()[0]))}"  # type: ignore[no-untyped-call]
    found = _builtins().get(id(target))
    if found is not None and found[0] is target:
        return found[1]
    if isinstance(target, types.MethodWrapperType):  # Tensor.shape.__get__
        return f"{text_of(target.__self__)}.{target.__name__}"
    if isinstance(target, _DESCRIPTORS):
        owner = target.__objclass__
        if owner.__module__.partition(".")[0] in ("torch", "builtins"):
            return f"{owner.__module__}:{owner.__qualname__}.{target.__name__}"
    return _found_again(target)


def by_text(text: str) -> Any:
    """What `text_of` gave this text for, in another process of this installation. Raises
    Unnamed."""
    found = _by_builtin_name().get(text)
    if found is None and text.startswith("packet "):
        operator_found = _operator(text.removeprefix("packet "))
        found = getattr(operator_found, "overloadpacket", None)
    elif found is None and "::" in text:
        found = _operator(text)
    elif found is None:
        module, _, name = text.partition(":")
        if module.partition(".")[0] in _MODULES:
            with contextlib.suppress(AttributeError, ImportError):
                found = operator.attrgetter(name)(importlib.import_module(module))
    if found is None or text_of(found) != text:
        raise Unnamed(f"there is no function {text}")
    return found


_DESCRIPTORS = (
    *(types.MethodDescriptorType, types.WrapperDescriptorType),
    *(types.GetSetDescriptorType, types.MemberDescriptorType),
)
_FOLDERS = tuple(str(Path(place).parent) for place in (torch.__file__, Path(__file__).parents[1]))


def _found_again(target: Any) -> str:
    """`module:qualified name` of what lies there, and is what this installation put there."""
    module = getattr(target, "__module__", None) or ""
    name = getattr(target, "__qualname__", "")
    if "<" in name:  # made by another function, as max_pool2d: under its own name in the module
        name = getattr(target, "__name__", "")
    code = getattr(target, "__code__", None)
    ours = code is None or code.co_filename.startswith(_FOLDERS)
    if ours and module.partition(".")[0] in _MODULES and name and "<" not in name:
        try:
            found = operator.attrgetter(name)(sys.modules[module])
        except (AttributeError, KeyError):
            found = None
        if found is target:
            return f"{module}:{name}"
    raise Unnamed(f"{target} is a function of the user's")
