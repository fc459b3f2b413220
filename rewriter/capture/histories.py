"""The history behind tensors: the nodes of autograd that a backward would run."""

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from ...runtime.programs.recipes import Apply, Input
from ...runtime.programs.steps import CALL_INPUT


def nodes_behind(tensors: Sequence[torch.Tensor]) -> list[Any]:
    """Every node of autograd that is reached from the tensors, in the order in which they are
    met."""
    return nodes_after(tensor.grad_fn for tensor in tensors if tensor.grad_fn is not None)


def nodes_after(nodes: Iterable[Any]) -> list[Any]:
    """The nodes and every other that is reached from them."""
    waiting = list(nodes)
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


def stays_leaf(rec: Any, tensor: torch.Tensor) -> bool:
    """Whether a tensor has no history, now and at later calls: that is asked of an input that
    requires a gradient."""
    value = rec.value(tensor)
    made = rec.reshaped.get(value, value).home != CALL_INPUT
    if tensor.grad_fn is not None or made:
        return tensor.grad_fn is None
    if value.home != CALL_INPUT or not value.meta.requires_grad:
        return bool(value.home == CALL_INPUT)
    place = Apply(_is_leaf, (Input(value.index),))
    rec.outcomes.append((0, place, True))
    return True


def _is_leaf(tensor: torch.Tensor) -> bool:
    return tensor.is_leaf
