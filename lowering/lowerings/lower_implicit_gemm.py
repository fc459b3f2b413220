"""Convolutions on tensor cores in a kernel of ours, as products of matrices that are gathered while
they are read (implicit GEMM): what reads the result is computed in the same kernel.

The library writes the result, which each loop that follows reads and writes once more, and turns
images of few channels into another order before it works on them. On an H200, a convolution of 3
channels by 3 x 3 with a bias and relu took 0.7 ms where the library and a loop took 1.7; one of 64
channels by 1 x 1 took 0.2 ms for 0.4.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import torch
from torch.fx import Node

from ..loops import sizes
from ..loops.ir import IndexValue, Nest, Reduced, Value
from ..loops.kernel_graph import Layout, Ref
from ..loops.sizes import Index
from .lower_index import all_within
from .lower_pool import Coordinates, Windows, element_at
from .lowering_context import LoweringContext
from .value_builders import cast, const, op

aten = torch.ops.aten

FEW = 16  # channels, below which the library is slow
# Products of an element, above which the library's kernels gain more than a pass over memory costs:
# of few channels, where each is three, and of others.
_MOST_EXACT, _MOST_ROUNDED = 160, 320
_MOST_SPREAD = 4  # times as many products as there are elements that a transposed one leads to
_LEAST_POINTS = 1 << 14  # pixels of the result that fill a GPU with tiles
_LIBRARY = frozenset({aten.convolution.default, aten.mm.default, aten.addmm.default})
_EXACT, _ROUNDED = "products in tf32x3", "products in tf32"


def implicit_gemm(ctx: LoweringContext, node: Node, operands: Sequence[Any]) -> Ref | None:
    """The convolution as a matrix product in loops; None for any other call, and where the library
    is as fast.

    Of few channels the library rounds to TF32 or not, by sizes and the order in memory; here three
    products stand for each, which is as exact as float32."""
    if ctx.ordered or node.target is not aten.convolution.default or not _fits(node):
        return None
    x, weight, bias, stride, padding, dilation, transposed = operands[:7]
    channels, taps = x.shape[1], weight.shape[2:]
    few, once = channels < FEW, prod(taps) == 1
    if not (_few_gain(node, channels * prod(taps)) if few else _many_gain(ctx, node, x, weight)):
        return None
    if not few:
        weight = _rounded(ctx, weight)
        x = x if once else _rounded(ctx, x)
    numbers = (tuple(n) * (len(taps) if len(n) == 1 else 1) for n in (stride, padding, dilation))
    windows = Windows(x.shape[2:], taps, *numbers)
    element_of = _spread if transposed else _gathered

    def products(outer: tuple[Index, ...], within: tuple[Index, ...]) -> Value:
        image, channel, *window = outer
        plane, *place = within
        element = element_of(x, (image, plane), windows, tuple(window), tuple(place))
        if once and not few:
            element = op("tf32", element)
        first, second = (plane, channel) if transposed else (channel, plane)
        product = op("mul", element, weight.load((first, second, *place)))
        total: Value = Reduced(_EXACT if few else _ROUNDED, product, torch.float32)
        if bias is not None:
            total = op("add", total, cast(bias.load((channel,)), torch.float32))
        return total

    return ctx.reduce(ctx.result(ctx.value_of(node)), (channels, *taps), products)


def _gathered(
    x: Ref, plane: Coordinates, windows: Windows, window: Coordinates, place: Coordinates
) -> Value:
    """What one place of a window has of the image."""
    return element_at(x, plane, windows.source(window, place))[0]


def _spread(
    x: Ref, plane: Coordinates, windows: Windows, window: Coordinates, place: Coordinates
) -> Value:
    """What goes to `window` of a transposed convolution by one place of the weight: an element of
    the image, or 0 where none lies so that the stride leads there."""
    source, hits = [], list[Value]()
    numbers = zip(windows.stride, windows.padding, windows.dilation, strict=True)
    for at, tap, (stride, padding, dilation) in zip(window, place, numbers, strict=True):
        steps = sizes.add(at, sizes.scale(tap, -dilation), sizes.const(padding))
        source.append(sizes.floordiv(steps, stride))
        if stride > 1:
            rest = IndexValue(sizes.mod(steps, stride))
            hits.append(op("eq", rest, const(0, torch.int64)))
    inside = all_within(source, x.shape[2:])
    for hit in hits:
        inside = hit if inside is None else op("and", inside, hit)
    return x.load((*plane, *source), inside)


def _fits(node: Node) -> bool:
    """Whether it is a convolution of one group in float32 that may be made so, large enough."""
    given: list[Any] = [getattr(each, "meta", {}).get("val") for each in node.args[:3]]
    x, weight, bias = given
    groups = node.args[8]
    tensors = [t for t in (x, weight, bias) if t is not None]
    known = all(isinstance(size, int) for t in tensors for size in (*t.shape, *t.stride()))
    made = node.meta["val"]
    if groups != 1 or not known or 0 in (*x.shape, *made.shape):
        return False
    if any(t.dtype is not torch.float32 for t in tensors) or not _allowed(x.device):
        return False
    points = made.numel() // made.shape[1]
    return bool(x.dim() == weight.dim() > 2 and points >= _LEAST_POINTS)


def _allowed(device: torch.device) -> bool:
    """Whether convolutions may round to TF32, on a device for which this was measured: NVIDIA's of
    compute capability 9 (the interpreter of Triton stands for it)."""
    precision: Any = getattr(torch.backends.cudnn, "conv")  # noqa: B009, stubs do not name it
    if not torch.backends.cudnn.enabled or precision.fp32_precision != "tf32":
        return False
    if device.type == "cpu" or not torch.cuda.is_available():
        return True
    return torch.version.hip is None and torch.cuda.get_device_capability(device)[0] == 9


def _few_gain(node: Node, summed: int) -> bool:
    """Whether a convolution of few channels, with so many products for each element of the result,
    takes less time so."""
    stride, transposed = prod(node.args[3]), node.args[6]  # type: ignore[arg-type]
    if transposed and stride > 1:
        return stride <= _MOST_SPREAD and summed <= _MOST_EXACT // 2
    return summed <= _MOST_EXACT


def _many_gain(ctx: LoweringContext, node: Node, x: Ref, weight: Ref) -> bool:
    """Whether one of many channels does: where each element is read once; or where the result takes
    little to compute, of an image that a loop makes for it alone, which rounds it at no cost."""
    if node.args[6] or prod(weight.shape[2:]) == 1:
        return not node.args[6]
    nests = (item for item in ctx.items if isinstance(item, Nest))
    made_here = any(store.buffer is x.buffer for nest in nests for store in nest.stores)
    alone = len(node.args[0].users) == 1  # type: ignore[union-attr]
    simple = x.strides[1] == 1 and prod(weight.shape[1:]) <= _MOST_ROUNDED
    return simple and made_here and alone and _is_stored_by_loops(node)


def _rounded(ctx: LoweringContext, given: Ref) -> Ref:
    """The operand as tensor cores take it, its channels side by side."""
    _, channels, *sides = given.shape
    steps = [prod(sides[k + 1 :]) * channels for k in range(len(sides))]
    strides = (prod(sides) * channels, 1, *steps)
    layout = Layout(given.shape, strides, ctx.device_of(given))
    made = Ref(ctx.buffer("rounded", given.dtype, layout), given.shape, strides)
    return ctx.fill(made, lambda at: op("tf32", given.load(at)))


def _is_stored_by_loops(node: Node) -> bool:
    """Whether all that reads the result computes element by element what is then stored: that has a
    place in the kernel, which a fold of it has not."""
    return bool(node.users) and all(
        _is_pointwise(user, node)
        and all(
            other.op == "output" or other.target in _LIBRARY or _is_stored_by_loops(user)
            for other in user.users
        )
        for user in node.users
    )


def _is_pointwise(user: Node, node: Node) -> bool:
    target, made = user.target, user.meta.get("val")
    if not isinstance(target, torch._ops.OpOverload) or not isinstance(made, torch.Tensor):
        return False
    known = torch.Tag.pointwise in target.tags or target is aten.clone.default
    return known and made.shape == node.meta["val"].shape
