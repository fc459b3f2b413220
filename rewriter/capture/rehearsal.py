"""A recipe that goes by the pickle protocol is made once while recording, and what it makes is
compared with the real object: a class may describe itself wrongly."""

import types
from typing import Any

import torch

from ...runtime.programs.recipes import (
    CannotRebuild,
    Env,
    HostValue,
    Input,
    Output,
    Recipe,
    RecipeMaker,
)
from .guarded_kinds import is_constant
from .numbers.scalars import plain


class _Rehearsal(Env):
    """An Env in which every tensor, traced number and object from outside is the recorded one."""

    def __init__(self, leaves: list[tuple[Recipe, Any]]) -> None:
        super().__init__([], 0)
        self.inputs: Any = {}
        self.outputs: Any = {}
        for recipe, obj in leaves:
            if isinstance(recipe, Input):
                self.inputs[recipe.index] = plain(obj)
            elif isinstance(recipe, Output):
                self.outputs.setdefault(recipe.segment, {})[recipe.index] = plain(obj)
            elif isinstance(recipe, HostValue):
                self.answers[recipe.call] = plain(obj)
            else:
                self.made[id(recipe)] = plain(obj)


def check(maker: RecipeMaker) -> None:
    """Raises CannotRebuild for an object that its recipe does not make again."""
    for obj, recipe in maker.by_protocol:
        try:
            made = recipe.make(_Rehearsal(maker.leaves))
            same = _alike(made, obj, {})
        except Exception as error:
            name = type(obj).__name__
            raise CannotRebuild(
                f"a {name} that the call makes cannot be made again: {error}"
            ) from None
        if not same:
            raise CannotRebuild(f"__reduce__ of a {type(obj).__name__} does not describe it")


def _alike(made: Any, real: Any, seen: dict[int, int]) -> bool:
    if made is real:
        return True
    made, real = plain(made), plain(real)
    if type(made) is not type(real):
        return False
    if is_constant(real):
        return bool(made == real) or made != made
    if isinstance(real, types.FunctionType) and made.__code__ is not real.__code__:
        return False
    if isinstance(real, torch.Tensor | type | types.ModuleType):
        return False
    if id(real) in seen:
        return seen[id(real)] == id(made)
    seen[id(real)] = id(made)
    ours, theirs = _parts(made), _parts(real)
    return len(ours) == len(theirs) and all(
        _alike(a, b, seen) for a, b in zip(ours, theirs, strict=True)
    )


def _content(cell: types.CellType) -> list[Any]:
    try:
        return [cell.cell_contents]
    except ValueError:  # it is empty
        return []


def _parts(obj: Any) -> list[Any]:
    if isinstance(obj, list | tuple | set | frozenset):
        return list(obj)
    if isinstance(obj, dict):
        return [part for pair in obj.items() for part in pair]
    if isinstance(obj, types.MethodType):
        return [obj.__func__, obj.__self__]
    if isinstance(obj, types.FunctionType):
        return [*(obj.__closure__ or ()), obj.__defaults__, obj.__kwdefaults__, obj.__dict__]
    if isinstance(obj, types.CellType):
        return _content(obj)
    parts = obj.__reduce_ex__(4)
    if isinstance(parts, str):
        return [parts]
    create, arguments, *rest = parts
    state, items, pairs = (*rest, None, None, None)[:3]
    return [create, *arguments, state, *(items or ()), *(pairs or ())]
