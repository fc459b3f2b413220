"""Differentiation inside a torch-level graph: `torch.autograd.grad`, and `backward()` as the
gradients of leaves, laid out as autograd leaves them."""

from collections.abc import Sequence

import torch
from torch.fx import GraphModule


def leaf_gradients(
    tensors: Sequence[torch.Tensor],
    given: Sequence[torch.Tensor | None] | None,
    leaves: Sequence[torch.Tensor],
    retain: bool,
    create: bool,
) -> list[torch.Tensor | None]:
    """What `torch.autograd.backward(tensors, given)` adds to the `.grad` of each leaf, None where
    nothing arrives. Each is memory of its own, strided as its leaf (a leaf with gaps or overlaps
    gets contiguous rows), as AccumulateGrad leaves it."""
    found = torch.autograd.grad(
        tensors, leaves, given, retain_graph=retain, create_graph=create, allow_unused=True
    )
    used = [each for each in (*(given or ()), *leaves, *tensors) if each is not None]
    taken = {_memory(each) for each in used}
    made: list[torch.Tensor | None] = []
    for leaf, gradient in zip(leaves, found, strict=True):
        if gradient is not None and not create:
            gradient = _kept(gradient.detach(), leaf, taken)
            taken.add(_memory(gradient))
        made.append(gradient)
    return made


def _memory(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def _kept(gradient: torch.Tensor, leaf: torch.Tensor, taken: set[int]) -> torch.Tensor:
    """The gradient, copied where autograd would not keep it as it is."""
    wanted = torch.empty_like(leaf, memory_format=torch.preserve_format).stride()
    if gradient.stride() == wanted and _memory(gradient) not in taken:
        return gradient
    with torch.no_grad():
        return torch.empty_like(leaf, requires_grad=False).copy_(gradient)


def differentiates(gm: GraphModule) -> bool:
    """Whether gradients are taken inside the graph."""
    inside = (leaf_gradients, torch.autograd.grad)
    return any(node.op == "call_function" and node.target in inside for node in gm.graph.nodes)
