"""From a torch-level graph to a callable: the one module that touches torch's private
AOTAutograd."""

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch._functorch import aot_autograd
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch.fx import Graph, GraphModule, Node

from ..runtime.errors import LoweringError
from ..runtime.options import Options
from .decompose import decompositions
from .pipeline import compile_unit

_EXPECTED = (
    "fw_compiler",
    "bw_compiler",
    "inference_compiler",
    "partition_fn",
    "decompositions",
    "keep_inference_input_mutations",
)


def check_torch() -> None:
    """Raise LoweringError if this torch's AOTAutograd lacks a parameter that is used here."""
    found = inspect.signature(aot_autograd.aot_module_simplified).parameters
    missing = [name for name in _EXPECTED if name not in found]
    if missing:
        raise LoweringError(
            f"torch {torch.__version__}: aot_module_simplified has no parameter"
            f" {', '.join(missing)}"
        )


def compile_graph(
    gm: GraphModule, example_inputs: list[torch.Tensor], options: Options
) -> Callable[..., Any]:
    """AOTAutograd over a torch-level graph; forward, backward and inference graphs are lowered by
    this package.

    gm: every tensor, parameters included, is a placeholder. example_inputs: fake or real tensors
    (or ints) with the sizes, strides, dtypes, devices and requires_grad of the call. Returns a
    function that takes the inputs positionally, returns gm's outputs, applies input mutations and
    is differentiable. Raises LoweringError, which names the operator and its origin.
    """
    check_torch()

    def compiler(kind: str) -> Callable[..., Any]:
        return boxed(lambda graph, inputs: compile_unit(graph, kind, options))

    tupled, single = with_tuple_output(with_aten_views(gm))
    compiled = aot_autograd.aot_module_simplified(
        tupled,
        tuple(example_inputs),
        fw_compiler=compiler("forward"),
        bw_compiler=compiler("backward"),
        inference_compiler=compiler("inference"),
        partition_fn=min_cut_rematerialization_partition,
        decompositions=decompositions(),
        keep_inference_input_mutations=True,  # `copy_` at the end of a graph: see in_place
    )
    return (lambda *args: compiled(*args)[0]) if single else compiled


def with_aten_views(gm: GraphModule) -> GraphModule:
    """The graph with prims' views, which functionalisation refuses, as the functions of ATen that
    prims itself implements them by."""
    if not any(map(_aten_view, gm.graph.nodes)):
        return gm
    graph = Graph()
    graph.output(graph.graph_copy(gm.graph, {}))
    for node in graph.nodes:
        node.target = _aten_view(node) or node.target
    return GraphModule(gm, graph)


def _aten_view(node: Node) -> Callable[..., Any] | None:
    target: Any = node.target
    overload = getattr(target, "default", target)
    schema = getattr(overload, "_schema", None)
    if schema is None or not schema.name.startswith("prims::"):
        return None
    aliases = any(result.alias_info is not None for result in schema.returns)
    return getattr(overload, "impl_aten", None) if aliases else None


def with_tuple_output(gm: GraphModule) -> tuple[GraphModule, bool]:
    """The graph with a tuple as its output, which AOTAutograd needs, and whether it had one bare
    value."""
    output = next(node for node in reversed(gm.graph.nodes) if node.op == "output")
    if isinstance(output.args[0], tuple):
        return gm, False
    graph = Graph()
    copied = graph.graph_copy(gm.graph, {})
    single = not isinstance(copied, list)
    graph.output((copied,) if single else tuple(copied))  # type: ignore[arg-type]
    return GraphModule(gm, graph), single


def boxed(compiler: Callable[..., Any]) -> Callable[..., Any]:
    """The compiler, giving functions that take their arguments as one list (and empty it)."""

    def compile_boxed(graph: GraphModule, inputs: Any) -> Callable[..., Any]:
        call = compiler(graph, inputs)
        call._boxed_call = True
        return call  # type: ignore[no-any-return]

    return compile_boxed
