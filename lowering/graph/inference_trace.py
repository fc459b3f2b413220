"""Graphs of core operators of what needs nothing of AOTAutograd around it: inference, and whole
training steps, which differentiate inside, with results that have no history and share no memory.

AOTAutograd runs a graph twice, to learn what is written and what shares memory, and to trace it;
here one run on fake tensors does both. Whatever is unusual is left to AOTAutograd.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch
from torch._subclasses import FakeTensor
from torch.fx import GraphModule

from ...runtime.diagnostics import log
from ..autograd.differentiation import differentiates
from ..fake_tensor_mode import PacedFakeMode
from .graph_modules import graph_module
from .operator_trace import (
    Decompositions,
    OperatorTracer,
    Unusual,
    check,
    plain_fakes,
    run,
    tracing,
)


@dataclasses.dataclass(frozen=True)
class Traced:
    """A graph in operators of ATen, functional but for views and for copies of new values to
    inputs, with which it ends, as AOTAutograd's; the positions of these inputs are `written`."""

    graph: GraphModule
    written: tuple[int, ...]


def inference_graph(
    gm: GraphModule, example_inputs: Sequence[Any], decompositions: Decompositions
) -> Traced | None:
    """The graph of `gm`, whose output is a tuple, with nothing in it that no result needs but draws
    of random numbers.

    example_inputs: as the call's tensors, fake ones without symbolic sizes, or real ones. None
    where a result has a history or shares memory with an input or another result, an input is
    written in part or through another tensor, sizes depend on data, and for whatever else is not
    simple.
    """
    try:
        check(example_inputs)
        requires_grad = any(each.requires_grad for each in example_inputs)
        if torch.is_grad_enabled() and requires_grad and not differentiates(gm):
            raise Unusual("gradients")
        return _traced(gm, plain_fakes(example_inputs), decompositions)
    except Exception as reason:  # AOTAutograd raises it again, if it is a fault of the graph
        log.debug("a graph is left to AOTAutograd: %r", reason)
        return None


def _traced(
    gm: GraphModule, example_inputs: Sequence[FakeTensor], decompositions: Decompositions
) -> Traced:
    tracer = OperatorTracer(decompositions)
    inputs = [tracer.placeholder(f"arg{k}_1", each) for k, each in enumerate(example_inputs)]
    mode = example_inputs[0].fake_mode if example_inputs else PacedFakeMode()
    with tracing(tracer, mode):
        results: Any = run(gm, inputs, tracer)
    if not isinstance(results, list | tuple) or not all(
        isinstance(each, torch.Tensor) for each in results
    ):
        raise Unusual("results that are no tensors")
    if not tracer.owns(results):
        raise Unusual("results that share memory")
    if any(each.requires_grad for each in results):
        raise Unusual("gradients")
    written = tracer.finish(results)
    tracer.graph.eliminate_dead_code()
    return Traced(graph_module(torch.nn.Module(), tracer.graph), written)
