"""Which inputs of a graph have no gradient path: they are given without their history, which eager
would not look into either, and which may have been freed."""

from typing import Any

import torch
from torch._guards import detect_fake_mode
from torch.fx import GraphModule

from ..decompositions.random_numbers import with_seeds
from ..graph.backward_slice import needed
from ..graph.common_subexpressions import partition
from ..graph.effect_tokens import inputs_of, is_made
from .differentiation import differentiates
from .saved_inputs import keep_compared, keep_complex, keep_results, with_copies
from .saved_results import with_results
from .saved_sizes import with_sizes
from .saved_statistics import unrounded


class GradientPaths:
    """Which inputs of a joint graph get a gradient, how many results its forward has, and which
    inputs neither results nor gradients are made of (batch norm's statistics, which it only moves);
    asked while it is partitioned."""

    returned = 0

    def __init__(self) -> None:
        self._has_gradient: list[bool] = []
        self._idle: frozenset[int] = frozenset()

    def partition(self, joint: GraphModule, inputs: Any, **settings: Any) -> Any:
        results: Any = joint.graph.output_node().args[0]
        forward = results[: settings["num_fwd_outputs"]]
        gradients = results[len(forward) :]
        self.returned = sum(not is_made(result) for result in forward)
        self._has_gradient = [grad is not None for grad in gradients if not is_made(grad)]
        with_seeds(joint)
        unrounded(joint)
        small = keep_results(joint, forward, self._has_gradient)
        keep_compared(joint)
        keep_complex(joint, forward)
        self._idle = _idle(joint)
        parts = partition(joint, inputs, **settings)
        with_copies(parts[0], settings["num_fwd_outputs"], small)
        with_results(*parts, settings["num_fwd_outputs"])
        with_sizes(*parts)
        return parts

    def idle(self, example_inputs: list[Any]) -> frozenset[int]:
        known = len(self._has_gradient) == len(example_inputs)
        return self._idle if known else frozenset()

    def inputs_without(self, gm: GraphModule, example_inputs: list[Any]) -> frozenset[int]:
        """Indices of inputs that require gradients and get none, though they are neither written
        nor does an output share their memory (AOTAutograd remakes such outputs from the input).
        None where no input gets one: results, which have a history in eager, would have none."""
        if len(self._has_gradient) != len(example_inputs) or not any(self._has_gradient):
            return frozenset()
        found = {
            index
            for index, (example, has) in enumerate(
                zip(example_inputs, self._has_gradient, strict=True)
            )
            if isinstance(example, torch.Tensor) and example.requires_grad and not has
        }
        return frozenset(found - _shared(gm, example_inputs)) if found else frozenset()


def _idle(joint: GraphModule) -> frozenset[int]:
    """Indices of inputs on which no output of the graph depends, but for what it writes back."""
    copy = torch.ops.aten.copy_.default
    used = needed(
        [joint.graph.output_node()],
        lambda node: [] if node.target is copy else node.all_input_nodes,
    )
    return frozenset(k for k, node in enumerate(inputs_of(joint)) if node not in used)


def _shared(gm: GraphModule, example_inputs: list[Any]) -> set[int]:
    """Indices of inputs that the graph writes, or whose memory an output shares."""
    mode = detect_fake_mode(example_inputs)
    if mode is None or differentiates(gm):
        return set(range(len(example_inputs)))
    with mode, torch.no_grad():
        inputs = [
            each.detach().clone() if isinstance(each, torch.Tensor) else each
            for each in example_inputs
        ]
        before = [each._version for each in inputs if isinstance(each, torch.Tensor)]
        given = [each for each in inputs if isinstance(each, torch.Tensor)]
        outputs = [each for each in gm(*inputs) if isinstance(each, torch.Tensor)]
    memory = {each.untyped_storage()._cdata for each in outputs}
    changed = {
        id(each)
        for each, version in zip(given, before, strict=True)
        if each._version != version or each.untyped_storage()._cdata in memory
    }
    return {index for index, each in enumerate(inputs) if id(each) in changed}
