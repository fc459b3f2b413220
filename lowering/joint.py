"""From a torch-level graph to a callable: the one module that touches torch's private
AOTAutograd."""

import contextlib
import inspect
import types
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch._functorch import aot_autograd
from torch._functorch import config as functorch_config
from torch._functorch._aot_autograd import graph_capture_wrappers
from torch.fx import Graph, GraphModule, Node

from ..runtime.errors import LoweringError
from ..runtime.options import Options
from ..runtime.pacing import in_background
from .autograd import missing_gradients
from .autograd.aot_calls import watched
from .autograd.gradient_paths import GradientPaths
from .autograd.lean_calls import lean
from .autograd.missing_gradients import Zero
from .autograd.plain_calls import Around, plain_call
from .autograd.wrappers import check_replayed, keep_saved
from .graphs import conjugates, effect_tokens
from .graphs.channels_last import prefer_channels_last
from .graphs.constant_masks import drop_constant_masks
from .graphs.decompose import decompositions
from .graphs.folded_norms import fold_norms
from .graphs.fused_steps import write_out_fused_steps
from .graphs.inference_trace import inference_graph
from .graphs.lone_draws import with_lone_draws
from .graphs.masked_writes import choose_under_masks
from .graphs.pool_offsets import keep_offsets
from .graphs.random_numbers import with_seeds
from .graphs.result_strides import keep_result_strides
from .graphs.rnn import keep_rnns
from .graphs.strides_in_place import keep_strides
from .pipeline import compile_unit
from .stored_graphs import Kept

_preserve_rng_state = aot_autograd.preserve_rng_state


def _keep_generators() -> Any:
    """Tracing draws nothing; putting the generators back would, beside a thread that draws, give
    that thread its numbers again. A GPU that nobody uses is not woken for it, nor asked by a
    process that was forked, which may not use it."""
    if in_background():
        return contextlib.nullcontext()
    awake = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    return _preserve_rng_state() if awake else torch.random.fork_rng([])


aot_autograd.preserve_rng_state = _keep_generators


class _Warnings(types.ModuleType):
    """The module `warnings` for AOTAutograd's tracing, whose filters belong to the whole process: a
    background thread leaves them alone."""

    def __getattr__(self, name: str) -> Any:
        return getattr(warnings, name)

    @staticmethod
    def catch_warnings(*args: Any, **kwargs: Any) -> Any:
        return (
            contextlib.nullcontext()
            if in_background()
            else warnings.catch_warnings(*args, **kwargs)
        )

    @staticmethod
    def filterwarnings(*args: Any, **kwargs: Any) -> None:
        if not in_background():
            warnings.filterwarnings(*args, **kwargs)


graph_capture_wrappers.warnings = _Warnings("warnings")


@contextlib.contextmanager
def _unsaid_anomalies() -> Iterator[None]:
    """Tracing runs in torch's anomaly mode, which warns of the operator whose gradient cannot be
    traced; the error says the same."""
    with graph_capture_wrappers.warnings.catch_warnings():
        graph_capture_wrappers.warnings.filterwarnings("ignore", "Error detected in")
        yield


# What is rewritten in the torch-level graph, before AOTAutograd takes it apart.
REWRITES = (
    write_out_fused_steps,
    keep_rnns,
    drop_constant_masks,
    choose_under_masks,
    keep_strides,
    prefer_channels_last,
    fold_norms,
    keep_result_strides,
)
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
    gm: GraphModule,
    example_inputs: list[torch.Tensor],
    options: Options,
    kept: Kept | None = None,
) -> Callable[..., Any]:
    """AOTAutograd over a torch-level graph, or, for plain inference, one trace of it; forward,
    backward and inference graphs are lowered by this package.

    gm: every tensor, parameters included, is a placeholder. example_inputs: fake or real tensors
    (or ints) with the sizes, strides, dtypes, devices and requires_grad of the call. Returns a
    function that takes the inputs positionally, returns gm's outputs, applies input mutations and
    is differentiable; its `idle` are the positions of inputs that neither results nor gradients are
    made of, `drawing` the devices whose kernels make random numbers. `kept` is told what was made,
    to store it. Raises LoweringError, which names the operator and its origin.
    """
    check_torch()

    paths = GradientPaths()

    def compiler(kind: str) -> Callable[..., Any]:
        def compile_kind(graph: GraphModule, inputs: Any) -> Callable[..., Any]:
            with_seeds(graph)
            effect_tokens.without_tokens(graph)
            if kind != "backward":
                keep_offsets(graph)  # a step that differentiates inside is no joint graph
                return compiled(graph)
            conjugates.take_resolved(graph)
            made: Callable[..., Any] = missing_gradients.backward(graph, compiled)
            return made

        def compiled(graph: GraphModule, zero: Zero | None = None) -> Callable[..., Any]:
            program = compile_unit(graph, kind, options, _returned(kind, graph, paths))
            if kept is not None:
                kept.compiled(kind, program, zero)
            return program

        return boxed(compile_kind)

    for rewrite in REWRITES:
        gm = rewrite(gm, example_inputs)
    tupled, single = with_tuple_output(with_aten_views(gm))
    traced = inference_graph(tupled, example_inputs, decompositions(drawing(options)))
    if traced is not None:
        program = compiler("inference")(traced, example_inputs)
        facts = Around((), single, 0, (), drawing(options))
        if kept is not None:
            kept.finished_plain(facts)
        return facts.called(plain_call(program, (), without_autocast=False))
    tupled, lone = with_lone_draws(tupled)
    with (
        _unsaid_anomalies(),
        effect_tokens.inside_graphs(),
        _dense_tangents(tupled, example_inputs),
        watched() as wrapped,
    ):
        compiled = aot_autograd.aot_module_simplified(
            tupled,
            tuple(example_inputs),
            fw_compiler=compiler("forward"),
            bw_compiler=compiler("backward"),
            inference_compiler=compiler("inference"),
            partition_fn=paths.partition,
            decompositions=decompositions(drawing(options)),
            keep_inference_input_mutations=True,  # `copy_` at the end of a graph: see in_place
        )
    for each in wrapped:
        keep_saved(each)
        check_replayed(tupled, each.metadata, example_inputs)
    cut_off = paths.inputs_without(tupled, example_inputs)
    idle, drawn = paths.idle(example_inputs), drawing(options)
    facts = Around(tuple(sorted(cut_off)), single, lone, tuple(sorted(idle)), drawn)
    if kept is not None:
        kept.finished(compiled, wrapped, facts)
    return facts.called(lean(wrapped, compiled, tupled))


def drawing(options: Options) -> tuple[str, ...]:
    """Devices whose kernels make random numbers."""
    if options.fallback_random or options.target == "cpp":
        return ()
    return ("cuda", "cpu") if options.target == "triton" else ("cuda",)


_OVERLAPPING = ("unfold", "as_strided")


def _dense_tangents(
    gm: GraphModule, example_inputs: list[Any]
) -> contextlib.AbstractContextManager[Any]:
    """AOTAutograd copies gradients of results into tensors of the results' own strides (which torch
    2.11 does not unless told to); where those let elements share memory, as windows do, it must
    not."""
    names = {getattr(node.target, "__name__", str(node.target)) for node in gm.graph.nodes}
    windows = any(part in name for name in names for part in _OVERLAPPING)
    inputs = (each for each in example_inputs if isinstance(each, torch.Tensor))
    dense = not windows and not any(map(_has_windows, inputs))
    patch: Any = functorch_config.patch
    return patch(guess_tangent_strides_as_outputs=dense)  # type: ignore[no-any-return]


def _has_windows(tensor: torch.Tensor) -> bool:
    """Whether steps of the tensor are shorter than what lies below them."""
    if tensor.layout != torch.strided or tensor._has_symbolic_sizes_strides:
        return False
    reach = 1
    for step, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size > 1 and 0 < step < reach:
            return True
        reach += step * (size - 1)
    return False


def _returned(kind: str, graph: GraphModule, paths: GradientPaths) -> int:
    """How many outputs of the graph leave AOTAutograd: not what is saved for a backward, and no
    gradients."""
    if kind == "inference":
        return len(graph.graph.output_node().args[0])  # type: ignore[arg-type]
    return paths.returned if kind == "forward" else 0


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
