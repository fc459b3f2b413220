"""Values of programs as what JSON holds, and back. Nothing that is loaded can run: classes and
functions are found by name in tables of ours, expressions are checked."""

import ast
import base64
import ctypes
import dataclasses
from collections.abc import Callable
from typing import Any

import torch

from ..programs.arena import ArenaView
from ..programs.program import (
    Alloc,
    Arena,
    Define,
    Expression,
    Extern,
    Free,
    InArena,
    KernelStep,
    Name,
    Return,
    View,
)
from .named_functions import by_name, callable_name

LARGEST = 1 << 24  # bytes of all constants of a program


class Unstorable(Exception):
    """A value has no form on disk."""


class Damaged(Exception):
    """What was read is no program."""


_CLASSES: dict[str, Any] = {
    cls.__name__: cls
    for cls in (
        *(Alloc, Arena, ArenaView, Define, Extern, Free),
        *(InArena, KernelStep, Name, Return, View),
    )
}
_TORCH = (torch.dtype, torch.layout, torch.memory_format)
_SEQUENCES: dict[str, Any] = {"list": list, "tuple": tuple, "size": torch.Size, "set": set}


# Fields that stand in a program's source as they are.
_NAMES = ("name", "names", "reuses", "results")
_NUMBERS = ("offset", "size")


class Encoder:
    """To plain data. `launch`: describes what a kernel step launches."""

    def __init__(self, launch: Callable[[Any], list[Any]]) -> None:
        self._launch = launch
        self._room = LARGEST

    def encode(self, value: Any) -> Any:
        """Raises Unstorable, or Unnamed for a function that has no name."""
        if value is None or type(value) in (bool, int, str):
            return value
        if type(value) is float:
            return ["float", value.hex()]
        if type(value) is complex:
            return ["complex", value.real.hex(), value.imag.hex()]
        if isinstance(value, Expression):
            return ["expression", value.text, *value.names]
        if type(value) in _CLASSES.values():
            return self._step(value)
        for tag, kind in _SEQUENCES.items():
            if type(value) is kind:
                return [tag, *map(self.encode, value)]
        return self._other(value)

    def _step(self, value: Any) -> list[Any]:
        fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        return [
            type(value).__name__,
            *(
                self._launch(each)
                if name == "launch"
                else callable_name(each)
                if name == "target"
                else self.encode(each)
                for name, each in fields.items()
            ),
        ]

    def _other(self, value: Any) -> Any:
        if isinstance(value, dict):
            return ["dict", *([self.encode(key), self.encode(one)] for key, one in value.items())]
        if isinstance(value, slice):
            return ["slice", *map(self.encode, (value.start, value.stop, value.step))]
        if isinstance(value, _TORCH):
            return ["torch", str(value).removeprefix("torch.")]
        if isinstance(value, torch.device):
            return ["device", str(value)]
        if type(value) is torch.Tensor:
            return self._tensor(value)
        raise Unstorable(f"a {type(value).__name__}")

    def _tensor(self, tensor: torch.Tensor) -> list[Any]:
        """Only what lies in the tensor's own memory, once."""
        if tensor.layout != torch.strided or tensor.requires_grad:
            raise Unstorable("a constant that is no plain tensor")
        if tensor.is_quantized or tensor.is_conj() or tensor.is_neg():
            raise Unstorable("a constant that is read in another way")
        whole = torch.empty_like(tensor, device="cpu").copy_(tensor)
        if whole.stride() != tensor.stride():
            raise Unstorable("a constant with gaps")
        count = whole.numel() * whole.element_size()
        self._room -= count
        if self._room < 0:
            raise Unstorable("large constants")
        data = ctypes.string_at(whole.data_ptr(), count) if count else b""
        text = base64.b85encode(data).decode()
        layout = map(self.encode, (whole.dtype, (*whole.shape,), whole.stride()))
        return ["tensor", *layout, text, str(tensor.device)]


class Decoder:
    """Back. `launch` makes what a kernel step launches. Raises Damaged, Unnamed."""

    def __init__(self, launch: Callable[[list[Any]], Any]) -> None:
        self._launch = launch

    def decode(self, data: Any) -> Any:
        if not isinstance(data, list):
            return data
        tag, *parts = data
        if tag in _CLASSES:
            return self._step(_CLASSES[tag], parts)
        if tag in _SEQUENCES:
            return _SEQUENCES[tag](map(self.decode, parts))
        make = getattr(self, f"_{tag}", None)
        if make is None:
            raise Damaged(f"there is no {tag}")
        return make(*parts)

    def _step(self, cls: Any, parts: list[Any]) -> Any:
        names = [field.name for field in dataclasses.fields(cls)]
        if len(names) != len(parts):
            raise Damaged(f"a {cls.__name__} has other parts")
        return cls(*(self._part(name, part) for name, part in zip(names, parts, strict=True)))

    def _part(self, name: str, part: Any) -> Any:
        """One field of a step: what becomes source text of the program is checked."""
        if name == "launch":
            return self._launch(part)
        if name == "target":
            return by_name(part)
        value = self.decode(part)
        if name in _NAMES:
            _each(value, lambda one: one is None or identifier(one))
        elif name in _NUMBERS and not (type(value) is int or isinstance(value, Expression)):
            raise Damaged(f"{name}: {value}")
        elif name == "layouts":
            _each([layout[0] for layout in value], identifier)
        elif name == "kwargs":
            _each(list(value), identifier)
        return value

    def _float(self, text: str) -> float:
        return float.fromhex(text)

    def _complex(self, real: str, imaginary: str) -> complex:
        return complex(float.fromhex(real), float.fromhex(imaginary))

    def _expression(self, text: str, *names: str) -> Expression:
        return Expression(checked(text), tuple(map(identifier, names)))

    def _dict(self, *items: list[Any]) -> dict[Any, Any]:
        return {self.decode(key): self.decode(value) for key, value in items}

    def _slice(self, *parts: Any) -> slice:
        return slice(*map(self.decode, parts))

    def _torch(self, name: str) -> Any:
        found = getattr(torch, name, None)
        if not isinstance(found, _TORCH):
            raise Damaged(f"torch.{name}")
        return found

    def _device(self, text: str) -> torch.device:
        return torch.device(text)

    def _tensor(self, dtype: Any, shape: Any, strides: Any, text: str, device: str) -> torch.Tensor:
        layout = self.decode(shape), self.decode(strides)
        made = torch.empty_strided(*layout, dtype=self.decode(dtype))
        data = base64.b85decode(text)
        if len(data) != made.numel() * made.element_size():
            raise Damaged("a constant is incomplete")
        ctypes.memmove(made.data_ptr(), data, len(data))
        return made.to(device)


def _each(tree: Any, check: Callable[[Any], Any]) -> None:
    """Check every leaf of nested sequences."""
    if isinstance(tree, list | tuple):
        for one in tree:
            _each(one, check)
    else:
        check(tree)


_ARITHMETIC = (
    *(ast.Expression, ast.BinOp, ast.UnaryOp, ast.Compare, ast.Constant, ast.Name, ast.Load),
    *(ast.operator, ast.unaryop, ast.cmpop, ast.Tuple, ast.IfExp, ast.BoolOp, ast.boolop),
    *(ast.Subscript, ast.Attribute, ast.Call),
)
_CALLED = frozenset(("max", "min", "abs", "size", "stride", "storage_offset", "item"))


def checked(text: str) -> str:
    """An expression over a program's variables. Raises Damaged for anything that could do more than
    compute."""
    try:
        nodes = list(ast.walk(ast.parse(text, mode="eval")))
    except (SyntaxError, ValueError, RecursionError) as error:
        raise Damaged(f"an expression: {error}") from error
    for node in nodes:
        called = node.func if isinstance(node, ast.Call) else None
        name = getattr(called, "id", getattr(called, "attr", ""))
        allowed = called is None or name in _CALLED
        if isinstance(node, ast.Attribute):
            allowed = node.attr in _CALLED or node.attr == "shape"
        if not (isinstance(node, _ARITHMETIC) and allowed):
            raise Damaged(f"an expression: {text}")
    return text


def identifier(name: Any) -> str:
    """A variable's name. Raises Damaged."""
    if not (isinstance(name, str) and name.isidentifier() and not name.startswith("__")):
        raise Damaged(f"a name: {name}")
    return name
