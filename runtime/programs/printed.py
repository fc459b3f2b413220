"""Effects and output of a later call, printed as one Python function: what recipes make one by one
in `make`, without walking them at each call.

    def finish(inputs, outputs):
        v0 = c0()
        c1(v0, 'logits', outputs[0][0])
        return v0

It makes the same objects in the same order as the recipes do.
"""

import collections
import operator
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import Any

from ..guards import guard_native
from .containers import FILLS, Fields, by_methods
from .recipes import Apply, Build, ConstRecipe, Input, Output, Recipe, Table, set_state
from .steps import Redo

Finish = Callable[[list[Any], Sequence[Any]], Any]
MAX_PRINTED_LINES = 2000  # lines; longer ones are walked

_LITERALS = (type(None), bool, int, str)
_EMPTY: dict[Any, str] = {dict: "{}", list: "[]", set: "set()"}
_PUTS: dict[Any, Any] = {
    dict: dict.__setitem__,
    collections.OrderedDict: collections.OrderedDict.__setitem__,
    collections.defaultdict: dict.__setitem__,
}


class _NotPrinted(Exception):
    """A recipe has to be walked."""


class _Printer:
    def __init__(self) -> None:
        self.lines: list[str] = []
        self.held: dict[str, Any] = {}
        self._constants: dict[int, str] = {}
        self._made: dict[int, str] = {}

    def constant(self, value: Any) -> str:
        if type(value) in _LITERALS:
            return repr(value)
        if id(value) not in self._constants:
            self._constants[id(value)] = f"c{len(self._constants)}"
            self.held[self._constants[id(value)]] = value
        return self._constants[id(value)]

    def value(self, recipe: Recipe) -> str:
        """An expression for what `recipe` makes, after the lines that it needs."""
        if isinstance(recipe, ConstRecipe):
            return self.constant(recipe.value)
        if isinstance(recipe, Input):
            return f"inputs[{recipe.index}]"
        if isinstance(recipe, Output):
            return f"outputs[{recipe.segment}][{recipe.index}]"
        if id(recipe) not in self._made:
            if type(recipe) in (Apply, Table):
                self._apply(recipe)  # type: ignore[arg-type]
            elif type(recipe) is Build:
                self._build(recipe)
            else:
                raise _NotPrinted(type(recipe).__name__)
        return self._made[id(recipe)]

    def values(self, recipes: Iterable[Recipe]) -> str:
        return ", ".join([self.value(recipe) for recipe in recipes])

    def line(self, text: str) -> None:
        if len(self.lines) >= MAX_PRINTED_LINES:
            raise _NotPrinted("too long")
        self.lines.append(text)

    def _name(self, recipe: Recipe) -> str:
        self._made[id(recipe)] = f"v{len(self._made)}"
        return self._made[id(recipe)]

    def _apply(self, recipe: Apply) -> None:
        if isinstance(recipe, Table):
            made = self._table(recipe)
        else:
            arguments = self.values(recipe.arguments)
            made = f"{self.constant(recipe.function)}({arguments})"
        self.line(f"{self._name(recipe)} = {made}")

    def _table(self, recipe: Table) -> str:
        values = [self.value(part) for part in recipe.arguments]
        pairs = zip(map(self.constant, recipe.names), values, strict=True)
        return f"{{{', '.join(f'{name}: {value}' for name, value in pairs)}}}"

    def _build(self, recipe: Build) -> None:
        arguments = self.values(recipe.arguments)
        name = self._name(recipe)  # before its parts: they may hold it
        empty = None if arguments else _EMPTY.get(recipe.create)
        self.line(f"{name} = {empty or f'{self.constant(recipe.create)}({arguments})'}")
        self._fill(recipe, name)
        if recipe.state is not None:
            self._state(recipe.state, name)

    def _fill(self, recipe: Build, name: str) -> None:
        put = None if recipe.items else _PUTS.get(recipe.base)
        items = [self.value(item) for item in recipe.items]
        pairs = [(self.value(key), self.value(value)) for key, value in recipe.pairs]
        if put is not None:
            for key, value in pairs:
                exact = recipe.create is dict
                self.line(
                    f"{name}[{key}] = {value}"
                    if exact
                    else f"{self.constant(put)}({name}, {key}, {value})"
                )
        elif items or pairs:
            shown = ", ".join(f"({key}, {value})" for key, value in pairs)
            way = self.constant(_way(recipe.base))
            self.line(f"{way}({name}, [{', '.join(items)}], [{shown}])")

    def _state(self, state: Recipe, name: str) -> None:
        fields = state.arguments if isinstance(state, Apply) and state.function is Fields else ()
        attributes, slots = fields if len(fields) == 2 else (None, None)
        if not isinstance(attributes, Table) or not isinstance(slots, Table):
            self.line(f"{self.constant(set_state)}({name}, {self.value(state)})")
            return
        shown, held = self._table(attributes), [self.value(part) for part in slots.arguments]
        if attributes.names:
            self.line(f"{name}.__dict__.update({shown})")
        for slot, value in zip(slots.names, held, strict=True):
            self.line(f"{self.constant(object.__setattr__)}({name}, {slot!r}, {value})")

    def effect(self, effect: Redo) -> None:
        """The effect's line; keywords are made before arguments, as `Redo.run` does."""
        named = [(name, self.value(recipe)) for name, recipe in effect.keywords.items()]
        given = [self.value(recipe) for recipe in effect.arguments]
        given += [f"**{{{name!r}: {value}}}" for name, value in named]
        self.line(f"{self.constant(effect.function)}({', '.join(given)})")


def _way(base: Any) -> Callable[..., None]:
    if base is None:
        return _by_kind
    return next((way for kind, way in FILLS if issubclass(base, kind)), by_methods)


def _by_kind(result: Any, items: list[Any], pairs: list[tuple[Any, Any]]) -> None:
    _way(type(result))(result, items, pairs)


def finish(output: Recipe, effects: Iterable[Redo]) -> Finish | None:
    """`finish(inputs, outputs)`, which makes the output, does the effects, and gives the output;
    None where recipes have to be walked."""
    printer = _Printer()
    try:
        result = printer.value(output)
        for effect in effects:
            printer.effect(effect)
    except (_NotPrinted, RecursionError):
        return None
    body = "\n    ".join([*printer.lines, f"return {result}"])
    exec(f"def finish(inputs, outputs):\n    {body}\n", printer.held)
    return printer.held["finish"]  # type: ignore[no-any-return]


def same_objects(
    aliases: Sequence[tuple[int, int]], distinct: Sequence[Sequence[int]]
) -> Callable[[list[Any]], bool] | None:
    """Whether what was one input is one, and what was told apart is not; None if there are none."""
    pairs = [f"inputs[{a}] is inputs[{b}]" for a, b in aliases]
    one = eval(f"lambda inputs: {' and '.join(pairs)}") if pairs else None
    distinct = [group for group in distinct if len(group) > 1]
    if not distinct:
        return one
    groups = [operator.itemgetter(*group) for group in distinct]
    told = tuple(sorted({*chain(*distinct)}))
    pick_all, most = operator.itemgetter(*told), _objects(told, aliases)

    def count(inputs: list[Any]) -> int:
        native = guard_native.loaded()
        if native is not None:
            return native.count_objects(inputs, told)  # type: ignore[no-any-return]
        return len({*map(id, pick_all(inputs))})

    def same(inputs: list[Any]) -> bool:
        if one is not None and not one(inputs):
            return False
        # groups have most inputs in common: as a rule all are different objects
        return count(inputs) == most or all(
            len({*map(id, pick(inputs))}) == len(group)
            for pick, group in zip(groups, distinct, strict=True)
        )

    return same


def _objects(places: Sequence[int], aliases: Sequence[tuple[int, int]]) -> int:
    """How many objects the inputs at these places are where no two are one but for the aliases."""
    first: dict[int, int] = {}

    def found(place: int) -> int:
        while place in first:
            place = first[place]
        return place

    for pair in aliases:
        one, other = map(found, pair)
        if one != other:
            first[max(one, other)] = min(one, other)
    return len({*map(found, places)})
