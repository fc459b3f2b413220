"""What a core-ATen graph computes of constants alone: once, when it is compiled. Masks that models
fill slice by slice are such (`mask[:, :3] = 1`), with numbers that lie on the host."""

from __future__ import annotations

from operator import attrgetter
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Interpreter, Node
from torch.utils._python_dispatch import _disable_current_modes

from .backward_slice import needed
from .graph_modules import graph_module

aten = torch.ops.aten
_MAX_VALUE_BYTES = 1 << 24  # bytes of one value
# What makes it worth while: the rest of what is made of constants costs less to compute than to
# load.
_WRITES = frozenset(
    (
        aten.slice_scatter.default,
        aten.select_scatter.default,
        aten.index_put.default,
        aten.scatter.src,
        aten.scatter.value,
        aten.lift_fresh_copy.default,
    )
)
_UNKNOWN = frozenset(
    (aten.empty.memory_format, aten.empty_strided.default, aten.empty_like.default)
)


def fold_constants(gm: GraphModule, returned: int) -> GraphModule:
    """The graph with these values as attributes; itself where there are none. Its first `returned`
    outputs are not: each call makes them anew."""
    constant = _constants(gm.graph)
    fresh = set(_leaves(gm.graph.output_node().args[0])[:returned])
    chosen = [n for n in constant if n not in fresh and _is_read(n, constant) and _pays(n)]
    if not chosen:
        return gm
    values = _evaluated(gm, chosen)
    graph, copies, held = Graph(), dict[Node, Node](), dict[str, Any]()
    for node in gm.graph.nodes:
        if node in values:
            copies[node] = graph.create_node("get_attr", f"folded{len(copies)}")
            copies[node].meta.update(node.meta)
            held[str(copies[node].target)] = values[node]
        else:
            copies[node] = graph.node_copy(node, copies.__getitem__)
            if node.op == "get_attr":
                held[str(node.target)] = attrgetter(str(node.target))(gm)
    graph.eliminate_dead_code()
    return graph_module(held, graph)


def _constants(graph: Graph) -> dict[Node, None]:
    """Nodes that need no input, draw nothing and write nothing."""
    found: dict[Node, None] = {}
    for node in graph.nodes:
        if node.op == "get_attr" or (
            node.op == "call_function"
            and _is_certain(node.target)
            and all(source in found for source in node.all_input_nodes)
        ):
            found[node] = None
    return found


def _is_certain(target: Any) -> bool:
    if not isinstance(target, torch._ops.OpOverload) or target in _UNKNOWN:
        return False
    return (
        target.namespace == "aten"
        and not target._schema.is_mutable
        and torch.Tag.nondeterministic_seeded not in target.tags
    )


def _is_read(node: Node, constant: dict[Node, None]) -> bool:
    """Whether something that is no constant reads the node, which is a tensor of modest size."""
    value = node.meta.get("val")
    if node.op == "get_attr" or not isinstance(value, torch.Tensor):
        return False
    small = value.layout == torch.strided and value.numel() * value.itemsize <= _MAX_VALUE_BYTES
    return small and any(user not in constant for user in node.users)


def _pays(node: Node) -> bool:
    return any(each.target in _WRITES for each in needed([node]))


def _evaluated(gm: GraphModule, chosen: list[Node]) -> dict[Node, torch.Tensor]:
    wanted, interpreter = needed(chosen), Interpreter(gm)
    with _disable_current_modes(), torch.no_grad():
        for node in gm.graph.nodes:
            if node in wanted:
                interpreter.env[node] = interpreter.run_node(node)
        return {node: _laid_out(interpreter.env[node], node.meta["val"]) for node in chosen}


def _laid_out(value: torch.Tensor, expected: torch.Tensor) -> torch.Tensor:
    """Memory of its own, with the strides that the graph's readers count on. Elements that share
    memory, as those of an expanded tensor, still do."""
    strides = expected.stride()
    if value.stride() == strides and value.numel():
        reach = 1 + sum((n - 1) * step for n, step in zip(value.shape, strides, strict=True))
        whole = value.as_strided((reach,), (1,), value.storage_offset())
        return whole.clone().as_strided(value.shape, strides)
    made = torch.empty_strided(value.shape, strides, dtype=value.dtype, device=value.device)
    return made.copy_(value)


def _leaves(outputs: Any) -> list[Any]:
    return list(outputs) if isinstance(outputs, list | tuple) else [outputs]
