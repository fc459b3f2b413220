"""Operators in place whose result has another order of memory when they are not.

Functionalisation takes the tensor that was written for the operator's result. Of `tril`,
`masked_fill`, `index_add` and others that is contiguous, whatever order the tensor had. Such a call
becomes a copy of the result into the tensor, which keeps its strides.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch._guards import detect_fake_mode
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import Graph, GraphModule, Interpreter, Node

from ...runtime.report import log

_NAMES = frozenset(
    "addmm_ addbmm_ baddbmm_ cumsum_ cumprod_ index_add_ index_copy_ index_fill_ index_reduce_"
    " masked_fill_ masked_scatter_ mvlgamma_ renorm_ scatter_ scatter_add_ scatter_reduce_ tril_"
    " triu_".split()
)


def keep_strides(gm: GraphModule, examples: Sequence[Any]) -> GraphModule:
    """The graph with those calls as copies; itself where none changes an order."""
    if not any(map(_may_change, gm.graph.nodes)):
        return gm
    run = _Run(gm)
    try:
        mode = detect_fake_mode(list(examples)) or FakeTensorMode()
        with mode, torch.set_grad_enabled(torch.is_grad_enabled()):
            run.run(*map(_like, examples))
    except Exception as error:
        log.info("which writes change strides is not known: %s", error)
    return _rewritten(gm, run.changing) if run.changing else gm


def _may_change(node: Node) -> bool:
    return node.op == "call_method" and node.target in _NAMES


def _like(example: Any) -> Any:
    if not isinstance(example, torch.Tensor):
        return example
    place = example.shape, example.stride()
    made = torch.empty_strided(*place, dtype=example.dtype, device=example.device)
    return made.requires_grad_(example.requires_grad)


class _Run(Interpreter):
    """Runs the graph on fakes and notes the calls whose functional form has other strides."""

    def __init__(self, gm: GraphModule) -> None:
        super().__init__(gm)
        self.changing: set[Node] = set()

    def run_node(self, node: Node) -> Any:
        if _may_change(node):
            (given, *args), kwargs = self.fetch_args_kwargs_from_env(node)
            with torch.no_grad():
                result = getattr(given, _functional(node))(*args, **kwargs)
            if list(map(str, result.stride())) != list(map(str, given.stride())):
                self.changing.add(node)
        return super().run_node(node)


def _functional(node: Node) -> str:
    return str(node.target)[:-1]


def _rewritten(gm: GraphModule, changing: set[Node]) -> GraphModule:
    made, copies = GraphModule(gm, Graph()), dict[Node, Node]()
    made.graph.output(made.graph.graph_copy(gm.graph, copies))
    for old in changing:
        node = copies[old]
        with made.graph.inserting_before(node):
            result = made.graph.call_method(_functional(node), node.args, node.kwargs)
        result.meta.update(node.meta)
        node.target, node.args, node.kwargs = "copy_", (node.args[0], result), {}
    made.recompile()
    return made
