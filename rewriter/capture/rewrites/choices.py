"""What the first recording of a call tells of the tensors that its choices would stand for: whether
someone could see that a choice makes a new tensor. A call that cannot be made again at once runs
with its choices for real, so that it has to be known before.

What is asked is coarser than in `kept_objects`, which has both sides in one graph.
"""

import types
from collections.abc import Iterable, Iterator
from typing import Any

import torch

from ..values import storage_of
from .fake_values import FakeValues, UnknownValue

_PLAIN = (str, bytes, int, float, complex, type(None), type, types.ModuleType, types.FunctionType)


class Choices:
    """The tensors that sides `kept`, and those `made` by the statements that choices replace.
    `inputs`: whether one of the kept is of the outside."""

    def __init__(self) -> None:
        self.kept: list[torch.Tensor] = []
        self.made: list[torch.Tensor] = []
        self.inputs = False
        self._origins: tuple[str, ...] = ()
        self._written = self._unknown = False

    def keep(self, values: FakeValues) -> None:
        """What choices made of these values may give."""
        try:
            self.kept += values.kept()
        except UnknownValue:
            self._unknown = True

    def replace(self, file: str, lines: Iterable[int]) -> None:
        """A choice stands for the statements on these lines."""
        self._origins += tuple(f"{file}:{line}:" for line in lines)

    def note(self, tensor: torch.Tensor, origin: str) -> None:
        """An operator at `origin` gave the tensor."""
        if origin.startswith(self._origins):
            self.made.append(tensor)

    def wrote(self, tensor: torch.Tensor) -> None:
        """The tensor was written."""
        if not self._written and (self.kept or self.made):
            self._written = storage_of(tensor) in self._storages()

    def seen(self, leaving: Iterable[Any], identity_asked: bool) -> str:
        """Why the choices may be told from what eager keeps, or ""; `leaving`: what the call gives
        and changes."""
        if self._unknown:
            return "it is not known which tensor the branch keeps"
        if not self.kept:
            return ""
        if self._written:
            return "the chosen tensor is written later"
        if identity_asked:
            return "the code compares the identity of tensors"
        mine = self._storages()
        left = sum(storage_of(tensor) in mine for tensor in _tensors(list(leaving), set()))
        if left > 1 or (left and self.inputs):
            return "the chosen tensor leaves the call, and so may the one that eager would keep"
        return ""

    def _storages(self) -> set[int]:
        return {storage_of(tensor) for tensor in (*self.kept, *self.made)}


def _tensors(value: Any, seen: set[int]) -> Iterator[torch.Tensor]:
    """The tensors in `value`, whatever holds them; those of modules are no results."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (*_PLAIN, torch.nn.Module)) or id(value) in seen:
        return
    else:
        seen.add(id(value))
        held = value.values() if isinstance(value, dict) else value
        parts = list(held) if isinstance(value, dict | list | tuple | set | frozenset) else []
        for part in (*parts, *getattr(value, "__dict__", {}).values()):
            yield from _tensors(part, seen)
