"""Adaptive maximum pooling whose windows do not overlap: a pooling like any other, or, where one
window is the whole plane, the extremum of its row."""

from collections.abc import Sequence
from typing import Any

import torch

from .pool_offsets import is_channels_last

aten = torch.ops.aten


def _windows(x: torch.Tensor, size: Sequence[int]) -> list[int] | None:
    """The sides of the windows, if all are alike and none shares an element with another. In
    channels-last images the library finds places in vectors, which halves gain nothing over."""
    sides = x.shape[-2:]
    if not all(type(number) is int and number > 0 for number in (*x.shape, *size)):
        return None
    if not x.is_floating_point() or any(a % b for a, b in zip(sides, size, strict=True)):
        return None
    if x.device.type != "cpu" or (x.dtype.itemsize < 4 and is_channels_last(x)):
        return None
    return [a // b for a, b in zip(sides, size, strict=True)]


def _in_order(made: torch.Tensor, x: torch.Tensor, size: Sequence[int]) -> torch.Tensor:
    """The numbers in the order of memory that eager gives them."""
    order = torch.channels_last if is_channels_last(x) else torch.contiguous_format
    shape = [*x.shape[:-2], *size]
    into = torch.empty(shape, dtype=made.dtype, device=made.device, memory_format=order)
    made = made.reshape(shape)
    return made if made.stride() == into.stride() else aten.copy.default(into, made)


def pooled(x: torch.Tensor, size: Sequence[int]) -> Any:
    """`aten.adaptive_max_pool2d`: values and their places in the plane. Of several NaNs eager's
    loops take the last."""
    windows = _windows(x, size)
    if windows is None:
        return NotImplemented
    if any(number != 1 for number in size):
        return aten.max_pool2d_with_indices.default(x, windows, windows)
    rows = x.flatten(-2)
    values = rows.amax(-1)
    unknown = torch.where(rows != rows, torch.arange(rows.shape[-1], device=x.device), -1).amax(-1)
    places = torch.where(unknown < 0, rows.argmax(-1), unknown)
    return _in_order(values, x, size), _in_order(places, x, size)


def gradient(grad: torch.Tensor, x: torch.Tensor, places: torch.Tensor) -> Any:
    """`aten.adaptive_max_pool2d_backward`."""
    size = grad.shape[-2:]
    windows = _windows(x, size)
    if windows is None:
        return NotImplemented
    if any(number != 1 for number in size):
        given = grad, x, windows, windows, [0, 0], [1, 1], False, places
        return aten.max_pool2d_with_indices_backward.default(*given)
    here = torch.arange(x.shape[-2] * x.shape[-1], device=x.device) == places.flatten(-2)
    return _in_order(torch.where(here, grad.flatten(-2), 0), x, x.shape[-2:])
