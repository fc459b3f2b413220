"""Graph modules whose Python text is made when it is first asked for, or run: most are only
looked at as graphs."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node
from torch.fx._lazy_graph_module import _LazyGraphModule, _use_lazy_graph_module


def graph_module(root: torch.nn.Module | dict[str, Any], graph: Graph) -> GraphModule:
    """As `GraphModule(root, graph)`."""
    return _LazyGraphModule(root, graph)


def with_calls(gm: GraphModule, form: Callable[[Node], Any]) -> GraphModule:
    """The graph with each node that `form` gives a function for as a call of that; itself where
    there is none."""
    if not any(map(form, gm.graph.nodes)):
        return gm
    made = graph_module(gm, Graph())
    made.graph.output(made.graph.graph_copy(gm.graph, {}))
    for node in made.graph.nodes:
        function = form(node)
        if function is not None:
            node.op, node.target = "call_function", function
    made.recompile()
    return made


def without_text() -> AbstractContextManager[None]:
    """Inside, torch's own tracers make such modules."""
    return _use_lazy_graph_module(True)


def forward_of(module: GraphModule) -> Callable[..., Any]:
    """The function of the module's text."""
    _LazyGraphModule.force_recompile(module)
    return module.forward
