"""Writes that functionalisation, or their gradient, has another form for.

Writes under a mask of a value that is differentiated (`x[mask] = token`): the gradient of such a
value is the sum of the elements that the mask picks, whose number only data tells. Written as a
choice between the value and the old content, it has a form of a known size.

Writes through views that stretch nothing: what was written to `x.expand(...)` comes to `x` as a sum
of differences, which rounds, overflows and is nothing that bools know. Such a view is another name
of `x`, or `x` with more axes of one element.
"""

import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

from .graph_modules import graph_module, with_calls


def choose_under_masks(gm: GraphModule, examples: Sequence[Any]) -> GraphModule:
    """The graph with its writes as calls that look for such masks; itself where nothing is
    differentiated."""
    differentiated = any(isinstance(e, torch.Tensor) and e.requires_grad for e in examples)
    return with_calls(gm, _write_of) if differentiated else gm


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


_aten = torch.ops.aten
_EXPANDING = frozenset(("expand", "expand_as", "broadcast_to"))
_EXPANSIONS: dict[Any, str] = {
    _aten.expand.default: "expand",
    _aten.broadcast_to.default: "broadcast_to",
    _aten.expand_as.default: "expand_as",
    torch.broadcast_to: "broadcast_to",
    torch.broadcast_tensors: "broadcast_tensors",
    torch.functional.broadcast_tensors: "broadcast_tensors",
}


def name_unstretched(gm: GraphModule, examples: Sequence[Any]) -> GraphModule:
    """The graph with its expansions as calls that look whether they stretch; itself where there are
    none, or nothing may be written through one."""
    if not any(map(_expansion, gm.graph.nodes)) or not any(map(_may_write, gm.graph.nodes)):
        return gm
    made = graph_module(gm, Graph())
    made.graph.output(made.graph.graph_copy(gm.graph, {}))
    for node in made.graph.nodes:
        if (name := _expansion(node)) is not None:
            expansion = expanded_together if name == "broadcast_tensors" else expanded
            if expansion is expanded:
                node.args = (name, *node.args)
            node.op, node.target = "call_function", expansion
    made.recompile()
    return made


def _expansion(node: Node) -> str | None:
    if node.op == "call_function":
        return _EXPANSIONS.get(node.target)
    return str(node.target) if node.op == "call_method" and node.target in _EXPANDING else None


def _may_write(node: Node) -> bool:
    if node.op not in ("call_function", "call_method"):
        return False
    name = getattr(node.target, "__name__", str(node.target)).split(".")[0]
    in_place = name.endswith("_") and not name.endswith("__")
    return in_place or name in ("setitem", "write", "out") or "out" in node.kwargs


def expanded(name: str, x: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    """`x.name(...)`; these run while the graph is traced."""
    return _named(x, getattr(x, name)(*args, **kwargs))


def expanded_together(*tensors: Any) -> tuple[torch.Tensor, ...]:
    if len(tensors) == 1 and not isinstance(tensors[0], torch.Tensor):
        tensors = tuple(tensors[0])
    broadcast: Any = torch.broadcast_tensors
    return tuple(map(_named, tensors, broadcast(*tensors)))


def _named(x: torch.Tensor, made: torch.Tensor) -> torch.Tensor:
    more = made.dim() - x.dim()
    if [*map(str, made.shape)] != ["1"] * more + [*map(str, x.shape)]:
        return made
    named: torch.Tensor = _aten.alias.default(x)
    for _ in range(more):
        named = named.unsqueeze(0)
    return named
