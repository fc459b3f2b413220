"""Tensors of one number on the host that operators of a GPU take (an optimizer's step count, and
what is made of it): moved by one copy a call, since kernels read memory of their own device.

Each number stands there four times in a row or more, so that its address is as even as others'.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node, map_arg

from .graph.backward_slice import needed
from .loops.kernel_graph import KERNEL_DTYPES
from .lowerings.registry import LOWERINGS

aten = torch.ops.aten
_LIBRARY: Any = torch.library.Library("dynfix", "FRAGMENT")  # type: ignore[no-untyped-call]
_LIBRARY.define("to_gpu(Tensor numbers, Device device) -> Tensor")
_LIBRARY.define("apart(Tensor numbers, int step) -> Tensor[]")  # memory of `numbers`

_EVEN = 16  # bytes
_captured: list[torch.Tensor] = []  # what a graph of the user's reads at each replay


def _to_gpu(numbers: torch.Tensor, device: torch.device) -> torch.Tensor:
    """The copy is queued as kernels are: from memory that the device reads by itself, nobody
    waits."""
    if device.type != "cuda":
        return numbers.to(device, copy=True)
    read = numbers.pin_memory()
    if torch.cuda.is_current_stream_capturing():
        _captured.append(read)
    return read.to(device, non_blocking=True)


def _own_items(numbers: torch.Tensor, step: int) -> list[torch.Tensor]:
    return list(numbers[::step].unbind())


def _moved(numbers: torch.Tensor, device: torch.device) -> torch.Tensor:
    return numbers.new_empty(numbers.shape, device=device)


for _name, _made in (("to_gpu", _to_gpu), ("apart", _own_items)):
    _LIBRARY.impl(_name, _made, "CompositeExplicitAutograd")
torch.library.register_fake("dynfix::to_gpu", _moved, lib=_LIBRARY)
torch.library.register_fake("dynfix::apart", _own_items, lib=_LIBRARY)

TO_GPU, APART = torch.ops.dynfix.to_gpu.default, torch.ops.dynfix.apart.default


def move_host_scalars(gm: GraphModule) -> GraphModule:
    """The graph with such numbers moved, those of a type together; itself where there are none, or
    where they hang on what the GPU computes."""
    uses = [(node, source) for node in gm.graph.nodes for source in _host_scalars(node)]
    made_of = needed([source for _, source in uses])
    if not uses or not all(map(_is_of_host, made_of)):
        return gm
    numbers: dict[tuple[torch.device, torch.dtype], dict[Node, Node]] = {}
    for node, source in uses:
        numbers.setdefault(_kind(node, source), {})[source] = source
    last = _put_first(gm, made_of)
    for (device, _), found in numbers.items():
        found.update(_move(gm, last, device, list(found)))
    for node, source in uses:
        node.replace_input_with(source, numbers[_kind(node, source)][source])
    gm.recompile()
    return gm


def _kind(node: Node, source: Node) -> tuple[torch.device, torch.dtype]:
    return node.meta["val"].device, source.meta["val"].dtype


def _host_scalars(node: Node) -> list[Node]:
    """The numbers on the host among the operands of an operator of a GPU that works element by
    element."""
    target, value = node.target, node.meta.get("val")
    pointwise = isinstance(target, torch._ops.OpOverload) and torch.Tag.pointwise in target.tags
    if not pointwise or target not in LOWERINGS or not _is_on(value, "cuda"):
        return []
    return [source for source in node.all_input_nodes if _is_host_scalar(source.meta.get("val"))]


def _is_on(value: Any, kind: str) -> bool:
    return isinstance(value, torch.Tensor) and value.device.type == kind


def _is_host_scalar(value: Any) -> bool:
    return _is_on(value, "cpu") and value.dim() == 0 and value.dtype in KERNEL_DTYPES


def _is_of_host(node: Node) -> bool:
    """Whether what the node makes stays on the host, and is the same wherever it stands among
    others."""
    target, value = node.target, node.meta.get("val")
    draws = isinstance(target, torch._ops.OpOverload) and (
        torch.Tag.nondeterministic_seeded in target.tags or target._schema.is_mutable
    )
    return not draws and _is_on(value, "cpu")


def _put_first(gm: GraphModule, nodes: set[Node]) -> Node:
    """Put these nodes, which need one another alone, right behind the inputs; the last of them."""
    last: Node = [node for node in gm.graph.nodes if node.op == "placeholder"][-1]
    for node in [each for each in gm.graph.nodes if each in nodes]:
        if node.op != "placeholder":
            last.append(node)
            last = node
    return last


def _move(
    gm: GraphModule, last: Node, device: torch.device, numbers: Sequence[Node]
) -> dict[Node, Node]:
    """Each number on the device, behind the node `last`."""
    step = max(_EVEN // numbers[0].meta["val"].itemsize, 1)
    line = _Line(gm.graph, last)
    rows = [line.call(aten.expand.default, number, [step]) for number in numbers]
    moved = line.call(TO_GPU, line.call(aten.cat.default, rows), device)
    parts = line.call(APART, moved, step)
    return {number: line.call(operator.getitem, parts, k) for k, number in enumerate(numbers)}


class _Line:
    """Calls one behind the other, the first behind a node."""

    def __init__(self, graph: Graph, last: Node) -> None:
        self.graph, self.last = graph, last
        self.mode: Any = last.meta["val"].fake_mode

    def call(self, target: Any, *args: Any) -> Node:
        with self.graph.inserting_after(self.last):
            made = self.graph.call_function(target, args)
        values: Any = map_arg(args, lambda node: node.meta["val"])
        with self.mode:
            made.meta["val"] = target(*values)
        self.last = made
        return made
