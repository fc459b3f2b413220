"""Operators that a graph turned out not to hold: fake tensors cannot tell what they, or their
gradients, give, or there is no such gradient, which is an error only where it is asked for. At the
next recording they run between two graphs."""

import operator
from typing import Any

import torch
from torch.fx import GraphModule, Interpreter, Node
from torch.utils._pytree import tree_map_only

from ...lowering.fake_tensor_mode import PacedFakeMode, unlogged
from .custom_operators import REFUSALS
from .nested import tensors_in
from .recording import Recording
from .segments import Segment

_NO_GRADIENT = (*REFUSALS, RuntimeError)  # also "derivative for floor_divide is not implemented"
Place = tuple[str, str]  # an operator's name and the line that it stands in


@unlogged()
def mark_uncapturable(apart: set[Place], recording: Recording) -> bool:
    """Whether compiling failed of operators that no one knew of; they are added to `apart`. They
    ran when they were recorded: whatever they raise on fake tensors is a fault of these."""
    known = len(apart)
    for segment in recording.segments:
        if not segment.eager:
            apart |= _refused(segment)
    return len(apart) > known


def _refused(segment: Segment) -> set[Place]:
    probe = _Probe(segment.module)
    with (
        torch.inference_mode(False),
        torch.set_grad_enabled(torch.is_grad_enabled()),
        PacedFakeMode(allow_non_fake_inputs=True),
    ):
        try:
            probe.run(*(meta.fake() for meta in segment.metas))
        except Exception:  # what follows has no inputs
            return probe.found
    return probe.found


class _Probe(Interpreter):
    """Runs a graph on fakes, and each operator by itself, with its gradients."""

    def __init__(self, module: GraphModule) -> None:
        super().__init__(module)
        self.found: set[Place] = set()

    def run_node(self, n: Node) -> Any:
        if n.op in ("call_function", "call_method") and self._is_refused(n):
            self.found.add((n.meta.get("called", ""), n.meta.get("origin", "")))
        return super().run_node(n)

    def _is_refused(self, node: Node) -> bool:
        leaves: list[torch.Tensor] = []
        if node.target is operator.getitem and isinstance(self.env[node.args[0]], tuple | list):  # type: ignore[index]
            return False  # one of what an operator gave: others would be copied for each

        def alone(tensor: torch.Tensor) -> torch.Tensor:
            if not tensor.requires_grad:
                return tensor.detach()
            leaves.append(tensor.detach().requires_grad_())
            return leaves[-1].clone()  # which may be written

        try:
            args, kwargs = tree_map_only(torch.Tensor, alone, self.fetch_args_kwargs_from_env(node))
            made = getattr(self, node.op)(node.target, args, kwargs)
        except Exception:
            return True
        return self._has_no_gradient(leaves, made)

    def _has_no_gradient(self, leaves: list[torch.Tensor], made: Any) -> bool:
        outs = [each for each in tensors_in(made) if each.requires_grad]
        if not (outs and leaves):
            return False
        try:
            ones = [torch.ones_like(each) for each in outs]
            torch.autograd.grad(outs, leaves, ones, allow_unused=True)
        except _NO_GRADIENT:
            return True
        except Exception:
            return False
        return False
