"""Convolutions by groups on a GPU whose groups have a number of channels that is no power of two.

The library's kernels for channels-last images want groups of 8, 16, 32, ... channels. For others it
copies image, weight and result into such an order around each call, by kernels that take several
times as long as the convolution: on an H200, groups of 24 channels in bfloat16 took 130 us forward,
125 and 130 us backward where groups of 32 take 21, 24 and 21. Loops make groups wider here: they
join what makes the operands and what reads the result.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch
from torch.fx import Node

from ..loops import sizes
from ..loops.ir import Select, Value
from ..loops.kernel_graph import ExternCall, Layout, Ref
from ..loops.sizes import Index
from .lower_index import all_within
from .lower_products import DEVICES
from .lowering_context import LoweringContext
from .value_builders import const

aten = torch.ops.aten

# The widest groups that are faster than narrower ones and their copies.
_WIDEST = {aten.convolution.default: 32, aten.convolution_backward.default: 64}
_GROWTH = 1.5  # how much wider groups may get
_MIN_GROUP_CHANNELS = 8


def with_wider_groups(ctx: LoweringContext, node: Node, operands: Sequence[Any]) -> Any:
    """The convolution, or its gradients, by a library call with wider groups; None where that is
    not faster, and for any other call."""
    groups = _groups(node)
    if groups is None:
        return None
    if node.target is aten.convolution.default:
        return _forward(ctx, node, operands, groups)
    return _backward(ctx, node, operands, groups)


def _forward(ctx: LoweringContext, node: Node, operands: Sequence[Any], groups: _Groups) -> Ref:
    x, weight, bias, *settings = operands
    given = (
        groups.widened(ctx, x, 1),
        groups.widened(ctx, weight, 0, 1),
        None if bias is None else groups.widened(ctx, bias, 0),
    )
    value = ctx.value_of(node)
    made = groups.result(ctx, value, 1)
    ctx.items.append(
        ExternCall(aten.convolution.default, (*given, *settings), {}, made, ctx.origin)
    )
    return groups.cut(ctx, value, made, 1)


def _backward(ctx: LoweringContext, node: Node, operands: Sequence[Any], groups: _Groups) -> Any:
    gradient, x, weight, biases, *settings = operands
    given = [groups.widened(ctx, gradient, 1), groups.widened(ctx, x, 1)]
    given.append(groups.widened(ctx, weight, 0, 1))
    if biases is not None:
        biases = [groups.count * groups.wide]
    values, axes = node.meta["val"], ((1,), (0, 1), (0,))
    made = tuple(
        None if value is None else groups.result(ctx, value, *each)
        for value, each in zip(values, axes, strict=True)
    )
    target, arguments = aten.convolution_backward.default, (*given, biases, *settings)
    ctx.items.append(ExternCall(target, arguments, {}, made, ctx.origin))
    return tuple(
        None if wide is None else groups.cut(ctx, value, wide, each[0])
        for value, wide, each in zip(values, made, axes, strict=True)
    )


def _groups(node: Node) -> _Groups | None:
    """How the groups are to be, where that is faster."""
    if node.target not in _WIDEST or node.kwargs:
        return None
    backward = node.target is aten.convolution_backward.default
    given: list[Any] = [n.meta["val"] for n in node.args[: 2 + backward]]  # type: ignore[union-attr]
    *images, weight = given
    transposed, groups = (node.args[k + backward] for k in (6, 8))
    half = all(t.dtype in (torch.bfloat16, torch.float16) for t in given)
    if images[0].device.type not in DEVICES or not half or images[0].dim() != 4:
        return None
    known = all(isinstance(size, int) for t in given for size in (*t.shape, *t.stride()))
    if transposed or groups == 1 or not known:
        return None
    width = weight.shape[1]
    wide = 1 << (width - 1).bit_length()
    worth = _MIN_GROUP_CHANNELS < wide <= _WIDEST[node.target] and width < wide <= _GROWTH * width
    if not worth or weight.shape[0] != width * groups:
        return None
    if not all(t.is_contiguous(memory_format=torch.channels_last) for t in images):
        return None
    return _Groups(groups, width, wide)  # type: ignore[arg-type]


@dataclasses.dataclass(frozen=True)
class _Groups:
    """`count` groups of `width` channels, which are to be `wide`."""

    count: int
    width: int
    wide: int

    def widened(self, ctx: LoweringContext, given: Ref, *axes: int) -> Ref:
        """A copy with wider groups along the first of the axes, and room along the second; what is
        added is zero, since it is summed over."""
        shape = self._shape(given.shape, axes)
        layout = Layout(shape, _in_order(shape), ctx.device_of(given))
        made = Ref(ctx.buffer("wide", given.dtype, layout), shape, layout.strides)
        source = self._with_group_axis(given, axes[0], self.width)

        def body(at: tuple[Index, ...]) -> Value:
            inside = all_within(at, source.shape)
            assert inside is not None
            return Select(inside, source.load(at, inside), const(0, given.dtype))

        ctx.fill(self._with_group_axis(made, axes[0], self.wide), body)
        return made

    def result(self, ctx: LoweringContext, like: torch.Tensor, *axes: int) -> Ref:
        """What the library makes in place of `like`."""
        shape = self._shape(like.shape, axes)
        layout = Layout(shape, _in_order(shape), like.device)
        return Ref(ctx.buffer("ext", like.dtype, layout), shape, layout.strides)

    def cut(self, ctx: LoweringContext, like: torch.Tensor, made: Ref, axis: int) -> Ref:
        """The result without what was added to it."""

        def body(at: tuple[Index, ...]) -> Value:
            group = sizes.floordiv(at[axis], self.width)
            place = sizes.add(sizes.scale(group, self.wide), sizes.mod(at[axis], self.width))
            return made.load((*at[:axis], place, *at[axis + 1 :]))

        return ctx.fill(ctx.result(like), body)

    def _shape(self, shape: Sequence[Any], axes: Sequence[int]) -> tuple[int, ...]:
        return tuple(
            size // self.width * self.wide if axis in axes else size
            for axis, size in enumerate(shape)
        )

    def _with_group_axis(self, ref: Ref, axis: int, width: int) -> Ref:
        """The tensor with an axis for groups before that of their channels."""
        step = ref.strides[axis]
        shape = (*ref.shape[:axis], self.count, width, *ref.shape[axis + 1 :])
        strides = (*ref.strides[:axis], width * step, *ref.strides[axis:])
        return dataclasses.replace(ref, shape=shape, strides=strides)


def _in_order(shape: Sequence[int]) -> tuple[int, ...]:
    """Channels-last strides of an image; those of a vector."""
    if len(shape) == 1:
        return (1,)
    _, c, h, w = shape
    return (c * h * w, 1, w * c, c)
