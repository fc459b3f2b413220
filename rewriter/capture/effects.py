"""What the recorded call did to the outside in Python, as steps that every later call does again,
in order."""

import dataclasses
from collections.abc import Callable
from typing import Any

import torch

from ...runtime.programs.recipes import ConstRecipe, Recipe, RecipeMaker
from ...runtime.programs.steps import Redo
from . import places
from .numbers import scalars


@dataclasses.dataclass(eq=False)
class SideEffect:
    """`function(*arguments, **keywords)`, its arguments made anew at each call. Arguments stay live
    objects until `settle` makes recipes of them at the end of the recording (a list that is stored
    and filled later is stored full); those that must be taken as they are when the effect happens
    (what a print shows) are recipes from the start."""

    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    keywords: dict[str, Any] = dataclasses.field(default_factory=dict)
    origin: str = dataclasses.field(default_factory=places.here)

    @property
    def owner(self) -> Any:
        """The live object that is changed, if it is one of the outside."""
        return self.arguments[0] if self.arguments else None

    @property
    def name(self) -> Any:
        """What is stored there, if that is a constant."""
        return getattr(self.arguments[1], "value", None)

    def settle(self, maker: RecipeMaker) -> Redo:
        return Redo(
            self.function,
            tuple(_recipe(part, maker) for part in self.arguments),
            {name: _recipe(part, maker) for name, part in self.keywords.items()},
            self.origin,
        )

    def strip(self, stripper: scalars.Stripper) -> None:
        """A traced scalar that was stored, and is still there, becomes a plain number where it
        is."""
        for part in self.arguments:
            if not isinstance(part, Recipe):
                stripper.owner(part)
        for place in self.arguments[1:-1]:  # an object may be a key, too
            if not isinstance(place, Recipe):
                stripper.value(place)
        value = self.arguments[-1] if self.arguments else None
        made_plain = value if isinstance(value, Recipe) else stripper.value(value)
        if made_plain is not value and self.function in STORES:
            *place, _ = (
                part.value if isinstance(part, ConstRecipe) else part for part in self.arguments
            )
            if STORES[self.function](*place) is value:
                self.function(*place, made_plain)


def set_attributes(stores: list[SideEffect], tensor: torch.Tensor, name: str, value: Any) -> None:
    """Note a store to an attribute of a tensor that the call made; of several the last counts."""
    others = (store for store in stores if store.owner is not tensor or store.name != name)
    stores[:] = others
    stores.append(SideEffect(setattr, (tensor, constant(name), value)))


def dressings(stores: list[SideEffect], maker: RecipeMaker) -> tuple[Redo, ...]:
    """Stores to attributes of tensors that the call made, as far as the tensors leave it: what one
    holds may be another one."""
    done: list[Redo] = []
    waiting = stores
    while waiting:
        left = {id(obj) for _, obj in maker.leaves}
        ready = [store for store in waiting if id(store.owner) in left]
        if not ready:
            break
        waiting = [store for store in waiting if id(store.owner) not in left]
        done += [store.settle(maker) for store in ready]
    return tuple(done)


def set_cell(cell: Any, value: Any) -> None:
    cell.cell_contents = value


# What stores, and what reads the same place.
STORES: dict[Any, Callable[..., Any]] = {
    setattr: lambda obj, name: getattr(obj, name, None),
    object.__setattr__: lambda obj, name: getattr(obj, name, None),
    dict.__setitem__: lambda obj, key: obj.get(key),
    set_cell: lambda cell: cell.cell_contents,
}


def _recipe(part: Any, maker: RecipeMaker) -> Recipe:
    return part if isinstance(part, Recipe) else maker.recipe(part)


def constant(value: Any) -> Recipe:
    """A part of an effect that is the same at every call."""
    return ConstRecipe(value)
