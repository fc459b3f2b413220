"""A loop that breaks in some of its turns: the turns between are captured together, as one graph,
and those that break run in parts."""

import ast
import itertools
import operator
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

from ..capture.places import Reached
from .loop_texts import TURN, Loop

MOST_STRETCHES = 16
MOST_BREAKS = 4
Step = tuple[int, Callable[..., Any], tuple[Any, ...], bool]
"""The turn behind a run of turns, what is called for it, the turns, whether this is a stretch."""


class StretchedLoop:
    """Called with the loop's variables and what it goes over; gives those that it carries.
    stretch(): a compiled function of some turns, which is not cut where it breaks; in_parts: one
    that is; broke: where the loop broke before."""

    def __init__(
        self, loop: Loop, stretch: Callable[[], Any], in_parts: Callable[..., Any], broke: Reached
    ) -> None:
        self._stretch, self._in_parts = stretch, in_parts
        self._carried = [loop.given.index(name) for name in loop.carried]
        self._target = loop.target
        self._stretches: dict[tuple[int, int], Any] = {}
        self._broke: Reached | None = broke
        self._breaking: frozenset[int] = frozenset()
        self._pays = True
        self._last: LoopIterations | None = None

    def __call__(self, *given: Any) -> tuple[Any, ...]:
        *values, iterable = given
        iterator = iter(iterable)
        turns = self._turns(iterator) if self._pays else None
        if turns is None:
            return self._in_parts(*values, enumerate(iterator))  # type: ignore[no-any-return]
        if self._broke is not None:
            self._learn(self._broke, turns)
        start, stop = 0, len(turns.all)
        while start < stop:
            step = turns.steps.get(start) or self._step(turns, start)
            end, called, some, is_stretch = step
            after = called(*values, some)
            for index, value in zip(self._carried, after, strict=True):
                values[index] = value
            if is_stretch and getattr(called, "stopped_at", None) is not None:
                self._stretches.pop((start, end), None)
                self._learn(_place_in(called), turns)
            start = end
        return tuple([values[index] for index in self._carried])

    def _turns(self, iterator: Iterator[Any]) -> "LoopIterations | None":
        """All turns, the objects of the last call if they are made of the same: guards are quicker
        over those. None where the iterator may see what the body does."""
        if not _is_settled(iterator):
            return None
        parts, items = _taken(iterator)
        last = self._last
        if last is not None and last.are(parts):
            return last
        turns = LoopIterations(parts, tuple(enumerate(items())))
        self._last = turns if all(isinstance(part, _KEPT) for part in parts) else None
        return turns

    def _step(self, turns: "LoopIterations", start: int) -> Step:
        """What is done at turn `start`."""
        end = self._end(start, len(turns.all))
        called = self._in_parts
        is_stretch = self._pays and start not in self._breaking
        if is_stretch:
            known = self._stretches.get((start, end))
            called = known or self._stretches.setdefault((start, end), self._stretch())
            self._pays = len(self._stretches) <= MOST_STRETCHES
        step = turns.steps[start] = (end, called, turns.all[start:end], is_stretch)
        return step

    def _end(self, start: int, stop: int) -> int:
        if not self._pays:
            return stop
        if start in self._breaking:
            return start + 1
        return min((turn for turn in self._breaking if start < turn < stop), default=stop)

    def _learn(self, broke: Reached | None, turns: "LoopIterations") -> None:
        """It broke there. Where it is in the first turn, or in one after the other, all turns run
        in parts."""
        self._broke = self._last = None
        turn = -1 if broke is None else turns.reached(broke, self._target)
        near = not self._breaking.isdisjoint({turn - 1, turn + 1})
        self._breaking |= {turn}
        self._pays = turn > 0 and not near and len(self._breaking) <= MOST_BREAKS


def _place_in(stretch: Any) -> Reached | None:
    """Where the stretch broke in its own code."""
    code = stretch.fn.__code__
    here = (code.co_filename, code.co_firstlineno)
    return next((at for at in stretch.stopped_at if (at.file, at.first_line) == here), None)


class LoopIterations:
    """All turns of a loop, made of `parts`; `steps`: what is done at some of them."""

    def __init__(self, parts: list[Any], turns: tuple[tuple[int, Any], ...]) -> None:
        self._parts, self.all = parts, turns
        self.steps: dict[int, Step] = {}

    def reached(self, place: Reached, target: ast.expr) -> int:
        """The turn in which the variables of `target` were what they are at `place`; -1 if there is
        none."""
        known = place.variables
        if TURN in known:
            found = (turn for turn, _ in self.all if known[TURN] == id(turn))
        else:
            found = (turn for turn, item in self.all if _binds(target, item, known))
        return next(found, -1)

    def are(self, parts: list[Any]) -> bool:
        """Whether they would be made of these very objects again."""
        return len(parts) == len(self._parts) and all(map(operator.is_, parts, self._parts))


def _binds(target: ast.expr, item: Any, variables: dict[str, int]) -> bool:
    """Whether `target` bound to `item` gives these variables."""
    if isinstance(target, ast.Name):
        return variables.get(target.id) == id(item)
    return (
        isinstance(target, ast.Tuple)
        and type(item) is tuple
        and len(item) == len(target.elts)
        and all(map(_binds, target.elts, item, itertools.repeat(variables)))
    )


_KEPT = (torch.nn.Module, int, str, type)  # what may live for longer than a call


def _is_settled(iterator: Iterator[Any]) -> bool:
    """Whether what comes of the iterator is the same when all of it is taken at once: nothing can
    change it, or it goes over modules, which nobody replaces while a loop over them runs."""
    if type(iterator) in (enumerate, zip):
        _, inner, *strict = _reduced(iterator)
        over = inner[:1] if type(iterator) is enumerate else inner
        return not strict and all(map(_is_settled, over))
    if type(iterator) in _OF_DICTS:
        return all(isinstance(value, torch.nn.Module) for value in _reduced(iterator)[1][0])
    return type(iterator) in _SETTLED


def _reduced(iterator: Iterator[Any]) -> Any:
    return iterator.__reduce__()


def _taken(iterator: Iterator[Any]) -> tuple[list[Any], Callable[[], Iterable[Any]]]:
    """All that comes of a settled iterator: what it is made of, and what makes it of that."""
    if type(iterator) is enumerate:
        inner, start = _reduced(iterator)[1]
        parts, make = _taken(inner)
        return [enumerate, start, *parts], lambda: enumerate(make(), start)
    if type(iterator) is zip:
        taken = [_taken(each) for each in _reduced(iterator)[1]]
        flat = [part for parts, _ in taken for part in (zip, len(parts), *parts)]
        return flat, lambda: zip(*(make() for _, make in taken), strict=False)
    items = list(iterator)
    return items, lambda: items


_EMPTY: tuple[Any, ...] = ((), range(0), range(1 << 70))
_SETTLED = {type(iter(each)) for each in _EMPTY}
_OF_DICTS: set[type] = {type(iter({}.values())), type(iter(OrderedDict[Any, Any]().values()))}
