"""Iteration while recording: what a loop reads from outside is guarded, what it would use up stops
the recording."""

import enum
import functools
import itertools
import operator
import types
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from ...runtime.guards.guard import Item, Length
from .. import catalogue
from ..capture import process_bound
from ..capture.numbers import scalars, traced_arrays
from ..capture.trace import Recorder
from . import c_calls, items
from .lookup import owner_of, python_method

_VIEWS: tuple[type, ...] = (type({}.keys()), type({}.values()), type({}.items()))


def over(rec: Recorder, iterable: Any) -> Any:
    """What a `for`, a comprehension or an unpacking should iterate over."""
    if traced_arrays.entry(rec, iterable) is not None and iterable.ndim:
        return traced_arrays.rows(rec, iterable)
    if type(iterable) in scalars.TRACED:
        return scalars.concretize_scalar(iterable)
    process_bound.note_order(rec, iterable)
    if isinstance(iterable, torch.Tensor | str | bytes | range | torch.Size):
        return iterable
    if isinstance(iterable, _VIEWS):
        return iterable
    if is_enumeration(iterable):
        return rec.once(list, (iterable,))  # its members are made with it
    method = python_method(rec, iterable, "__iter__")
    if method is not None:
        made = rec.call(method, (iterable,), {})
        if python_method(rec, made, "__next__"):
            return _advanced(rec, made)
        if not hasattr(type(made), "__next__"):
            return c_calls.given(rec, iter, iterable, "__iter__", made)
        return over(rec, made)
    if isinstance(iterable, Iterator):
        return _iterator(rec, iterable)
    if not hasattr(type(iterable), "__iter__") and python_method(rec, iterable, "__getitem__"):
        return rec.call(Sequence.__iter__, (iterable,), {})
    moving = moving_parts(rec, iterable) if type(iterable) is tuple else None
    if moving is not None:
        return moving
    items.guard_structure(rec, iterable)
    return iterable


def over_whole(rec: Recorder, iterable: Any) -> Any:
    """The same for `list` and its like, which ask a user's object how long it is once they have
    begun on it."""
    taken = over(rec, iterable)
    if isinstance(iterable, torch.Tensor):
        return taken
    for name, function in (("__len__", len), ("__length_hint__", operator.length_hint)):
        method = python_method(rec, iterable, name)
        if method is None:
            continue
        try:
            c_calls.given(rec, function, iterable, name, rec.call(method, (iterable,), {}))
        except TypeError:
            continue  # no answer
        break
    return taken


def is_enumeration(obj: Any) -> bool:
    """Whether Python's own enumerations say how to go through it."""
    return getattr(type(obj), "__iter__", None) is enum.EnumMeta.__iter__


def moving_parts(rec: Recorder, values: tuple[Any, ...]) -> Any:
    """The parts of a tuple from outside, if some are numbers that earlier calls saw change (betas
    that a scheduler moves, lengths that an object keeps)."""
    path = rec.known.touch(values)
    if path is None or not any(
        type(value) in (int, float) and rec.moving.moves(Item(path, i), value)
        for i, value in enumerate(values)
    ):
        return None
    rec.known.guard(path, Length(len(values)))
    return tuple(rec.known.loaded(value, Item(path, i)) for i, value in enumerate(values))


def _advanced(rec: Recorder, iterator: Any) -> Any:
    """An iterator whose `__next__` is Python: each step runs rewritten."""
    following = functools.partial(advance, rec, iterator), functools.partial(next, iterator)
    while True:
        try:
            value = rec.safely(*following)
        except StopIteration as end:
            return end.value
        yield value


def stepwise(rec: Recorder, iterable: Any) -> Iterator[Any]:
    """What `over` gives, for an operator that looks at one value after the other: each is taken
    once."""
    iterator = rec.once(iter, (over(rec, iterable),))
    while True:
        try:
            value = rec.once(next, (iterator,))
        except StopIteration:
            return
        yield value


Parts = tuple[Any, ...]
"""How a target takes a value apart, an entry for each target in it: `()` a whole value, "*" the
rest, or parts again."""


def each(rec: Recorder, iterable: Any, parts: Parts) -> Any:
    """What a loop should iterate over whose target takes each value apart."""
    for value in over(rec, iterable):
        yield rec.safely(
            functools.partial(unpacked, rec, value, parts), functools.partial(_itself, value)
        )


def _itself(value: Any) -> Any:
    return value


def unpacked(rec: Recorder, value: Any, parts: Parts) -> Any:
    """What a target with these parts should take apart instead of `value`."""
    taken = over(rec, value)
    if not any(part and part != "*" for part in parts):
        return taken
    taken = rec.once(list, (taken if "*" in parts else itertools.islice(taken, len(parts) + 1),))
    return [
        unpacked(rec, inner, part) if part and part != "*" else inner
        for inner, part in _matched(taken, parts)
    ]


def _matched(values: list[Any], parts: Parts) -> Iterator[tuple[Any, Any]]:
    """Each value with its part; where there are too many or too few, Python is to raise."""
    if "*" in parts:
        star, rest = parts.index("*"), len(values) - len(parts) + 1
        parts = (*parts[:star], *["*"] * rest, *parts[star + 1 :])
    return itertools.zip_longest(values, parts[: len(values)], fillvalue="*")


class Entered:
    """A context manager, what it gives taken apart by a target with `parts`."""

    def __init__(self, rec: Recorder, manager: Any, parts: Parts) -> None:
        self._rec, self._manager, self._parts = rec, manager, parts

    def __enter__(self) -> Any:
        value = type(self._manager).__enter__(self._manager)
        return self._rec.safely(
            functools.partial(unpacked, self._rec, value, self._parts),
            functools.partial(_itself, value),
        )

    def __exit__(self, *error: Any) -> Any:
        return type(self._manager).__exit__(self._manager, *error)


def unpack_and_keep(rec: Recorder, value: Any, targets: tuple[Parts, ...]) -> None:
    """`value` is kept, and taken apart by some targets as well."""
    for parts in targets:
        if over(rec, value) is not value:
            rec.stop(catalogue.UNSUPPORTED, "what is unpacked and kept iterates in Python")
        elif isinstance(value, list | tuple):
            for inner, part in _matched(list(value), parts):
                if part and part != "*":
                    unpack_and_keep(rec, inner, (part,))


def pairs(rec: Recorder, mapping: Any) -> Any:
    """What `**mapping` should take apart, as Python does: a dict that iterates like one as it lies,
    anything else by its `keys` and items."""
    if not isinstance(mapping, dict) or python_method(rec, mapping, "__iter__") is not None:
        keys = python_method(rec, mapping, "keys")
        if keys is not None:
            found = over(rec, rec.call(keys, (mapping,), {}))
            return {key: items.load(rec, mapping, key) for key in found}
    items.guard_structure(rec, mapping)
    return mapping


def stored(rec: Recorder, obj: Any, key: Any, value: Any) -> Any:
    """What `obj[key] = value` takes: of a slice of a list, what iterating over `value` gives."""
    if not isinstance(key, slice) or not isinstance(obj, list):
        return value
    taken = over(rec, value)
    return taken if taken is value else rec.once(list, (taken,))


LAZY = (types.GeneratorType, map, filter, zip, enumerate)


def used_up(rec: Recorder, iterable: Any) -> Any:
    """What code that is not rewritten will iterate over: an iterator is run here, so that what it
    gives is seen."""
    if not isinstance(iterable, LAZY):
        return iterable
    return rec.once(list, (over(rec, iterable),))


def _iterator(rec: Recorder, iterator: Any) -> Any:
    """An iterator from outside is used up by reading it: only eager may do so."""
    if isinstance(iterator, types.GeneratorType):
        known = rec.known.path_of(iterator) is not None
        if known or not rec.rewriter.is_rewritten(iterator.gi_code):
            rec.stop(
                catalogue.UNSUPPORTED, f"generator {iterator.__name__} was not made in the call"
            )
    elif rec.known.path_of(iterator) is not None:
        rec.stop(
            catalogue.UNSUPPORTED,
            f"an iterator from outside ({type(iterator).__name__}) is advanced",
        )
    return iterator


def is_iterator_method(function: Any) -> bool:
    """`send`, `throw` or `close` of a generator, `__next__` of it or another iterator in C."""
    owner = owner_of(function)
    wrapper = type(function) is types.MethodWrapperType and function.__name__ == "__next__"
    return type(owner) is types.GeneratorType or (wrapper and isinstance(owner, Iterator))


def call_iterator_method(
    rec: Recorder, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    _iterator(rec, function.__self__)
    return rec.once(function, args, kwargs)


def advance(rec: Recorder, iterator: Any, *default: Any) -> Any:
    """`next(iterator)`."""
    method = python_method(rec, iterator, "__next__")
    if method is not None:
        try:
            return rec.call(method, (iterator,), {})
        except StopIteration:
            if default:
                return default[0]
            raise
    return rec.once(next, (_iterator(rec, iterator), *default))
