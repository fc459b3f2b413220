"""C code that goes through objects of the user's and calls functions of theirs, while recording:
`itertools`, `bisect`, and builtins of the kind."""

import bisect
import itertools
from collections.abc import Callable
from typing import Any

from ..capture.nested import concretize
from ..capture.trace import Recorder
from . import c_calls, iteration

Tool = Callable[..., Any]


def over_all(function: Any, over: Any = iteration.over) -> Tool:
    """Goes through all its positional arguments."""

    def run(rec: Recorder, *iterables: Any, **kwargs: Any) -> Any:
        parts = tuple(over(rec, part) for part in iterables)
        return rec.once(function, parts, concretize(kwargs))

    return run


def over_first(function: Any, over: Any = iteration.over) -> Tool:
    """Goes through the first argument; numbers follow."""

    def run(rec: Recorder, iterable: Any, *args: Any, **kwargs: Any) -> Any:
        return rec.once(function, (over(rec, iterable), *concretize(args)), concretize(kwargs))

    return run


def set_of(kind: Any) -> Tool:
    """Asks what it is given for its hash, and whether it is equal."""

    def run(rec: Recorder, *iterables: Any) -> Any:
        values: list[Any] = [rec.once(list, (iteration.over(rec, each),)) for each in iterables]
        c_calls.check(rec, ("__hash__", "__eq__"), *values)
        return rec.once(kind, values)

    return run


def _by_callback(function: Any) -> Tool:
    """Calls its first argument with what the second gives."""

    def run(rec: Recorder, callback: Any, iterable: Any) -> Any:
        return function(_callback(rec, callback), iteration.over(rec, iterable))

    return run


def _with_callback(function: Any, name: str) -> Tool:
    """Calls its second argument, also by `name`, with what the first gives."""

    def run(rec: Recorder, iterable: Any, callback: Any = None, **kwargs: Any) -> Any:
        callback = kwargs.pop(name, callback)
        return function(iteration.over(rec, iterable), _callback(rec, callback), **kwargs)

    return run


def _search(function: Any) -> Tool:
    """Compares what lies in a sequence, or what a function makes of it."""

    def run(
        rec: Recorder, sequence: Any, value: Any, *args: Any, key: Any = None, **kwargs: Any
    ) -> Any:
        listed: list[Any] = rec.once(list, (iteration.over_whole(rec, sequence),))
        values, value = concretize([listed, value])
        if key is None:
            c_calls.check(rec, ("__lt__", "__gt__"), values, value)
        more = {**concretize(kwargs), "key": _callback(rec, key)}
        return rec.once(function, (values, value, *concretize(args)), more)

    return run


def _callback(rec: Recorder, callback: Any) -> Any:
    return None if callback is None else rec.rewriter.callback(rec, callback)


def _of_each(rec: Recorder, iterables: Any) -> Any:
    parts = iteration.over(rec, iterables)
    return itertools.chain.from_iterable(iteration.over(rec, part) for part in parts)


HANDLERS: dict[Any, Tool] = {
    bisect.bisect_left: _search(bisect.bisect_left),
    bisect.bisect_right: _search(bisect.bisect_right),
    itertools.chain.from_iterable: _of_each,
    itertools.product: over_all(itertools.product, iteration.over_whole),
    **{
        tool: over_all(tool)
        for tool in (itertools.chain, itertools.compress, itertools.zip_longest)
    },
    **{
        tool: over_first(tool, iteration.over_whole)
        for tool in (
            itertools.combinations,
            itertools.combinations_with_replacement,
            itertools.permutations,
        )
    },
    **{
        tool: over_first(tool)
        for tool in (itertools.cycle, itertools.islice, itertools.pairwise, itertools.tee)
    },
    **{
        tool: _by_callback(tool)
        for tool in (
            itertools.dropwhile,
            itertools.filterfalse,
            itertools.starmap,
            itertools.takewhile,
        )
    },
    itertools.accumulate: _with_callback(itertools.accumulate, "func"),
    itertools.groupby: _with_callback(itertools.groupby, "key"),
}
