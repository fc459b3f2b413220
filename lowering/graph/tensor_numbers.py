"""Operators given a tensor where they take a number (`addcdiv(value=t)`, `add(alpha=t)`, as
torch.optim writes its steps under compilation, `batch_norm(momentum=t)`), or numbers
(`torch.tensor([t, 2])`): written out, since the number would be read on the host."""

import functools
from collections.abc import Sequence
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

from . import tensor_lists
from .graph_modules import graph_module

_Tensors = Sequence[torch.Tensor]
_COMBINED: dict[str, Any] = {"addcdiv": torch.div, "addcmul": torch.mul}
_LISTS = (
    torch._foreach_addcdiv,
    torch._foreach_addcmul,
    torch._foreach_addcdiv_,
    torch._foreach_addcmul_,
)
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
        named = node.kwargs.get("scalars", node.kwargs.get("value"))
        number = node.args[3] if len(node.args) > 3 else named
    else:
        number = node.kwargs.get(_NUMBERS.get(_name(node).rstrip("_"), ""))
    return number if isinstance(number, Node) else None


def _write_out(graph: Graph, node: Node, number: Node) -> None:
    name, call = _name(node), graph.call_function
    kind = name.rstrip("_")
    with graph.inserting_before(node):
        if node.target in _WEIGHTED:
            written = call(weighted_list, (name, *node.args[:2], number))
        elif node.target in _LISTS:
            for_all = number is node.kwargs.get("value")  # or one for each tensor of the lists
            parts = number if for_all else graph.call_method("unbind", (number,))
            written = call(scaled_in_list, (name, *node.args[:3], parts))
        elif node.target in _ADDED:
            written = call(scaled_in_list, (name, *node.args[:2], None, number))
        elif kind == "batch_norm":
            written = _write_out_averages(graph, node, number)
        else:
            second = node.args[2] if kind in _COMBINED else None
            written = call(scaled, (name, *node.args[:2], second, number))
    written.meta.update(node.meta)
    node.replace_all_uses_with(written)
    graph.erase_node(node)


def weighted_list(
    name: str, into: _Tensors, ends: _Tensors, weight: torch.Tensor
) -> list[torch.Tensor]:
    """`_foreach_lerp(into, ends, weight)` or `_foreach_lerp_`, of which halves are rounded once.
    Runs while the graph is traced."""
    made = []
    for start, end in zip(into, ends, strict=True):
        wide = _wide(start)
        value = wide.lerp(end.to(wide.dtype), weight.to(wide.dtype)).to(start.dtype)
        made.append(start.copy_(value) if name.endswith("_") else value)
    return made


def scaled_in_list(
    name: str, into: _Tensors, first: _Tensors, second: _Tensors | None, numbers: Any
) -> list[torch.Tensor]:
    """`scaled` for each tensor of the lists; `numbers`: one for all, or one for each."""
    numbers = [numbers] * len(into) if isinstance(numbers, torch.Tensor) else numbers
    seconds = [None] * len(into) if second is None else second
    rows = zip(into, first, seconds, numbers, strict=True)
    return [scaled(name.removeprefix("_foreach_"), *row) for row in rows]


def scaled(
    name: str,
    into: torch.Tensor,
    first: torch.Tensor,
    second: torch.Tensor | None,
    number: torch.Tensor,
) -> torch.Tensor:
    """`add(into, first, alpha=number)` or `addcdiv(into, first, second, value=number)` and their
    like, of which halves are rounded once. Run while the graph is traced."""
    kind = name.rstrip("_")
    dtype = functools.reduce(
        torch.promote_types,
        (torch.result_type(into, other) for other in (first, second) if other is not None),
    )
    if second is None and into.device.type == "cpu":  # whose kernels round alpha first
        number = number.to(dtype)
    change = _wide(first) if second is None else _COMBINED[kind](_wide(first), second)
    change = -change * number if kind == "sub" else change * number
    return into.add_(change) if name.endswith("_") else (into + change).to(dtype)


def _wide(operand: torch.Tensor) -> torch.Tensor:
    halves = isinstance(operand, torch.Tensor) and operand.dtype in (torch.bfloat16, torch.float16)
    return operand.float() if halves else operand


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
