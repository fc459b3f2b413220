"""Writes under a mask of a value that is differentiated (`x[mask] = token`).

The gradient of such a value is the sum of the elements that the mask picks, whose number only data
tells. Written as a choice between the value and the old content, it has a form of a known size.
"""

import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

from ..graph_modules import graph_module


def choose_under_masks(gm: GraphModule, examples: Sequence[Any]) -> GraphModule:
    """The graph with its writes as calls that look for such masks; itself where nothing is
    differentiated."""
    differentiated = any(isinstance(e, torch.Tensor) and e.requires_grad for e in examples)
    if not differentiated or not any(map(_write_of, gm.graph.nodes)):
        return gm
    made = graph_module(gm, Graph())
    made.graph.output(made.graph.graph_copy(gm.graph, {}))
    for node in made.graph.nodes:
        write = _write_of(node)
        if write is not None:
            node.op, node.target = "call_function", write
    made.recompile()
    return made


def _write_of(node: Node) -> Any:
    if node.op == "call_function":
        return _FUNCTIONS.get(node.target)
    return _METHODS.get(node.target) if node.op == "call_method" else None


def write(x: torch.Tensor, index: Any, value: Any) -> None:
    """`x[index] = value`; these run while the graph is traced."""
    mask = _mask(x, index, value)
    if mask is None:
        x[index] = value
    else:
        x.copy_(torch.where(mask, value.to(x.dtype), x))


def put_(x: torch.Tensor, indices: Any, values: Any, accumulate: bool = False) -> torch.Tensor:
    mask = None if accumulate else _mask(x, indices, values)
    if mask is None:
        return x.index_put_(indices, values, accumulate)
    return x.copy_(torch.where(mask, values, x))


def put(x: torch.Tensor, indices: Any, values: Any, accumulate: bool = False) -> torch.Tensor:
    return put_(x.clone(), indices, values, accumulate)


def _mask(x: torch.Tensor, index: Any, value: Any) -> torch.Tensor | None:
    """The mask in the shape of `x`, if there is one, and the value is differentiated and not longer
    for more elements that are picked."""
    if isinstance(index, list | tuple) and len(index) == 1:
        (index,) = index
    if not all(isinstance(each, torch.Tensor) for each in (index, value)):
        return None
    rest = x.dim() - index.dim()
    one_for_all = value.dim() <= rest or (value.dim() == rest + 1 and value.shape[0] == 1)
    if index.dtype is not torch.bool or not value.requires_grad or not one_for_all:
        return None
    return index.reshape(*index.shape, *(1,) * rest) if index.device == x.device else None


_FUNCTIONS: dict[Any, Any] = {operator.setitem: write, torch.index_put: put, torch.index_put_: put_}
_METHODS: dict[Any, Any] = {"index_put": put, "index_put_": put_}
