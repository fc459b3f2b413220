"""What can be told of tensors beside their values: where they lie in memory, and which of them are
one tensor, or share memory. Needs torch."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


def layout(tensor: Any) -> str:
    """dtype, shape, whether it requires a gradient, and the strides that can be felt: of axes with
    more than one element."""
    about = f"{tensor.dtype} {list(tensor.shape)} requires_grad={tensor.requires_grad}"
    if str(tensor.layout) != "torch.strided" or not tensor.numel():
        return about
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    return f"{about} strides={[step for size, step in steps if size > 1]}"


def together(tensors: Iterable[Any]) -> list[tuple[int, int]]:
    """For each tensor the place of the first that is the same object, and of the first that shares
    its memory."""
    objects: dict[int, int] = {}
    memories: dict[Any, int] = {}
    kept = list(tensors)
    return [
        (objects.setdefault(id(t), i), memories.setdefault(_memory(t), i))
        for i, t in enumerate(kept)
    ]


def _memory(tensor: Any) -> Any:
    try:
        return tensor.untyped_storage().data_ptr() or id(tensor)
    except (RuntimeError, NotImplementedError):  # sparse, on no device
        return id(tensor)
