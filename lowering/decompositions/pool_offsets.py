"""Maximum pooling that remembers positions within windows, a byte each, and a gradient of it that
needs no input: what a training forward keeps of a pooling is an eighth of its places.

torch's operators give places in the plane, eight bytes each, and ask for the input again to know
its sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import torch
from torch._prims_common import suggest_memory_format
from torch.fx import GraphModule, Node

aten = torch.ops.aten
_LIBRARY: Any = torch.library.Library("dynfix", "FRAGMENT")  # type: ignore[no-untyped-call]
_LIBRARY.define(
    "max_pool2d_offsets(Tensor x, int[] kernel, int[] stride, int[] padding, int[] dilation,"
    " bool ceil_mode) -> (Tensor, Tensor)"
)
_WINDOWS = "int[] kernel, int[] stride, int[] padding, int[] dilation"
_LIBRARY.define(f"max_pool2d_places(Tensor offsets, SymInt[] size, {_WINDOWS}) -> Tensor")
_LIBRARY.define(
    "max_pool2d_offsets_backward(Tensor grad, Tensor offsets, SymInt[] size, bool channels_last,"
    f" {_WINDOWS}, bool ceil_mode) -> Tensor"
)
_MAX_WINDOW_POSITIONS = 127  # positions in a window that a byte tells apart
_MOST_ON_HOST = 16  # and up to which the host's loops are faster than the library's

Pair = Sequence[int]


def pair(given: Any) -> list[int]:
    numbers = [given] if isinstance(given, int) else list(given)
    return numbers * 2 if len(numbers) == 1 else numbers


def _starts(count: Any, stride: int, padding: int, device: torch.device) -> torch.Tensor:
    """Where the windows along an axis start, int64."""
    return torch.arange(count, device=device) * stride - padding


def _places(
    offsets: torch.Tensor,
    size: Sequence[Any],
    kernel: Pair,
    stride: Pair,
    padding: Pair,
    dilation: Pair,
) -> torch.Tensor:
    """The positions in planes of a tensor of `size`, row-major, int64, of offsets in windows.
    offsets: (..., rows, columns)."""
    within = offsets.to(torch.int32)
    rows, columns = (
        _starts(offsets.shape[d - 2], stride[d], padding[d], offsets.device) for d in (0, 1)
    )
    row = rows.unsqueeze(-1) + within // kernel[1] * dilation[0]
    return _like(offsets, row * size[-1] + columns + within % kernel[1] * dilation[1])


def _like(x: torch.Tensor, made: torch.Tensor) -> torch.Tensor:
    """The numbers in the strides of `x`."""
    into = torch.empty_like(x, dtype=made.dtype)
    return made if made.stride() == into.stride() else aten.copy.default(into, made)


def _pooled(
    x: torch.Tensor, kernel: Pair, stride: Pair, padding: Pair, dilation: Pair, ceil_mode: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    values, found = aten.max_pool2d_with_indices.default(
        x, kernel, stride, padding, dilation, ceil_mode
    )
    rows, columns = (_starts(found.shape[d - 2], stride[d], padding[d], x.device) for d in (0, 1))
    row = (found // x.shape[-1] - rows.unsqueeze(-1)) // dilation[0]
    column = (found % x.shape[-1] - columns) // dilation[1]
    return values, _like(found, row * kernel[1] + column).to(torch.int8)


def _pooled_fake(
    x: torch.Tensor, kernel: Pair, stride: Pair, padding: Pair, dilation: Pair, ceil_mode: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    values, found = aten.max_pool2d_with_indices.default(
        x, kernel, stride, padding, dilation, ceil_mode
    )
    return values, torch.empty_like(found, dtype=torch.int8)


def _input_of(grad: torch.Tensor, size: Sequence[Any], channels_last: bool) -> torch.Tensor:
    memory = torch.channels_last if channels_last else torch.contiguous_format
    return torch.empty(size, dtype=grad.dtype, device=grad.device, memory_format=memory)


def _backward(
    grad: torch.Tensor, offsets: torch.Tensor, size: Sequence[Any], channels_last: bool, *given: Any
) -> torch.Tensor:
    x = _input_of(grad, size, channels_last)
    found = _places(offsets, size, *given[:4])
    made: torch.Tensor = aten.max_pool2d_with_indices_backward.default(grad, x, *given, found)
    return made


for _name, _made, _fake in (
    ("max_pool2d_offsets", _pooled, _pooled_fake),
    (
        "max_pool2d_places",
        _places,
        lambda offsets, *given: torch.empty_like(offsets, dtype=torch.int64),
    ),
    (
        "max_pool2d_offsets_backward",
        _backward,
        lambda grad, offsets, size, channels_last, *given: _input_of(grad, size, channels_last),
    ),
):
    _LIBRARY.impl(_name, _made, "CompositeExplicitAutograd")
    torch.library.register_fake(f"dynfix::{_name}", _fake, lib=_LIBRARY)
OFFSETS = torch.ops.dynfix.max_pool2d_offsets.default
PLACES = torch.ops.dynfix.max_pool2d_places.default
BACKWARD = torch.ops.dynfix.max_pool2d_offsets_backward.default


def _max_pool2d(
    x: torch.Tensor,
    kernel: Any,
    stride: Any = (),
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
) -> Any:
    sides = pair(kernel)
    windows = sides, pair(stride or sides), pair(padding), pair(dilation)
    empty = any(isinstance(size, int) and size == 0 for size in x.shape)
    if empty or not x.is_floating_point() or prod(sides) > _MAX_WINDOW_POSITIONS:
        return NotImplemented
    if x.device.type == "cpu" and (
        is_channels_last(x)
        or (any(windows[2]) and (prod(sides) > _MOST_ON_HOST or x.dtype == torch.float16))
    ):
        return NotImplemented  # the library's loops that find places are as fast
    values, offsets = OFFSETS(x, *windows, ceil_mode)
    return values, PLACES(offsets, x.shape, *windows)


def is_channels_last(x: torch.Tensor) -> bool:
    return x.dim() == 4 and suggest_memory_format(x) is torch.channels_last


POOLING: dict[Any, Callable[..., Any]] = {aten.max_pool2d_with_indices.default: _max_pool2d}


def keep_offsets(joint: GraphModule) -> None:
    """Let the backward of a pooling take the offsets in place of its input and of the places that
    are made of them, which then are not made."""
    backward = aten.max_pool2d_with_indices_backward.default
    for node in joint.graph.find_nodes(op="call_function", target=backward):
        grad, x, *given, found = node.args
        if not isinstance(found, Node) or found.target is not PLACES:
            continue
        offsets, size, *_ = found.args
        windows = *map(pair, (given[0], given[1] or given[0], *given[2:4])), given[4]
        node.target = BACKWARD
        node.args = (grad, offsets, size, is_channels_last(x.meta["val"]), *windows)
        if not found.users:
            joint.graph.erase_node(found)
