"""The history behind tensors: the nodes of autograd that a backward would run."""

from collections.abc import Sequence
from typing import Any

import torch


def nodes_behind(tensors: Sequence[torch.Tensor]) -> list[Any]:
    """Every node of autograd that is reached from the tensors, in the order in which they are
    met."""
    waiting: list[Any] = [tensor.grad_fn for tensor in tensors if tensor.grad_fn is not None]
    seen = dict.fromkeys(waiting)
    while waiting:
        for following, _ in waiting.pop().next_functions:
            if following is not None and following not in seen:
                seen[following] = None
                waiting.append(following)
    return list(seen)


def leaves_behind(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The leaves whose `.grad` a `backward()` of the tensors adds to."""
    leaves = {
        id(tensor): tensor for tensor in tensors if tensor.grad_fn is None and tensor.requires_grad
    }
    for node in nodes_behind(tensors):
        variable = getattr(node, "variable", None)
        if isinstance(variable, torch.Tensor) and type(node).__name__ == "AccumulateGrad":
            leaves.setdefault(id(variable), variable)
    return list(leaves.values())
