"""Backwards that could not be built, by the core operators of their graph.

Where the call can be made again, that is the fallback (`second_runs`): it is eager's own backward.
What a call writes can be too large for a copy, though, and then only what was saved is left.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.fx import Graph, GraphModule

from ...runtime import diagnostics
from ...runtime.errors import DynfixError
from ..graph.graph_modules import graph_module


class _Now(threading.local):
    place: str | None = None


_now = _Now()


@contextmanager
def without_second_run(place: str | None) -> Iterator[None]:
    """While a backward runs of a call that cannot be made again: a program that cannot be built is
    made of operators. `place`: the user's line; None where the call can be made again."""
    before, _now.place = _now.place, place
    try:
        yield
    finally:
        _now.place = before


def tell(error: Exception, place: str) -> None:
    """Say why a backward runs in eager."""
    own = isinstance(error, DynfixError)
    reason = str(error) if own else f"{type(error).__name__}: {error}"
    diagnostics.log.debug("a backward could not be built", exc_info=error)
    diagnostics.warn_once(
        "backward", f"a backward runs in eager: {reason} ({place})", reason + place
    )


def built_or_run(graph: GraphModule, build: Callable[[GraphModule], Any]) -> Any:
    """`build(graph)`, or a program of operators, if only that can serve. Raises as `build`."""
    place = _now.place
    if place is None:
        return build(graph)
    copied = Graph()
    copied.output(copied.graph_copy(graph.graph, {}))
    pristine = graph_module(graph, copied)
    try:
        return build(graph)
    except DynfixError as error:
        tell(error, place)
        return _Operators(pristine)


class _Operators:
    _boxed_call = True

    def __init__(self, graph: GraphModule) -> None:
        self._graph = graph

    def __call__(self, arguments: list[Any]) -> Any:
        given = list(arguments)
        arguments.clear()
        with torch.no_grad():
            return torch.fx.Interpreter(self._graph).run(*given)
