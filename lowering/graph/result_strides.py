"""Results in the order of memory that eager gave them.

Meta functions and decompositions say of some operators (`one_hot` and `max_pool1d` of a transposed
tensor, `copysign` with a number) that they give another one. A recorder notes the strides and the
dtype of what leaves a graph, and of what that is a view of, as they were made; where a traced
result has other strides, the graph copies it; where it has another dtype, nothing is compiled.
"""

import operator
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

from ...runtime.errors import LoweringError
from ..opinfo import having
from .graph_modules import graph_module

NOTED = "layout"  # of a node: strides, a tuple of integers, and dtype of its result, if known

ASKING = having("asks_strides")


def asks_for_strides(node: Node) -> bool:
    return name_of(node) in ASKING


def reads_by_strides(node: Node) -> bool:
    """Whether elements are found by their places in memory."""
    return name_of(node).startswith("as_strided")


def name_of(node: Node) -> str:
    return getattr(node.target, "__name__", str(node.target))


def keep_result_strides(gm: GraphModule, examples: Sequence[Any]) -> GraphModule:
    """The graph with what strides are noted of in these; itself where there are none."""
    if not any(NOTED in node.meta for node in gm.graph.nodes):
        return gm
    graph, copies = Graph(), dict[Node, Node]()
    graph.output(graph.graph_copy(gm.graph, copies))
    for node in copies.values():
        if NOTED in node.meta:
            with graph.inserting_after(node):
                laid_out = graph.call_function(as_recorded, (node, *node.meta[NOTED]))
            laid_out.meta.update(node.meta)
            node.replace_all_uses_with(laid_out, partial(operator.is_not, laid_out))
    return graph_module(gm, graph)


def as_recorded(result: Any, strides: tuple[int, ...], dtype: torch.dtype) -> Any:
    """The result itself, or a copy in these strides; where sizes are symbols, in their order. Runs
    while the graph is traced. Raises LoweringError for another dtype."""
    if not isinstance(result, torch.Tensor) or result.dim() != len(strides):
        return result
    if result.dtype is not dtype:
        raise LoweringError(f"an operator gives {dtype}, where its fake form says {result.dtype}")
    if result._has_symbolic_sizes_strides:
        return _in_order(result, strides)
    axes = zip(result.shape, result.stride(), strides, strict=True)
    if all(size == 1 or is_ == noted for size, is_, noted in axes):
        return _with_unit_axis_strides(result, strides)
    if result.numel() == 0 or overlaps(result.shape, strides):
        return result
    made = result.new_empty_strided(result.shape, strides)
    return made.copy_(result)


def copied_with_gaps(result: torch.Tensor) -> torch.Tensor:
    """A copy that leaves out of its memory what the result does; `clone` closes gaps."""
    return result.new_empty_strided(result.shape, result.stride()).copy_(result)


def _with_unit_axis_strides(result: torch.Tensor, strides: Sequence[Any]) -> torch.Tensor:
    """The result with these strides along axes of one element, by which later operators tell
    whether channels are last, where views can give them."""
    for axis, wanted in enumerate(strides):
        if not _is_unit_axis(result.shape[axis]) or str(result.stride(axis)) == str(wanted):
            continue
        others = result.squeeze(axis)
        spans = [n * step for n, step in zip(others.shape, others.stride(), strict=True)]
        places = [place for place, span in enumerate([*spans, 1]) if str(span) == str(wanted)]
        if places:
            result = others.unsqueeze(places[0]).movedim(places[0], axis)
    return result


def _in_order(result: torch.Tensor, strides: tuple[int, ...]) -> torch.Tensor:
    """The result itself, or a dense copy with its axes in the order of these strides, if they are
    those of a dense tensor of the recorded sizes."""
    hints = [size.node.hint if isinstance(size, torch.SymInt) else size for size in result.shape]
    if None in hints or 0 in hints or not is_dense(hints, strides):
        return result
    wanted: dict[int, Any] = {}
    step: Any = 1
    for axis in sorted(range(len(hints)), key=lambda axis: (strides[axis], hints[axis])):
        wanted[axis], step = step, step * result.shape[axis]
    placed = [wanted[axis] for axis in range(len(hints))]
    axes = zip(hints, result.stride(), placed, strict=True)
    if all(size == 1 or str(is_) == str(step) for size, is_, step in axes):
        return _with_unit_axis_strides(result, placed)
    return result.new_empty_strided(result.shape, placed).copy_(result)


def _is_unit_axis(size: int | torch.SymInt) -> bool:
    return isinstance(size, int) and size == 1


def in_order_of(strides: Sequence[int], shape: Sequence[int]) -> tuple[int, ...]:
    """Strides of a dense tensor whose axes lie in memory in the order of those of another one."""
    made, step = [0] * len(shape), 1
    for axis in sorted(range(len(shape)), key=lambda axis: (strides[axis], -axis)):
        made[axis] = step
        step *= max(shape[axis], 1)
    return tuple(made)


def overlaps(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether elements may lie in one place; gaps between them (part of a wider tensor, the real
    parts of complex numbers) do not count."""
    reach = 1
    for size, step in sorted(zip(shape, strides, strict=True), key=operator.itemgetter(1)):
        if size > 1 and step < reach:
            return True
        reach += step * (size - 1)
    return False


def is_dense(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether each element has a place of its own, and no place is left out."""
    expected = 1
    for step, size in sorted(zip(strides, shape, strict=True)):
        if size != 1:
            if step != expected:
                return False
            expected *= size
    return True
