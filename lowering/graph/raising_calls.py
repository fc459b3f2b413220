"""Operators that raise for what some tensors hold: they are called though nobody needs the result,
as in eager."""

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch.fx import Graph, Node
from torch.fx import node as fx_node

from ..opinfo import having

aten: Any = torch.ops.aten


def _overloads(names: frozenset[str]) -> frozenset[Any]:
    packets = [getattr(aten, name) for name in names if hasattr(aten, name)]
    return frozenset(getattr(packet, o) for packet in packets for o in packet.overloads())


# Of floats, division by zero raises nothing: the loops of these are dropped.
RAISING = _overloads(having("raises_by_position", "raises_by_value", "raises_by_zero"))


class _Compiling(threading.local):
    """Which operators this thread's graphs keep besides torch's own."""

    kept: frozenset[Any] = frozenset()


_compiling = _Compiling()


class _SideEffects(set[Any]):
    """torch's set of what is called though nobody needs the result, which it asks wherever it drops
    nodes. It belongs to the process; what is added while one thread compiles must neither reach
    nor be taken from another."""

    def __contains__(self, target: object) -> bool:
        return super().__contains__(target) or target in _compiling.kept


fx_node._side_effectful_functions = _SideEffects(fx_node._side_effectful_functions)


@contextmanager
def _keeping(operators: frozenset[Any]) -> Iterator[None]:
    before, _compiling.kept = _compiling.kept, operators
    try:
        yield
    finally:
        _compiling.kept = before


@contextmanager
def raising_calls() -> Iterator[None]:
    """Inside, graphs keep the calls of these operators."""
    with _keeping(RAISING):
        yield


def as_any_other(graph: Graph) -> AbstractContextManager[None]:
    """Inside, what these operators give may be computed again, or saved, as suits memory: unless
    the graph has one that nobody needs, which would be dropped."""
    unneeded = any(node.target in RAISING and not node.users for node in graph.nodes)
    return nullcontext() if unneeded else _keeping(frozenset())


def without_repeated(backward: Graph) -> None:
    """Drop the calls that a forward makes, too, and that nobody needs in the backward."""
    backward.eliminate_dead_code(lambda node: node.is_impure() and not _is_repeated(node))


def _is_repeated(node: Node) -> bool:
    return node.target in RAISING and node.meta.get("partitioner_tag") != "is_backward"


def drop_unneeded(graph: Graph) -> None:
    """Drop all calls that nobody needs, even those that may raise."""
    graph.eliminate_dead_code(lambda node: node.is_impure() and node.target not in RAISING)
