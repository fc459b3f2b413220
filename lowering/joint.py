"""From a torch-level graph to a callable."""

import importlib
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

from ..runtime.background_budget import imports
from ..runtime.build import building
from ..runtime.compilers import time_limit
from ..runtime.gc_pause import gc_paused
from ..runtime.gpu import tools
from ..runtime.options import Options
from .autograd import missing_gradients
from .autograd.direct_calls import CallMetadata, plain_call
from .autograd.missing_gradients import Zero
from .autograd.unbuilt import built_or_run
from .decompositions.decompose import decompositions
from .decompositions.pool_offsets import keep_offsets
from .decompositions.random_numbers import with_seeds
from .graph import complex_numbers, effect_tokens
from .graph.dead_rng import keep_dead_rng
from .graph.graph_modules import graph_module
from .graph.inference_trace import inference_graph
from .graph.raising_calls import raising_calls
from .passes import TORCH, passes_of
from .pipeline import compile_unit
from .stored_graphs import BACKWARD, StoredGraph


@gc_paused()
@raising_calls()
def compile_graph(
    gm: GraphModule,
    example_inputs: list[torch.Tensor],
    options: Options,
    kept: StoredGraph | None = None,
) -> Callable[..., Any]:
    """AOTAutograd over a torch-level graph, or, where a call gives nothing to differentiate, one
    trace of it; forward, backward and inference graphs are lowered by this package.

    gm: every tensor, parameters included, is a placeholder. example_inputs: fake or real tensors
    (or ints) with the sizes, strides, dtypes, devices and requires_grad of the call. Returns a
    function that takes the inputs positionally, returns gm's outputs, applies input mutations and
    is differentiable; its `idle` are the positions of inputs that neither results nor gradients are
    made of, `drawing` the devices whose kernels make random numbers. `kept` is told what was made,
    to store it. Raises LoweringError, which names the operator and its origin.
    """
    if any(isinstance(each, torch.Tensor) and each.is_cuda for each in example_inputs):
        tools.begin()
    for each in passes_of(TORCH):
        gm = each.run(gm, example_inputs)
    tupled, single = with_tuple_output(with_aten_views(gm))
    tupled, lone = keep_dead_rng(tupled)
    facts = CallMetadata((), single, lone, (), drawing(options))
    compile_kind = partial(_compiled, options, kept)
    traced = inference_graph(tupled, example_inputs, decompositions(facts.drawing, implicit=False))
    if traced is None:
        by_aot: Callable[..., Any] = _aot().joint_call
        table = decompositions(facts.drawing)
        return by_aot(tupled, example_inputs, compile_kind, table, facts, kept)  # type: ignore[no-any-return]
    results: Any = traced.graph.graph.output_node().args[0]
    program = compile_kind("inference", traced.graph, len(results))
    if kept is not None:
        kept.finished_plain(facts, traced.written)
    return facts.called(plain_call(program, traced.written, without_autocast=False))


def _aot() -> Any:
    """AOTAutograd, which takes a second to load where nothing else has."""
    with imports():
        return importlib.import_module(".autograd.aot", __package__)


def _compiled(
    options: Options, kept: StoredGraph | None, kind: str, graph: GraphModule, returned: int
) -> Callable[..., Any]:
    """The program of a graph of ATen's operators, which takes its arguments as one list (and
    empties it). `returned`: how many of its outputs leave it first."""

    def compiled(graph: GraphModule, zero: Zero | None = None) -> Callable[..., Any]:
        return built_or_run(graph, partial(build, zero=zero))  # type: ignore[no-any-return]

    def build(graph: GraphModule, zero: Zero | None) -> Callable[..., Any]:
        with building(f"the {kind} graph could not be built"), time_limit(options.compiler_timeout):
            program = compile_unit(graph, kind, options, returned)
        if kept is not None:
            kept.compiled(kind, program, zero)
        return program

    with_seeds(graph)
    effect_tokens.without_tokens(graph)
    if kind == BACKWARD:
        complex_numbers.take_resolved(graph)
        call: Any = missing_gradients.backward(graph, compiled)
    else:
        keep_offsets(graph)  # a step that differentiates inside is no joint graph
        call = compiled(graph)
    call._boxed_call = True
    return call  # type: ignore[no-any-return]


def drawing(options: Options) -> tuple[str, ...]:
    """Devices whose kernels make random numbers."""
    if options.fallback_random or options.target == "cpp":
        return ()
    return ("cuda", "cpu") if options.target == "triton" else ("cuda",)


def with_aten_views(gm: GraphModule) -> GraphModule:
    """The graph with prims' views, which functionalisation refuses, as the functions of ATen that
    prims itself implements them by."""
    if not any(map(_aten_view, gm.graph.nodes)):
        return gm
    graph = Graph()
    graph.output(graph.graph_copy(gm.graph, {}))
    for node in graph.nodes:
        node.target = _aten_view(node) or node.target
    return graph_module(gm, graph)


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
    return graph_module(gm, graph), single
