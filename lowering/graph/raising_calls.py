"""Operators that raise for what some tensors hold: they are called though nobody needs the result,
as in eager."""

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch.fx import Graph, Node
from torch.fx import node as fx_node

aten: Any = torch.ops.aten

_BY_POSITION = (
    *("index", "index_select", "gather", "take", "embedding", "put", "index_put", "scatter"),
    *("scatter_add", "scatter_reduce", "index_add", "index_copy", "index_fill", "index_reduce"),
    *("_embedding_bag", "_embedding_bag_forward_only", "max_unpool2d", "max_unpool3d"),
    *("nll_loss_forward", "nll_loss2d_forward", "multi_margin_loss"),
    *("multilabel_margin_loss_forward", "_ctc_loss"),
)
_BY_VALUE = (
    *("bincount", "histc", "masked_scatter", "binomial", "_linalg_eigh", "linalg_eig", "geqrf"),
    *("histogram", "histogramdd", "_histogramdd_bin_edges", "binary_cross_entropy"),
    *(
        "linalg_pinv",
        "_linalg_eigvals",
        "linalg_lstsq",
        "_linalg_svd",
        "cholesky",
        "linalg_ldl_solve",
    ),
)
_BY_ZERO = ("div", "floor_divide", "remainder", "fmod")  # of integers; loops of others are dropped


def _overloads(names: tuple[str, ...]) -> frozenset[Any]:
    packets = [getattr(aten, name) for name in names if hasattr(aten, name)]
    return frozenset(getattr(packet, o) for packet in packets for o in packet.overloads())


RAISING = _overloads(_BY_POSITION + _BY_VALUE + _BY_ZERO)


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
