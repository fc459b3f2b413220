"""The callables of a recording's segments, by the backend that was chosen."""

import contextlib
import functools
import importlib
from collections.abc import Callable, Iterable
from typing import Any

import torch

from ...lowering import stored_graphs
from ...lowering.autograd.double_backward import Differentiable
from ...lowering.fake_tensor_mode import PacedFakeMode, unlogged
from ...lowering.graph import graph_key, graph_transfer, rnn
from ...lowering.graph.control_flow import Repeated
from ...lowering.graph.graph_modules import forward_of
from ...lowering.graph.tensor_numbers import write_out_numbers
from ...runtime import backends, diagnostics
from ...runtime.background_budget import imports
from ...runtime.options import Options
from ...runtime.programs.autocast_state import AutocastState, enters_modes
from ...runtime.warning_filters import suppress_warnings
from ..capture.segments import Segment
from ..capture.values import Meta, Number, OpaqueMeta
from . import build_process, compile_logs, library_calls
from .thread_modes import Modes, process_settings

Observer = Callable[[Segment, Callable[..., Any], Options], Callable[..., Any]]
observers: list[Observer] = []  # what each program is put into before it serves calls
timers: list[Callable[[Segment, Callable[..., Any]], Callable[..., Any]]] = []
"""What a program with its gradients is put into, as a call has it."""

keepers: list[Callable[[Segment, stored_graphs.StoredGraph], None]] = []
"""Who is given each program as it is stored, also those of symbolic sizes, which the cache does
without."""


def compile_segment(
    segment: Segment,
    options: Options,
    example_inputs: list[Any] | None = None,
    segments: tuple[Segment, ...] = (),
) -> Callable[..., Any]:
    """The callable of one of a call's `segments`, by the chosen backend; one with data-dependent
    shapes, or inputs that kernels cannot read, runs as it is."""
    own = options.backend in ("native", "eager", "aot_eager")
    # another backend may have to say something
    with unlogged(), suppress_warnings() if own else contextlib.nullcontext():
        return _callable(segment, options, example_inputs, segments)


def timed(
    segments: Iterable[Segment], programs: tuple[Callable[..., Any], ...]
) -> tuple[Callable[..., Any], ...]:
    """The programs of the segments as a call has them."""
    for timer in timers:
        programs = tuple(map(timer, segments, programs))
    return programs


def _callable(
    segment: Segment,
    options: Options,
    example_inputs: list[Any] | None,
    segments: tuple[Segment, ...],
) -> Callable[..., Any]:
    if segment.eager or not segment.ops:
        return forward_of(segment.module)
    compile_logs.graph_code(segment.module)
    by_aot = options.backend in ("native", "aot_eager")
    if segment.takes_lazy_numbers() or (by_aot and segment.writes_history()):
        return _as_it_is(segment.module)
    few = segment.ops <= rnn.MAX_OPERATORS_A_LAYER and any(map(_trains_layers, segments))
    if options.backend == "native" and (few or _trains_layers(segment)):
        return _as_it_is(segment.module)
    if options.backend == "native" and segment.open:
        return _with_library_calls(segment, options)
    plain = options.backend == "eager"
    kept = _place(segment, options, example_inputs)
    program = None if kept is None else kept.load()
    if program is None and kept is not None and _is_built_elsewhere(segment, options, kept):
        program = kept.load()
    if program is None:
        module = segment.module if plain else write_out_numbers(segment.module)
        casts = AutocastState()
        try:
            with torch.set_grad_enabled(torch.is_grad_enabled()):  # as it is, whatever fails
                examples = example_inputs
                if examples is None:
                    examples = _examples(module, segment.metas, segment.open)
                program = _compiled(module, options, examples, kept)
        except Exception as error:
            casts.put_back()
            if not segment.open:
                raise
            why = f"{type(error).__name__}: {error}"
            said = f"a graph with sizes that depend on data is not compiled: {why}"
            diagnostics.warn_once("open", said, why)
            return _as_it_is(segment.module)
    if kept is not None:
        for keep in keepers:
            keep(segment, kept)
    if not by_aot:
        program = _leaving_modes(program, segment.module)
    for observe in observers:
        program = observe(segment, program, options)
    if plain:
        return ForeignProgram(program)
    key = kept.key if kept is not None else None
    parts = segment.module, segment.metas, segment.random, key, segment.made, segment.uncounted
    program = Differentiable(program, *parts)
    return program if by_aot else ForeignProgram(program)


def _with_library_calls(segment: Segment, options: Options) -> Callable[..., Any]:
    if segment.writes_inside or enters_modes(segment.module.graph):
        return _as_it_is(segment.module)
    program = library_calls.by_parts(segment, options, compile_segment)
    if any(isinstance(meta, OpaqueMeta) for meta in segment.metas):
        program = library_calls.WrappedProgram(segment, options, program, _unwrapped)
    for observe in observers:
        program = observe(segment, program, options)
    return ForeignProgram(program) if segment.writes else program


def _unwrapped(segment: Segment, options: Options, examples: list[Any]) -> Callable[..., Any]:
    program = _compiled(write_out_numbers(segment.module), options, examples, None)
    return Differentiable(program, segment.module, segment.metas, segment.random)


def _place(
    segment: Segment, options: Options, example_inputs: list[Any] | None
) -> stored_graphs.StoredGraph | None:
    """Where the segment's program is stored, if it can be."""
    if options.backend != "native" or segment.open:
        return None
    if example_inputs is None:
        kept = stored_graph(segment.module, segment.metas, options)
        if kept is not None:
            return kept
    origins = graph_key.origins_of(segment.module)
    return stored_graphs.StoredGraph(None, origins) if keepers else None


def stored_graph(
    module: torch.fx.GraphModule, metas: tuple[Meta | Number, ...], options: Options
) -> stored_graphs.StoredGraph | None:
    """The place of the program of a segment's graph; None for one that has no key."""
    return stored_graphs.stored_graph(module, map(_text, metas), options)


def ask_ahead(segments: tuple[Segment, ...], options: Options) -> None:
    """Have the process that compiles for this one, if there is one, begin with all of them."""
    for segment in segments if build_process.serving() is not None else ():
        kept = None if segment.eager or not segment.ops else _place(segment, options, None)
        if kept is not None and not kept.is_stored():
            _is_asked_for(segment, options, kept)


def _is_asked_for(
    segment: Segment, options: Options, kept: stored_graphs.StoredGraph
) -> build_process.BuildProcess | None:
    """Who was asked. Graphs of GPUs are compiled where their context is."""
    process = build_process.serving()
    if process is None or kept.key is None or any(meta.on_gpu for meta in segment.metas):
        return None
    around = segment.metas, options, Modes.now(), process_settings()
    to_bytes = functools.partial(graph_transfer.to_bytes, segment.module, around)
    return process if process.ask(kept.key, to_bytes) else None


def _is_built_elsewhere(
    segment: Segment, options: Options, kept: stored_graphs.StoredGraph
) -> bool:
    process, key = _is_asked_for(segment, options, kept), kept.key
    return process is not None and key is not None and process.has_stored(key)


def _trains_layers(segment: Segment) -> bool:
    """Whether torch runs the graph sooner than a program of ours: training on the CPU of recurrent
    layers with little around."""
    metas = [meta for meta in segment.metas if isinstance(meta, Meta)]
    return (
        torch.is_grad_enabled()
        and all(meta.device.type == "cpu" for meta in metas)
        and rnn.trains_for_the_most_part(segment.module, (meta.requires_grad for meta in metas))
    )


def _text(meta: Meta | Number) -> str:
    """What a key says of an input."""
    if isinstance(meta, Number):
        return graph_key.number_text(meta.seen)
    return graph_key.input_text(meta.size, meta.stride, meta.dtype, meta.device, meta.requires_grad)


def _examples(
    module: torch.fx.GraphModule, metas: tuple[Meta | Number, ...], is_open: bool
) -> list[Any]:
    repeats = any(isinstance(node.target, Repeated) for node in module.graph.nodes)
    env = _shapes() if is_open or repeats else None
    with torch.inference_mode(False), PacedFakeMode(allow_non_fake_inputs=True, shape_env=env):
        return [meta.fake() for meta in metas]


def compile_ahead(
    module: torch.fx.GraphModule,
    metas: tuple[Meta | Number, ...],
    options: Options,
    kept: stored_graphs.StoredGraph,
) -> None:
    """Compile the graph of a segment for its place alone."""
    with unlogged(), suppress_warnings():
        module = write_out_numbers(module)
        _compiled(module, options, _examples(module, metas, is_open=False), kept)


def _compiled(
    module: torch.fx.GraphModule,
    options: Options,
    example_inputs: list[Any],
    kept: stored_graphs.StoredGraph | None,
) -> Callable[..., Any]:
    if kept is not None:
        return compiler()(module, example_inputs, options, kept)  # type: ignore[no-any-return]
    if options.backend not in ("native", "aot_eager"):
        forward_of(module)  # another one's may keep it
    return backends.lookup(options.backend)(module, example_inputs, options)


def _shapes() -> Any:
    from torch.fx.experimental.symbolic_shapes import ShapeEnv  # which loads SymPy

    return ShapeEnv()


class ForeignProgram:
    """A program of another backend: it may write its inputs before it raises, so a call that fails
    is not redone."""

    may_write_first = True

    def __init__(self, program: Callable[..., Any]) -> None:
        self.program = program

    def __call__(self, *tensors: Any) -> Any:
        return self.program(*tensors)


def _as_it_is(module: torch.fx.GraphModule) -> ForeignProgram:
    return ForeignProgram(_leaving_modes(forward_of(module), module))


def _leaving_modes(program: Callable[..., Any], module: torch.fx.GraphModule) -> Callable[..., Any]:
    """The program, which leaves the modes that the graph enters where it fails."""
    if not enters_modes(module.graph):
        return program

    def call(*tensors: Any) -> Any:
        casts, enabled = AutocastState(), torch.is_grad_enabled()
        try:
            return program(*tensors)
        except BaseException:
            casts.put_back()
            torch.set_grad_enabled(enabled)
            raise

    return call


def _eager_backend(
    gm: torch.fx.GraphModule, example_inputs: Any, options: Options
) -> Callable[..., Any]:
    return forward_of(gm)


def _native(
    gm: torch.fx.GraphModule, example_inputs: list[Any], options: Options
) -> Callable[..., Any]:
    return compiler()(gm, example_inputs, options)  # type: ignore[no-any-return]


def compiler() -> Callable[..., Any]:
    """The compiler, which most of the time of a first call goes into: a stored program does without
    it."""
    with imports():
        joint = importlib.import_module("...lowering.joint", __package__)
    _leave_bars_unwatched()
    return joint.compile_graph  # type: ignore[no-any-return]


def _leave_bars_unwatched() -> None:
    """Have `torch.fx.Interpreter` make no bar of tqdm's where none is shown: the first one starts a
    thread that watches bars, for good, which the program would see among its own."""
    interpreter: Any = torch.fx.interpreter
    shown, unseen = interpreter.tqdm, torch.hub._Faketqdm
    if shown is unseen or hasattr(shown, "shown"):
        return

    def bar(*args: Any, **kwargs: Any) -> Any:
        return (unseen if kwargs.get("disable") else shown)(*args, **kwargs)

    bar.shown = shown  # type: ignore[attr-defined]
    interpreter.tqdm = bar


def _aot_eager(
    gm: torch.fx.GraphModule, example_inputs: list[Any], options: Options
) -> Callable[..., Any]:
    module = importlib.import_module("...lowering.aot_eager", __package__)
    _leave_bars_unwatched()
    return module.aot_eager(gm, example_inputs, options)  # type: ignore[no-any-return]


backends.register_builtin("native", _native)
backends.register_builtin("aot_eager", _aot_eager)
backends.register_builtin("eager", _eager_backend)
