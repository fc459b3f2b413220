"""Random numbers that nothing needs are drawn all the same: the generator's next ones follow."""

import operator

from torch.fx import Graph, GraphModule, Node

from .backward_slice import needed
from .graph_modules import graph_module


def keep_dead_rng(gm: GraphModule) -> tuple[GraphModule, int]:
    """The graph, whose output is a tuple, with the results of draws that no output needs as further
    outputs, and their number: AOTAutograd would drop them. `meta["draws"]` of a node says what it
    gives, a tensor or several, if it may draw."""
    output = next(node for node in reversed(gm.graph.nodes) if node.op == "output")
    used = needed([output])
    lone = [node for node in gm.graph.nodes if "draws" in node.meta and node not in used]
    if not lone:
        return gm, 0
    graph, copies = Graph(), dict[Node, Node]()
    outputs = graph.graph_copy(gm.graph, copies)
    graph.output((*outputs, *(_detached(graph, copies[node]) for node in lone)))  # type: ignore[misc]
    return graph_module(gm, graph), len(lone)


def _detached(graph: Graph, node: Node) -> Node:
    if node.meta["draws"] != "tensor":
        node = graph.call_function(operator.getitem, (node, 0))
    return graph.call_method("detach", (node,))
