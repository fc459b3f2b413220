"""What can be told of tensors beside their values: where they lie in memory, and which of them are
one tensor, or share memory. Needs torch."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

_SAMPLES = 256  # values of a tensor that are compared with a tolerance
_TOLERANCE = 2e-3  # of a tensor's largest magnitude: 16-bit floats round at 4e-3 of a value


def layout(tensor: Any, with_strides: bool = True) -> str:
    """dtype, shape, whether it requires a gradient, and the strides that can be felt: of axes with
    more than one element."""
    about = f"{tensor.dtype} {list(tensor.shape)} requires_grad={tensor.requires_grad}"
    if not with_strides or str(tensor.layout) != "torch.strided" or not tensor.numel():
        return about
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    return f"{about} strides={[step for size, step in steps if size > 1]}"


def samples(tensor: Any) -> list[float]:
    """A floating-point tensor's largest magnitude, and values of it as parts of that: what `near`
    compares."""
    flat = tensor.detach().cpu().double().reshape(-1)
    flat = flat[:: max(1, flat.numel() // _SAMPLES)]
    finite = flat[flat.isfinite()].abs()
    largest = float(finite.max()) if finite.numel() else 0.0
    return [largest, *(flat / (largest or 1.0)).tolist()]


def near(first: Any, second: Any) -> bool:
    """Whether nested lists and dicts are equal, but for rounding in the floats."""
    if isinstance(first, float) and isinstance(second, float):
        same = first == second or (math.isnan(first) and math.isnan(second))
        return same or abs(first - second) <= _TOLERANCE * max(1.0, abs(first))
    if isinstance(first, list) and isinstance(second, list):
        return len(first) == len(second) and all(map(near, first, second))
    if isinstance(first, dict) and isinstance(second, dict):
        return first.keys() == second.keys() and all(near(first[k], second[k]) for k in first)
    return bool(first == second)


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
