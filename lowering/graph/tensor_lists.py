"""`torch.tensor([t.sum(), 2.0])`: torch reads tensors in a list one by one on the host. In a graph
they are stacked."""

from typing import Any

import torch
from torch.fx import Node

_MAKERS = (torch.tensor, torch.as_tensor, torch.asarray)
_NARROW = (torch.int8, torch.uint8, torch.int16, torch.int32)
_STATED = {"dtype", "device", "requires_grad", "pin_memory"}


def reads_parts(node: Node) -> bool:
    """Whether the node makes a tensor of a list that holds what the graph computes."""
    if node.op != "call_function" or node.target not in _MAKERS or len(node.args) != 1:
        return False
    others = node.kwargs.get("requires_grad") or node.kwargs.get("pin_memory")
    if node.kwargs.get("dtype") in _NARROW:  # an error, where a number is too large
        return False
    return not others and set(node.kwargs) <= _STATED and _holds_nodes(node.args[0])


def _holds_nodes(parts: Any) -> bool:
    if not isinstance(parts, list | tuple):
        return False
    return any(isinstance(part, Node) or _holds_nodes(part) for part in parts)


def made_of(parts: Any, dtype: Any = None, device: Any = None, **off: Any) -> torch.Tensor:
    """What `torch.tensor` makes of nested lists of numbers and tensors: without history, in the
    dtype that theirs promote to, on the CPU unless told otherwise."""
    made = _stacked(parts, torch.get_default_device() if device is None else device)
    return made if dtype is None else made.to(dtype)


def _stacked(part: Any, device: Any) -> torch.Tensor:
    if isinstance(part, list | tuple):
        return torch.stack([_stacked(each, device) for each in part])
    if isinstance(part, torch.Tensor):
        return part.detach().to(device).reshape(())  # of one element, whatever its axes
    return torch.full((), part, device=device)
