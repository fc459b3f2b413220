"""Operators that write a tensor and whose result has another order of memory when they do not.

Functionalisation takes the tensor that was written for the operator's result. Of `tril`,
`masked_fill`, `index_add` and others that is contiguous, whatever order the tensor had; with `out=`
any operator's is as its operands are. Such a call becomes a copy of the result into the tensor,
which keeps its strides.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch._guards import detect_fake_mode
from torch.fx import Graph, GraphModule, Interpreter, Node

from ...runtime.diagnostics import log
from ..fake_tensor_mode import PacedFakeMode
from ..opinfo import having
from .graph_modules import graph_module

_NAMES = having("strides_in_place_change")

_TYPED = having("sums_to_int64") | {"mean"}


def keep_strides(gm: GraphModule, examples: Sequence[Any]) -> GraphModule:
    """The graph with those calls as copies; itself where none changes an order."""
    if not any(map(_may_change, gm.graph.nodes)):
        return gm
    run = _Run(gm)
    run_on_fakes(run, examples)
    return _rewritten(gm, run.changing) if run.changing else gm


def run_on_fakes(run: Interpreter, examples: Sequence[Any]) -> bool:
    """Run the graph on fakes that lie as the examples; False where that fails."""
    try:
        mode = detect_fake_mode(list(examples)) or PacedFakeMode()
        with mode, torch.set_grad_enabled(torch.is_grad_enabled()):
            run.run(*map(_like, examples))
    except Exception as error:
        log.info("what writes do to strides is not known: %s", error)
        return False
    return True


def _may_change(node: Node) -> bool:
    if node.op == "call_function":
        return isinstance(node.kwargs.get("out"), Node)
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
        self.changing: dict[Node, torch.dtype] = {}

    def run_node(self, node: Node) -> Any:
        if _may_change(node):
            args, kwargs = self.fetch_args_kwargs_from_env(node)
            op, target, args, kwargs, given = _functional(node, args, kwargs)
            with torch.no_grad():
                result = getattr(self, op)(target, args, kwargs)
            if _differs(result, given):
                self.changing[node] = given.dtype
        return super().run_node(node)


def _differs(result: Any, given: torch.Tensor) -> bool:
    """Whether strides do, or the type, which may go with other ones; what has another shape is
    given new memory by such a call."""
    if not isinstance(result, torch.Tensor) or _texts(result.shape) != _texts(given.shape):
        return False
    return result.dtype != given.dtype or _texts(result.stride()) != _texts(given.stride())


def _texts(numbers: Sequence[Any]) -> list[str]:
    return list(map(str, numbers))


def _functional(node: Node, args: Any, kwargs: Any) -> tuple[str, Any, Any, Any, Any]:
    """The call that writes nothing (kind, target, arguments), and the tensor that this one
    writes."""
    if node.op == "call_function":
        others = {name: value for name, value in kwargs.items() if name != "out"}
        return node.op, node.target, args, others, kwargs["out"]
    return node.op, str(node.target)[:-1], args, kwargs, args[0]


def _rewritten(gm: GraphModule, changing: dict[Node, torch.dtype]) -> GraphModule:
    made, copies = graph_module(gm, Graph()), dict[Node, Node]()
    made.graph.output(made.graph.graph_copy(gm.graph, copies))
    for old, dtype in changing.items():
        node = copies[old]
        op, target, args, kwargs, given = _functional(node, node.args, node.kwargs)
        with made.graph.inserting_before(node):
            if op == "call_function" and getattr(target, "__name__", "") in _TYPED:
                kwargs = {"dtype": dtype, **kwargs}
            result = made.graph.create_node(op, target, args, kwargs)
        result.meta.update(node.meta)
        node.op, node.target, node.args, node.kwargs = "call_method", "copy_", (given, result), {}
    made.recompile()
    return made
