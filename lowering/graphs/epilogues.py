"""Products whose activation the GPU's library applies before it writes the result."""

from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

from ..lowerings.lower_products import DEVICES, wants_alignment

aten = torch.ops.aten


def join_activations(gm: GraphModule) -> GraphModule:
    """The graph with `relu(addmm(bias, a, b))` as one call on GPUs: the same values, NaN included,
    without another pass over them."""
    graph: Graph = gm.graph
    for node in list(graph.nodes):
        product = node.args[0] if node.target is aten.relu.default else None
        if isinstance(product, Node) and _is_simple(product):
            with graph.inserting_before(node):
                made = graph.call_function(aten._addmm_activation.default, product.args)
            made.meta.update(node.meta)
            node.replace_all_uses_with(made)
            graph.erase_node(node)
            graph.erase_node(product)
    return gm


def _is_simple(node: Node) -> bool:
    """Whether the node is a product with a vector added to each row, which one node reads, in a
    type that the library's epilogues know."""
    value: Any = node.meta.get("val")
    if node.target is not aten.addmm.default or node.kwargs or len(node.users) != 1:
        return False
    if value.device.type not in DEVICES or not value.dtype.is_floating_point:
        return False
    bias: Any = node.args[0]
    narrow = value.dtype is not torch.float64 and bias.meta["val"].dim() == 1
    return narrow and not wants_alignment(node)
