"""The callables of a recording's segments, by the backend that was chosen."""

from collections.abc import Callable
from typing import Any

import torch
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from ..lowering import joint
from ..lowering.aot_eager import aot_eager
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
        env = ShapeEnv() if segment.open else None
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
    for observe in observers:
        program = observe(segment, program, options)
    if plain:
        return Foreign(program)
    program = Differentiable(program, segment.module, segment.metas, segment.random)
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


backends.register_builtin("native", joint.compile_graph)
backends.register_builtin("aot_eager", aot_eager)
backends.register_builtin("eager", _eager_backend)
