"""Sizes that a backward needs beyond those that it is given: the forward saves them.

torch's partition saves sizes that are inputs of a graph, which ours are not: they are read of its
tensors. The stride of a gradient along an axis of one element is any number.
"""

from collections.abc import Iterator
from typing import Any

import sympy
import torch
from torch.fx import Graph, GraphModule, Node

from ..loops.symint import GraphSymbols

_SIZE = torch.ops.aten.sym_size.int


def with_sizes(forward: GraphModule, backward: GraphModule) -> None:
    given = backward.graph.find_nodes(op="placeholder")
    values = [(node.name, node.meta.get("val")) for node in given]
    known = {symbol for _, value in values for symbol in _symbols(value)}
    if not known:
        return
    needed = {s for node in backward.graph.nodes for s in _symbols(node.meta.get("val"))}
    sure = GraphSymbols(values).sure
    missing = needed - sure
    sources = {
        size: where
        for size, where in _sizes(forward.graph)
        if size not in sure and size.free_symbols & missing
    }
    for size in sorted(sources, key=str):
        _save(sources[size], forward.graph, backward.graph)
    if sources:
        forward.recompile()
        backward.recompile()


def _save(size: tuple[Node, int], forward: Graph, backward: Graph) -> None:
    """As the last result of the forward, and the last of the numbers that the backward takes."""
    tensor, axis = size
    value = tensor.meta["val"].shape[axis]
    output = forward.output_node()
    with forward.inserting_before(output):
        made = forward.call_function(_SIZE, size)
    made.meta["val"] = value
    output.args = ((*output.args[0], made),)  # type: ignore[misc]
    given = backward.find_nodes(op="placeholder")
    first = next(node for node in given if not isinstance(node.meta.get("val"), torch.SymInt))
    with backward.inserting_before(first):
        backward.placeholder(made.name).meta["val"] = value


def _sizes(graph: Graph) -> Iterator[tuple[sympy.Expr, tuple[Node, int]]]:
    """Of the inputs: symbols, or what a call before made of them."""
    for node in graph.find_nodes(op="placeholder"):
        value = node.meta.get("val")
        for axis, size in enumerate(value.shape if isinstance(value, torch.Tensor) else ()):
            if isinstance(size, torch.SymInt):
                yield size.node.expr, (node, axis)


def _symbols(value: Any) -> Iterator[sympy.Symbol]:
    if isinstance(value, torch.SymInt):
        yield from value.node.expr.free_symbols
    elif isinstance(value, torch.Tensor):
        for number in (*value.shape, *(value.stride() if value.layout == torch.strided else ())):
            yield from _symbols(number)
    elif isinstance(value, tuple | list):
        for each in value:
            yield from _symbols(each)
