"""The callables of a recording's segments, by the backend that was chosen."""

import importlib
from collections.abc import Callable
from typing import Any

import torch

from ..lowering import stored_graphs
from ..lowering.graphs.double_backward import Differentiable
from ..lowering.graphs.fakes import PacedFakeMode
from ..lowering.graphs.tensor_numbers import write_out_numbers
from ..runtime import backends, report
from ..runtime.options import Options
from .capture.segments import Segment

Observer = Callable[[Segment, Callable[..., Any], Options], Callable[..., Any]]
observers: list[Observer] = []  # what each program is put into before it serves calls


def compile_segment(
    segment: Segment, options: Options, example_inputs: list[Any] | None = None
) -> Callable[..., Any]:
    """The callable of one segment, by the chosen backend; one with data-dependent shapes runs as it
    is."""
    if segment.eager or not segment.ops:
        return segment.module.forward  # type: ignore[no-any-return]
    by_aot = options.backend in ("native", "aot_eager")
    if by_aot and segment.writes_history():
        return Foreign(segment.module.forward)
    if example_inputs is None:
        env = torch.fx.experimental.symbolic_shapes.ShapeEnv() if segment.open else None
        with torch.inference_mode(False), PacedFakeMode(allow_non_fake_inputs=True, shape_env=env):
            example_inputs = [meta.fake() for meta in segment.metas]
    plain = options.backend == "eager"
    module = segment.module if plain else write_out_numbers(segment.module)
    try:
        with torch.set_grad_enabled(torch.is_grad_enabled()):  # as it is, whatever fails inside
            program = backends.lookup(options.backend)(module, example_inputs, options)
    except Exception as error:
        if not segment.open:
            raise
        why = f"{type(error).__name__}: {error}"
        report.warn_once("open", f"a graph whose sizes data decides is not compiled: {why}", why)
        return Foreign(segment.module)
    kept_under = getattr(program, "kept_under", None) if module is segment.module else None
    for observe in observers:
        program = observe(segment, program, options)
    if plain:
        return Foreign(program)
    program = Differentiable(program, segment.module, segment.metas, segment.random, kept_under)
    return program if by_aot else Foreign(program)


class Foreign:
    """A program of another backend: it may write its inputs before it raises, so a call that fails
    is not redone."""

    may_write_first = True

    def __init__(self, program: Callable[..., Any]) -> None:
        self.program = program

    def __call__(self, *tensors: Any) -> Any:
        return self.program(*tensors)


def _eager_backend(
    gm: torch.fx.GraphModule, example_inputs: Any, options: Options
) -> Callable[..., Any]:
    return gm.forward  # type: ignore[no-any-return]


def _native(
    gm: torch.fx.GraphModule, example_inputs: list[Any], options: Options
) -> Callable[..., Any]:
    return stored_graphs.compile_graph(gm, example_inputs, options, _compiler)


def _compiler() -> Callable[..., Any]:
    """The compiler, which most of the time of a first call goes into: a stored program does without
    it."""
    joint = importlib.import_module("..lowering.joint", __package__)
    return joint.compile_graph  # type: ignore[no-any-return]


def _aot_eager(
    gm: torch.fx.GraphModule, example_inputs: list[Any], options: Options
) -> Callable[..., Any]:
    module = importlib.import_module("..lowering.aot_eager", __package__)
    return module.aot_eager(gm, example_inputs, options)  # type: ignore[no-any-return]


backends.register_builtin("native", _native)
backends.register_builtin("aot_eager", _aot_eager)
backends.register_builtin("eager", _eager_backend)
