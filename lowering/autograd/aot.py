"""AOTAutograd, set up for this package: the one module that calls its private entry points."""

import contextlib
import dataclasses
import inspect
import threading
import types
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch._functorch import aot_autograd
from torch._functorch import config as functorch_config
from torch._functorch._aot_autograd import graph_capture_wrappers, graph_compile
from torch.fx import GraphModule

from ...runtime.background_budget import in_background
from ...runtime.errors import LoweringError
from ..graph import effect_tokens
from ..graph.graph_modules import without_text
from .aot_calls import Wrapped, watched
from .aot_parts import schemas
from .direct_calls import CallMetadata
from .fast_wrappers import lean
from .gradient_paths import GradientPaths
from .joint_graphs import traced_here
from .wrappers import check_replayed, keep_saved

_preserve_rng_state = aot_autograd.preserve_rng_state
_ours = threading.local()  # `active` while AOTAutograd traces for this package


def _keep_generators() -> Any:
    """Our tracing draws nothing; putting the generators back would, beside a thread that draws,
    give that thread its numbers again. A GPU that nobody uses is not woken for it, nor asked by a
    process that was forked, which may not use it."""
    if getattr(_ours, "active", False) or in_background():
        return contextlib.nullcontext()
    awake = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    return _preserve_rng_state() if awake else torch.random.fork_rng([])


@contextlib.contextmanager
def _traced_for_us() -> Iterator[None]:
    """Inside, AOTAutograd leaves the generators alone."""
    before, _ours.active = getattr(_ours, "active", False), True
    try:
        yield
    finally:
        _ours.active = before


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

_MemoryFormatMeta: Any = schemas.MemoryFormatMeta
_form_of = _MemoryFormatMeta.from_tensor


def _form_without_overlaps(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    """Before 2.13 torch copies the gradient of a result that `expand` gave into a tensor of its
    strides, which raises."""
    form = _form_of(tensor, *args, **kwargs)
    if form is None or form.stride is None or torch._debug_has_internal_overlap(tensor) != 1:
        return form
    return _MemoryFormatMeta(memory_format=torch._prims_common.suggest_memory_format(tensor))


_MemoryFormatMeta.from_tensor = staticmethod(_form_without_overlaps)


_make_tensors_of_numbers: Any = graph_compile._apply_tensorify_python_scalars


def _where_sizes_are_nodes(module: torch.fx.GraphModule) -> None:
    """torch makes tensors of the floats that a graph computes of sizes; it raises where such a size
    is no node of the graph. There they stay numbers."""
    values = [node.meta.get("val") for node in module.graph.nodes]
    known = {each.node.expr for each in values if isinstance(each, torch.SymInt)}
    floats = (each for each in values if isinstance(each, torch.SymFloat))
    ours = getattr(_ours, "active", False)
    if not ours or all(each.node.expr.free_symbols <= known for each in floats):
        _make_tensors_of_numbers(module)


graph_compile._apply_tensorify_python_scalars = _where_sizes_are_nodes


@contextlib.contextmanager
def _without_anomaly_warnings() -> Iterator[None]:
    """Tracing runs in torch's anomaly mode, which warns of the operator whose gradient cannot be
    traced; the error says the same."""
    with graph_capture_wrappers.warnings.catch_warnings():
        graph_capture_wrappers.warnings.filterwarnings("ignore", "Error detected in")
        yield


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


def joint_call(
    gm: GraphModule,
    example_inputs: list[torch.Tensor],
    compile_kind: Callable[..., Any],
    decompositions: dict[Any, Callable[..., Any]],
    facts: CallMetadata,
    kept: Any,
) -> Callable[..., Any]:
    """The function of a graph whose output is a tuple, as `joint.compile_graph` gives it, by
    `compile_kind(kind, graph, returned)` for its forward, backward or inference. `facts`: what is
    known of it already."""
    check_torch()
    paths = GradientPaths()

    def compiler(kind: str) -> Callable[..., Any]:
        return lambda graph, inputs: compile_kind(kind, graph, _returned(kind, graph, paths))

    with (
        _traced_for_us(),
        traced_here(gm),
        _without_anomaly_warnings(),
        without_text(),
        effect_tokens.inside_graphs(),
        _dense_tangents(gm, example_inputs),
        watched() as wrapped,
    ):
        compiled = aot_autograd.aot_module_simplified(
            gm,
            tuple(example_inputs),
            fw_compiler=compiler("forward"),
            bw_compiler=compiler("backward"),
            inference_compiler=compiler("inference"),
            partition_fn=paths.partition,
            decompositions=decompositions,
            keep_inference_input_mutations=True,  # `copy_` at the end of a graph: see in_place
        )
    for each in wrapped:
        keep_saved(each)
        check_replayed(gm, each.metadata, example_inputs)
    cut_off = paths.inputs_without(gm, example_inputs) - _given_back(wrapped)
    facts = dataclasses.replace(
        facts, cut_off=tuple(sorted(cut_off)), idle=tuple(sorted(paths.idle(example_inputs)))
    )
    if kept is not None:
        kept.finished(compiled, wrapped, facts)
    return facts.called(lean(wrapped, compiled, gm))


def _given_back(wrapped: Sequence[Wrapped]) -> set[int]:
    """Indices of inputs that are results, or of which AOTAutograd makes one again."""
    kinds = schemas.OutputType.alias_of_input, schemas.OutputType.is_input
    made = (info for each in wrapped for info in each.metadata.output_info)
    return {info.base_idx for info in made if info.output_type in kinds}


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
