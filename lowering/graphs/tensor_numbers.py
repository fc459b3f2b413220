"""Operators given a tensor where they take a number (`addcdiv(value=t)`, `add(alpha=t)`, as
torch.optim writes its steps under compilation, `batch_norm(momentum=t)`), or numbers
(`torch.tensor([t, 2])`): written out, since the number would be read on the host."""

from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

from ..graph_modules import graph_module
from . import tensor_lists

_SCALED: dict[str, Any] = {"addcdiv": torch.div, "addcmul": torch.mul}
_LISTS: dict[Any, tuple[Any, Any]] = {  # how two elements are combined, and what adds it
    torch._foreach_addcdiv: (torch._foreach_div, torch._foreach_add),
    torch._foreach_addcmul: (torch._foreach_mul, torch._foreach_add),
    torch._foreach_addcdiv_: (torch._foreach_div, torch._foreach_add_),
    torch._foreach_addcmul_: (torch._foreach_mul, torch._foreach_add_),
}
_WEIGHTED = (torch._foreach_lerp, torch._foreach_lerp_)
_ADDED = (torch._foreach_add, torch._foreach_add_)
_NUMBERS = {
    "batch_norm": "momentum",
    **{"addcdiv": "value", "addcmul": "value"},
    **dict.fromkeys(("add", "sub", "_foreach_add"), "alpha"),
}


def write_out_numbers(gm: GraphModule) -> GraphModule:
    """The graph with those calls as products and sums, and stacks."""
    if not any(_number_of(each) or tensor_lists.reads_parts(each) for each in gm.graph.nodes):
        return gm
    made = graph_module(gm, Graph())
    made.graph.output(made.graph.graph_copy(gm.graph, {}))
    for node in list(made.graph.nodes):
        number = _number_of(node)
        if number is not None:
            _write_out(made.graph, node, number)
        elif tensor_lists.reads_parts(node):
            node.target = tensor_lists.made_of
    made.recompile()
    return made


def _name(node: Node) -> str:
    target = node.target
    return target if isinstance(target, str) else getattr(target, "__name__", "")


def _number_of(node: Node) -> Any:
    """The tensor that stands for a number, or for the numbers of a list; None if there is none."""
    if node.op not in ("call_method", "call_function"):
        return None
    if node.target in _WEIGHTED:
        number = node.args[2] if len(node.args) > 2 else None
    elif node.target in _LISTS:
        number = node.args[3] if len(node.args) > 3 else node.kwargs.get("scalars")
    else:
        number = node.kwargs.get(_NUMBERS.get(_name(node).rstrip("_"), ""))
    return number if isinstance(number, Node) else None


def _write_out(graph: Graph, node: Node, number: Node) -> None:
    name, call = _name(node), graph.call_function
    kind = name.rstrip("_")
    with graph.inserting_before(node):
        if node.target in _WEIGHTED:
            weights = [number] * len(node.args[0])  # type: ignore[arg-type]
            written = call(node.target, (*node.args[:2], weights))
        elif node.target in _LISTS:
            combined, added = _LISTS[node.target]
            parts = graph.call_method("unbind", (number,))  # one for each tensor of the lists
            change = call(torch._foreach_mul, (call(combined, node.args[1:3]), parts))
            written = call(added, (node.args[0], change))
        elif node.target in _ADDED:
            change = call(torch._foreach_mul, (node.args[1], number))
            written = call(node.target, (node.args[0], change))
        elif kind == "batch_norm":
            written = _write_out_averages(graph, node, number)
        else:
            given: Any = call(_SCALED[kind], node.args[1:3]) if kind in _SCALED else node.args[1]
            change = call(torch.mul, (given, number))
            outcome = "sub" if kind == "sub" else "add"
            written = graph.call_method(outcome + "_" * name.endswith("_"), (node.args[0], change))
    written.meta.update(node.meta)
    node.replace_all_uses_with(written)
    graph.erase_node(node)


def _write_out_averages(graph: Graph, node: Node, number: Node) -> Node:
    """A norm over the batch, whose statistics alone come from averages that start anew; the running
    ones are moved towards these."""
    running = node.args[1:3]
    fresh = [graph.call_function(torch.zeros_like, (each,)) for each in running]
    given = {**node.kwargs, "momentum": 1.0}
    written = graph.call_function(node.target, (node.args[0], *fresh), given)  # type: ignore[arg-type]
    rest = graph.call_function(torch.rsub, (number, 1))
    for each, batch in zip(running, fresh, strict=True):
        kept = graph.call_function(torch.mul, (each, rest))
        moved = graph.call_function(torch.mul, (batch, number))
        graph.call_method("copy_", (each, graph.call_function(torch.add, (kept, moved))))
    return written
