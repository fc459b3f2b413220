"""How a later call makes again what the first call made in Python: outputs, effects' arguments,
host scalars.

A recipe is a small tree over the call's inputs and the graph's values. `make(env)` gives the
object; one `env` serves one call, so that an object which stands at two places is made once.
"""

import copyreg
import dataclasses
import types
import weakref
from collections.abc import Callable
from functools import partial
from operator import itemgetter
from typing import Any, TypeVar

import torch

from . import containers
from .containers import FILLS, Fields, by_methods
from .host_generators import GENERATORS
from .made_functions import CellContent, FunctionAttributes, maker, skeleton


class CannotRebuild(Exception):
    """An object of the first call has no recipe; the message says which and why."""


class Recipe:
    """Base: makes one object for one later call. `after`: how many segments must have run; `graph`:
    whether it needs what they give; `sizes`: whether it is arithmetic on sizes and constants
    alone; `drawn`: whether it depends on numbers of a generator of the host."""

    after = 0
    graph = False
    sizes = False
    drawn = False

    def make(self, env: "Env") -> Any:
        raise NotImplementedError


class Env:
    """One later call: its inputs (as the guards fetched them), the values its segments gave, the
    objects already made."""

    __slots__ = ("answers", "before_draw", "inputs", "made", "outputs")

    def __init__(
        self, inputs: list[Any], segments: int, before_draw: Callable[[Any], None] | None = None
    ) -> None:
        self.inputs = inputs
        self.answers: dict[HostCall, Any] = {}
        self.before_draw = before_draw
        self.outputs: list[Any] = [None] * segments
        self.made: dict[int, Any] = {}


@dataclasses.dataclass(frozen=True, eq=False)
class ConstRecipe(Recipe):
    value: Any

    def make(self, env: Env) -> Any:
        return self.value


@dataclasses.dataclass(frozen=True, eq=False)
class Input(Recipe):
    """The object at an access path, fetched by the guards before the call."""

    index: int

    def make(self, env: Env) -> Any:
        return env.inputs[self.index]


@dataclasses.dataclass(frozen=True, eq=False)
class Output(Recipe):
    """A tensor that a segment gives."""

    segment: int
    index: int
    graph = True

    @property
    def after(self) -> int:  # type: ignore[override]
        return self.segment + 1

    def make(self, env: Env) -> Any:
        return env.outputs[self.segment][self.index]


@dataclasses.dataclass(eq=False)
class Apply(Recipe):
    """A pure host function of other recipes: `.item()`, arithmetic on traced scalars, formatting.
    Made once in a call."""

    function: Callable[..., Any]
    arguments: tuple[Recipe, ...]

    def __post_init__(self) -> None:
        self.after = max((part.after for part in self.arguments), default=0)
        self.graph = any(part.graph for part in self.arguments)
        self.drawn = any(part.drawn for part in self.arguments)
        traced = [part for part in self.arguments if not isinstance(part, ConstRecipe)]
        self.sizes = bool(traced) and all(part.sizes for part in traced)
        self._taken: Callable[[Any], Any] | None = None
        indices = [part.index for part in self.arguments if isinstance(part, Input)]
        if len(indices) == len(self.arguments) > 1:
            self._taken = itemgetter(*indices)

    def make(self, env: Env) -> Any:
        made = env.made
        if id(self) not in made:
            if self._taken is not None:
                made[id(self)] = self.function(*self._taken(env.inputs))
            else:
                made[id(self)] = self.function(*[part.make(env) for part in self.arguments])
        return made[id(self)]


class Table(Apply):
    """A dict of its own with these names, made of the values."""

    def __init__(self, names: tuple[Any, ...], values: tuple[Recipe, ...]) -> None:
        super().__init__(lambda *made: dict(zip(names, made, strict=True)), values)
        self.names = names


@dataclasses.dataclass(eq=False)
class Works(Recipe):
    """A recipe that may raise, tried before anything of the call is done to the outside."""

    recipe: Recipe

    def make(self, env: Env) -> Any:
        self.recipe.make(env)
        return DONE


@dataclasses.dataclass(eq=False)
class HostCall(Recipe):
    """A call of a function that answers something else every time; made once in each call of the
    compiled function, `after` so many segments. Its own value is DONE: what it answered is a
    `HostValue`."""

    function: Callable[..., Any]
    arguments: tuple[Recipe, ...]
    keywords: dict[str, Recipe]
    after: int = 0

    def make(self, env: Env) -> Any:
        if env.before_draw is not None:
            env.before_draw(getattr(self.function, "__self__", None))
        keywords = {name: recipe.make(env) for name, recipe in self.keywords.items()}
        env.answers[self] = self.function(
            *(recipe.make(env) for recipe in self.arguments), **keywords
        )
        return DONE


DONE = "done"


@dataclasses.dataclass(frozen=True, eq=False)
class HostValue(Recipe):
    """What a host call answered."""

    call: HostCall

    @property
    def after(self) -> int:  # type: ignore[override]
        return self.call.after

    @property
    def drawn(self) -> bool:  # type: ignore[override]
        return isinstance(getattr(self.call.function, "__self__", None), GENERATORS)

    def make(self, env: Env) -> Any:
        return env.answers[self.call]


@dataclasses.dataclass(eq=False)
class Build(Recipe):
    """An object made in the call: `create` with `arguments`, then state, items. The parts are
    filled after creation, so cycles work. base: the class written in C that it is of, if `create`
    makes it by that."""

    create: Callable[..., Any]
    arguments: tuple[Recipe, ...] = ()
    state: "Recipe | None" = None
    items: tuple[Recipe, ...] = ()
    pairs: tuple[tuple[Recipe, Recipe], ...] = ()
    base: type | None = None
    graph = True

    def make(self, env: Env) -> Any:
        if id(self) in env.made:
            return env.made[id(self)]
        result = env.made[id(self)] = self.create(
            *(argument.make(env) for argument in self.arguments)
        )
        self._fill(result, env)
        return result

    def _fill(self, result: Any, env: Env) -> None:
        fill = next((way for kind, way in FILLS if isinstance(result, kind)), by_methods)
        fill(
            result,
            [item.make(env) for item in self.items],
            [(key.make(env), value.make(env)) for key, value in self.pairs],
        )
        if self.state is not None:
            set_state(result, self.state.make(env))


def itself(made: Any) -> Any:
    """What was made already, to be filled."""
    return made


def set_state(result: Any, state: Any) -> None:
    if isinstance(state, Fields | CellContent | FunctionAttributes):
        state.put(result)
    elif hasattr(result, "__setstate__"):
        result.__setstate__(state)
    else:
        _split_state(state).put(result)


def _split_state(state: Any) -> "Fields":
    attributes, slots = state if isinstance(state, tuple) and len(state) == 2 else (state, None)
    return Fields(attributes or {}, slots or {})


ATOMS = (
    type(None),
    bool,
    int,
    float,
    complex,
    str,
    bytes,
    torch.dtype,
    torch.device,
    torch.layout,
    torch.memory_format,
    torch.Size,
    type(Ellipsis),
    type(NotImplemented),
    range,
    slice,
)


_Made = TypeVar("_Made", bound=Recipe)


class RecipeMaker:
    """Makes recipes at the end of a recording. `leaf(obj)` gives the recipe of a tensor, a traced
    scalar or an object that has an access path, or None for what was made in the call."""

    def __init__(self, leaf: Callable[[Any], Recipe | None]) -> None:
        self._leaf = leaf
        self._memo: dict[int, tuple[Any, Recipe]] = {}
        self._filled_cells: dict[int, Build] = {}
        self.leaves: list[tuple[Recipe, Any]] = []
        self.by_protocol: list[tuple[Any, Recipe]] = []

    def recipe(self, obj: Any) -> Recipe:
        """The recipe of `obj` as it is now. Raises CannotRebuild."""
        leaf = self._leaf(obj)
        if leaf is not None:
            self.leaves.append((leaf, obj))
            return leaf
        if type(obj) in ATOMS or isinstance(obj, type | torch._ops.OpOverload):
            return ConstRecipe(obj)
        if id(obj) in self._memo:
            return self._memo[id(obj)][1]
        return self._made(obj)

    def _remember(self, obj: Any, recipe: "_Made") -> "_Made":
        self._memo[id(obj)] = (obj, recipe)
        return recipe

    def _made(self, obj: Any) -> Recipe:
        cls = type(obj)
        if cls in (list, set, dict):
            return self._filled(obj, Build(cls, base=cls))
        if isinstance(obj, types.FunctionType):
            return self._function(obj)
        if cls is weakref.ref:
            return self._reference(obj)
        if cls.__name__ in _NOT_REBUILT:
            raise CannotRebuild(f"a {cls.__name__} made in the call is returned or kept")
        if cls.__module__ == "torch.return_types":
            return self._remember(
                obj, Apply(partial(containers.of_sequence, cls), tuple(map(self.recipe, obj)))
            )
        base = containers.c_base(cls)
        if base in (tuple, frozenset):
            return self._immutable(obj, base)
        if base in containers.EXACT and containers.can_make(obj, base):
            create, arguments = containers.made_by(obj, base)
            parts = tuple(map(self.recipe, arguments))
            recipe = self._remember(obj, Build(create, parts, base=base))
            return self._with_fields(obj, self._filled(obj, recipe))
        return self._reduced(obj)

    def _function(self, fn: types.FunctionType) -> Recipe:
        """A function and its cells, empty at first: they may hold it."""
        like = skeleton(fn)
        cells = fn.__closure__ or ()
        recipe = self._remember(fn, Build(maker(like), tuple(map(self._cell, cells))))
        table = self._table({**fn.__dict__})
        keywords = (
            ConstRecipe(None) if fn.__kwdefaults__ is None else self._table(fn.__kwdefaults__)
        )
        dress = Apply(
            FunctionAttributes, (ConstRecipe(like), self.recipe(fn.__defaults__), keywords, table)
        )
        filled = tuple(map(self._content, cells))
        recipe.state = Apply(lambda dress, *filled: dress, (dress, *filled))
        return recipe

    def _reference(self, obj: Any) -> Recipe:
        target, callback = obj(), obj.__callback__
        if target is None:
            raise CannotRebuild("a weak reference that the call made is dead")
        parts = (target,) if callback is None else (target, callback)
        return self._remember(obj, Apply(weakref.ref, tuple(map(self.recipe, parts))))

    def _cell(self, cell: types.CellType) -> Recipe:
        if id(cell) not in self._memo:
            self._remember(cell, self._leaf(cell) or Build(types.CellType))
        return self._memo[id(cell)][1]

    def _content(self, cell: types.CellType) -> Recipe:
        """The cell, filled; one from outside is as it is."""
        empty = self._cell(cell)
        if id(cell) in self._filled_cells or isinstance(empty, ConstRecipe):
            return self._filled_cells.get(id(cell), empty)
        filled = self._filled_cells[id(cell)] = Build(itself, (empty,))
        try:
            content = cell.cell_contents
        except ValueError:
            return filled
        filled.state = Apply(CellContent, (self.recipe(content),))
        return filled

    def _immutable(self, obj: Any, base: type) -> Recipe:
        """A tuple or frozenset, or an object of a subclass: made from its parts at once, whatever
        its own constructor takes."""
        cls = type(obj)
        parts = tuple(map(self.recipe, base.__iter__(obj)))  # type: ignore[attr-defined]
        make = Apply(partial(containers.of_parts, cls, base), parts)
        if cls is base or not (getattr(obj, "__dict__", None) or containers.slots_of(obj)):
            return self._remember(obj, make)
        return self._with_fields(obj, self._remember(obj, Build(itself, (make,))))

    def _filled(self, obj: Any, recipe: "Build") -> "Build":
        """The recipe with what the container holds. Remembered first: it may hold itself."""
        self._remember(obj, recipe)
        if isinstance(obj, dict):
            recipe.pairs = tuple(
                (self.recipe(key), self.recipe(value)) for key, value in containers.pairs_of(obj)
            )
        elif isinstance(obj, containers.HOLDING):
            recipe.items = tuple(map(self.recipe, containers.items_of(obj)))
        return recipe

    def _with_fields(self, obj: Any, recipe: "Build") -> "Build":
        """The recipe with the object's attributes and slots, as they are: no code of its class
        runs."""
        attributes, slots = getattr(obj, "__dict__", None) or {}, containers.slots_of(obj)
        if attributes or slots:
            table = Apply(containers.Fields, (self._table(attributes), self._table(slots)))
            recipe.state = table
        return recipe

    def _table(self, values: dict[str, Any]) -> Recipe:
        return Table(tuple(values), tuple(self.recipe(value) for value in values.values()))

    def _reduced(self, obj: Any) -> Recipe:
        """By the pickle protocol, as copy.deepcopy does, with graph values at the leaves."""
        parts = _reduce(obj)
        recipe = self._remember(obj, Build(parts[0]))
        if parts[0] is copyreg._reconstructor:  # type: ignore[attr-defined]
            raise CannotRebuild(
                f"a {type(obj).__name__} that only the oldest pickle protocol describes"
            )
        self.by_protocol.append((obj, recipe))
        recipe.arguments = tuple(map(self.recipe, parts[1]))
        recipe.state = None if parts[2] is None else self.recipe(parts[2])
        recipe.items = tuple(map(self.recipe, parts[3]))
        recipe.pairs = tuple((self.recipe(k), self.recipe(v)) for k, v in parts[4])
        return recipe


_NOT_REBUILT = ("generator", "method", "builtin_function_or_method", "RemovableHandle")


def _reduce(obj: Any) -> tuple[Callable[..., Any], tuple[Any, ...], Any, list[Any], list[Any]]:
    try:
        reduced = obj.__reduce_ex__(4)
    except Exception as error:
        raise CannotRebuild(f"a {type(obj).__name__} made in the call: {error}") from None
    if isinstance(reduced, str):
        raise CannotRebuild(f"a {type(obj).__name__} made in the call")
    create, arguments, *rest = reduced
    state, items, pairs = (*rest, None, None, None)[:3]
    return create, arguments, state, list(items or ()), list(pairs or ())
