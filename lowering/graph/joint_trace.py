"""The joint graph, of a forward and of its backward, by one run on fake tensors, in place of the
trace that AOTAutograd makes with four modes one above the other."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch.fx import GraphModule, Node

from ...runtime.diagnostics import log
from .graph_modules import graph_module
from .operator_trace import (
    FORWARD,
    Decompositions,
    OperatorTracer,
    Unusual,
    check,
    plain_fakes,
    run,
    tensors_in,
    tracing,
)

BACKWARD, ONLY_FORWARD = "is_backward", "must_be_in_forward"


def joint_graph(
    gm: GraphModule,
    inputs: Sequence[Any],
    tangents: Sequence[Any],
    taken: Sequence[int],
    decompositions: Decompositions,
) -> tuple[GraphModule, tuple[int, ...]] | None:
    """The graph of `gm`, whose output is a tuple, and of its gradients, with the inputs and outputs
    that AOTAutograd's has, and the positions of inputs that it writes; None where something is
    unusual.

    inputs: fake tensors without symbolic sizes; tangents: as the gradients of the results at
    `taken`.
    """
    try:
        check((*inputs, *tangents))
        plain_fakes((*inputs, *tangents))
        return _traced(gm, inputs, tangents, taken, decompositions)
    except Exception as reason:  # AOTAutograd raises it again, if it is a fault of the graph
        log.debug("a joint graph is left to AOTAutograd: %r", reason)
        return None


def _traced(
    gm: GraphModule,
    inputs: Sequence[Any],
    tangents: Sequence[Any],
    taken: Sequence[int],
    decompositions: Decompositions,
) -> tuple[GraphModule, tuple[int, ...]]:
    tracer = OperatorTracer(decompositions)
    tracer.tag = FORWARD
    primals = [tracer.placeholder(f"primals_{k}", each) for k, each in enumerate(inputs, 1)]
    given = [tracer.placeholder(f"tangents_{k}", each) for k, each in enumerate(tangents, 1)]
    with tracing(tracer, inputs[0].fake_mode):
        results: Any = run(gm, primals, tracer, _Steps(tracer).note)
        if not all(isinstance(each, torch.Tensor) for each in results):
            raise Unusual("results that are no tensors")
        tracer.tag, tracer.is_forward_over = BACKWARD, True
        found = _gradients([results[k] for k in taken], given, primals)
    written = tracer.finish((*results, *found), ONLY_FORWARD)
    tracer.graph.eliminate_dead_code()
    return graph_module(torch.nn.Module(), tracer.graph), written


def _gradients(
    results: Sequence[torch.Tensor], tangents: Sequence[torch.Tensor], inputs: list[torch.Tensor]
) -> list[torch.Tensor | None]:
    """Of each input, None where it has none."""
    leaves = [each for each in inputs if each.requires_grad]
    pairs = [pair for pair in zip(results, tangents, strict=True) if pair[0].requires_grad]
    if not leaves or not pairs:
        raise Unusual("no gradients")
    if any(result.shape != tangent.shape for result, tangent in pairs):
        raise Unusual("a gradient of another shape")
    given, seeds = zip(*pairs, strict=True)
    found = iter(torch.autograd.grad(given, leaves, seeds, allow_unused=True))
    return [next(found) if each.requires_grad else None for each in inputs]


class _Steps:
    """Which node of the graph each step of the backward comes from."""

    def __init__(self, tracer: OperatorTracer) -> None:
        self._tracer = tracer
        self._known: set[Any] = set()

    def note(self, node: Node, value: Any) -> None:
        steps = [each.grad_fn for each in tensors_in(value)]
        while steps:
            step: Any = steps.pop()
            if step is None or step in self._known:
                continue
            self._known.add(step)
            step.register_prehook(partial(self._begin, node))
            steps += (earlier for earlier, _ in step.next_functions)

    def _begin(self, node: Node, gradients: Any) -> None:
        self._tracer.source = node
