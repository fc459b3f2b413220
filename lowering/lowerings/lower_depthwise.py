"""Convolutions of each channel by itself.

On the CPU, of a few channels (blurs, gradients of images): the library is five to fifteen times as
fast on images in channels-last order, which loops turn them into here, and back. On a GPU, of
images whose channels are planes: the library takes several times what memory would. Either joins
what makes the image and what reads the result.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from math import prod
from typing import Any

import torch
from torch.fx import Node

from ..loops import sizes
from ..loops.ir import Value
from ..loops.kernel_graph import ExternCall, Layout, Ref
from .lower_pool import Coordinates, Windows, element_at
from .lowering_context import LoweringContext
from .value_builders import cast, compute_dtype, const, op

aten = torch.ops.aten

_MAX_CHANNELS = 8  # channels; with more the library has an order of its own that is as fast
_MIN_PIXELS = 64  # pixels
_MAX_TAPS = 25  # products that are written out
_TARGETS = (aten.convolution.default, aten.convolution_backward.default)


def turned_depthwise(ctx: LoweringContext, node: Node, operands: Sequence[Any]) -> Any:
    """The convolution, or its gradients, by a call on turned images; None where that is not faster,
    and for any other call."""
    if node.target not in _TARGETS or node.kwargs or not _pays(node):
        return None
    images = 1 + (node.target is aten.convolution_backward.default)
    given = (*(_turned(ctx, image) for image in operands[:images]), *operands[images:])
    value = node.meta["val"]
    if isinstance(value, torch.Tensor):
        made = _result(ctx, value, turned=True)
        ctx.items.append(ExternCall(_TARGETS[0], given, {}, made, ctx.origin))
        return ctx.fill(ctx.result(value), made.load)
    results = tuple(
        None if each is None else _result(ctx, each, turned=k == 0) for k, each in enumerate(value)
    )
    ctx.items.append(ExternCall(_TARGETS[1], given, {}, results, ctx.origin))
    # in the strides of the results, which the library gives otherwise where a size is one
    return tuple(
        None if made is None else ctx.fill(ctx.result(each), made.load)
        for made, each in zip(results, value, strict=True)
    )


def depthwise_in_loops(ctx: LoweringContext, node: Node, operands: Sequence[Any]) -> Ref | None:
    """The convolution of a GPU's planes, its products written out; None for any other call."""
    if ctx.ordered or node.target is not aten.convolution.default or not _has_planes(node):
        return None
    x, weight, bias, stride, padding, dilation, _, _, groups = operands
    rank, compute = len(x.shape) - 2, compute_dtype(x.dtype)
    numbers = (
        tuple(each) * (rank if len(each) == 1 else 1) for each in (stride, padding, dilation)
    )
    windows = Windows(x.shape[2:], weight.shape[2:], *numbers)

    def sum_of_products(at: Coordinates) -> Value:
        image, channel, *window = at
        plane = sizes.floordiv(channel, weight.shape[0] // groups)
        total: Value = const(0.0, compute)
        if bias is not None:
            total = cast(bias.load((channel,)), compute)
        for within in product(*map(range, windows.kernel)):
            place = tuple(map(sizes.const, within))
            element, _ = element_at(x, (image, plane), windows.source(tuple(window), place))
            factor = weight.load((channel, sizes.ZERO, *place))
            total = op("fma", cast(element, compute), cast(factor, compute), total)
        return cast(total, x.dtype)

    return ctx.fill(ctx.result(ctx.value_of(node)), sum_of_products)


def _has_planes(node: Node) -> bool:
    given: list[Any] = [getattr(each, "meta", {}).get("val") for each in node.args]
    x, weight, bias = given[:3]
    transposed, groups = node.args[6], node.args[8]
    tensors = [x, weight] if bias is None else [x, weight, bias]
    known = all(isinstance(size, int) for t in tensors for size in (*t.shape, *t.stride()))
    if transposed or not known or 0 in (*x.shape, *node.meta["val"].shape):
        return False
    taps = prod(weight.shape[2:])
    own = groups == x.shape[1] > 1 and weight.shape[1] == 1 and x.dim() == weight.dim() > 2
    planes = x.is_contiguous() and prod(x.shape[2:]) > 1 and taps <= _MAX_TAPS
    return bool(own and planes and x.dtype.is_floating_point and x.dtype == weight.dtype)


def _pays(node: Node) -> bool:
    backward = node.target is aten.convolution_backward.default
    *images, weight = (n.meta["val"] for n in node.args[: 2 + backward])  # type: ignore[union-attr]
    transposed, groups = (node.args[k + backward] for k in (6, 8))
    if (
        transposed
        or weight.dim() != 4
        or not isinstance(groups, int)
        or not 1 < groups <= _MAX_CHANNELS
    ):
        return False
    known = all(isinstance(size, int) for t in (*images, weight) for size in t.shape)
    if not known or tuple(weight.shape[:2]) != (groups, 1):
        return False
    return all(
        t.device.type == "cpu"
        and t.dtype is torch.float32
        and t.is_contiguous()
        and t.shape[2] * t.shape[3] >= _MIN_PIXELS
        for t in images
    )


def _turned(ctx: LoweringContext, image: Ref) -> Ref:
    layout = Layout(image.shape, _in_order(image.shape), ctx.device_of(image))
    made = Ref(ctx.buffer("turned", image.dtype, layout), layout.shape, layout.strides)
    return ctx.fill(made, image.load)


def _result(ctx: LoweringContext, like: torch.Tensor, *, turned: bool) -> Ref:
    strides = _in_order(like.shape) if turned else tuple(like.stride())
    layout = Layout(tuple(like.shape), strides, like.device)
    return Ref(ctx.buffer("ext", like.dtype, layout), layout.shape, layout.strides)


def _in_order(shape: Sequence[Any]) -> tuple[Any, ...]:
    """Channels-last strides."""
    _, c, h, w = shape
    return (c * h * w, 1, w * c, c)
