"""Which ATen operators AOTAutograd decomposes, and which reach the lowering whole."""

import itertools
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any

import torch
from torch._decomp import core_aten_decompositions, get_decompositions
from torch._decomp.decompositions import upsample_compute_output_size
from torch._prims_common import (
    ELEMENTWISE_TYPE_PROMOTION_KIND,
    elementwise_dtypes,
    get_computation_dtype,
    suggest_memory_format,
)

from ..opinfo import having
from . import adaptive_max, image_gradients, library_draws, losses
from .foreach import foreach_decompositions
from .pool_offsets import POOLING
from .random_numbers import random_decompositions
from .strictness import or_whole

aten = torch.ops.aten
_EXPLICIT: Callable[[], Any] = getattr(
    torch._decomp, "_core_aten_decompositions_post_autograd", core_aten_decompositions
)

_EXTRA = [getattr(aten, name) for name in sorted(having("decomposed"))]

_KEEP = [getattr(aten, name) for name in sorted(having("whole"))]


_SMALL_MATRIX = 1 << 12  # elements, that sums across it read from the cache


def _is_random(overload: Any) -> bool:
    return (
        isinstance(overload, torch._ops.OpOverload)
        and torch.Tag.nondeterministic_seeded in overload.tags
    )


def _biased_product(
    bias: torch.Tensor, a: torch.Tensor, b: torch.Tensor, *, beta: Any = 1, alpha: Any = 1
) -> Any:
    """addmm as a product and a sum, which joins what reads it: on the CPU the library writes the
    bias to memory first. Not for half types, whose bias it adds before it rounds."""
    simple = (
        bias.dim() == 1 and (beta, alpha) == (1, 1) and bias.dtype in (torch.float32, torch.float64)
    )
    return torch.mm(a, b) + bias if simple and bias.device.type == "cpu" else NotImplemented


def _thin_product(a: torch.Tensor, b: torch.Tensor) -> Any:
    """Products of many vectors as sums and products of elements, which join what is around them:
    the library is called for each of them, and reads and writes memory only for that. Not where a
    large matrix lies across the sums."""
    ones = [isinstance(size, int) and size == 1 for size in (a.shape[1], a.shape[2], b.shape[2])]
    if a.device.type != "cpu" or a.dtype not in (torch.float32, torch.float64):
        return NotImplemented
    if ones[1]:
        made = a * b
    elif ones[0] and _sums_along(b, 1):
        made = (a.transpose(1, 2) * b).sum(1, keepdim=True)
    elif ones[2] and _sums_along(a, 2):
        made = (a * b.transpose(1, 2)).sum(2, keepdim=True)
    else:
        return NotImplemented
    return made.clone(memory_format=torch.contiguous_format)  # in the order of the library's


def _sums_along(x: torch.Tensor, dim: int) -> bool:
    """Whether sums of products along the axis are as fast as the library's."""
    rows, columns = x.shape[1:]
    if not isinstance(rows, int) or not isinstance(columns, int):
        return False
    return bool(x.stride(dim) == 1) or rows * columns <= _SMALL_MATRIX


def biased_convolution(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, *settings: Any
) -> Any:
    """A convolution and a sum, which joins what reads it: on GPUs the library adds the bias in a
    kernel of its own, after it has rounded."""
    if bias is None or x.device.type != "cuda":
        return NotImplemented
    made = aten.convolution.default(x, weight, None, *settings)
    return made + bias.view(-1, *(1,) * (made.dim() - 2))


def biased_convolution_backward(
    grad: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, bias: Any, *settings: Any
) -> Any:
    """The same for the gradients: the bias's is a sum, which joins what makes `grad`."""
    *settings_, wanted = settings
    if not wanted[2] or x.device.type != "cuda":
        return NotImplemented
    others = [dim for dim in range(grad.dim()) if dim != 1]
    made = aten.convolution_backward.default(
        grad, x, weight, None, *settings_, [*wanted[:2], False]
    )
    return made[0], made[1], grad.sum(others)


def dropout_backward(grad: torch.Tensor, mask: torch.Tensor, scale: float) -> torch.Tensor:
    """As eager's kernel, which rounds once."""
    return grad * mask * scale


def _contiguous_on_host(decomposed: Callable[..., Any]) -> Callable[..., Any]:
    """torch's decomposition, with the result contiguous where eager's kernel makes it so."""

    def forward(x: torch.Tensor) -> Any:
        return decomposed(x.contiguous() if x.device.type == "cpu" else x)

    return forward


def _in_order_of_eager(decomposed: Callable[..., Any]) -> Callable[..., Any]:
    """torch's padding, with the result in the order that eager's kernels give it: the input's on
    the CPU (torch before 2.13 looks at what it has made)."""

    def padded(x: torch.Tensor, pad: Sequence[Any]) -> Any:
        on_host = x.device.type == "cpu"
        order = suggest_memory_format(x) if on_host else torch.contiguous_format
        return decomposed(x, pad).contiguous(memory_format=order)

    return padded


def replace_decomposition(
    op: Any, change: Callable[[Callable[..., Any]], Callable[..., Any]]
) -> None:
    """Changes torch's decompositions of the operator, which calls before may have looked up."""
    op.py_kernels.update({key: change(fn) for key, fn in op.py_kernels.items()})
    op._dispatch_cache.clear()


_MARGINS: Any = aten.multilabel_margin_loss_forward.default
replace_decomposition(_MARGINS, lambda _: losses.margin_losses)


def _draws_no_certain_loss(decomposed: Callable[..., Any]) -> Callable[..., Any]:
    """torch's decomposition, but for a dropout of all elements, for which eager draws nothing."""

    def dropped(x: torch.Tensor, p: float, train: bool | None) -> Any:
        if not train or p != 1:
            return decomposed(x, p, train)
        return x * torch.zeros((), dtype=x.dtype, device=x.device)

    return dropped


_DROPOUT: Any = aten.dropout.default
replace_decomposition(_DROPOUT, _draws_no_certain_loss)


def _bytes_whole(decomposed: Callable[..., Any], whole: Any) -> Callable[..., Any]:
    """torch's decomposition, but for images of bytes, whose sums eager's kernel rounds its own
    way."""

    def resized(x: torch.Tensor, size: Any, align_corners: bool, scales: Any = None) -> Any:
        if x.dtype is not torch.uint8:
            return decomposed(x, size, align_corners, scales)
        made = upsample_compute_output_size(x.size(), size, scales)  # type: ignore[no-untyped-call]
        with torch._C._AutoDispatchBelowAutograd():  # where the operator is decomposed, too
            return whole(x, made, align_corners, *(scales or (None, None)))

    return resized


def _linear_by_weights(decomposed: Callable[..., Any]) -> Callable[..., Any]:
    """torch's decomposition of integers; of others one by eager's weights, with a gradient that
    stores each element once."""

    def resized(x: torch.Tensor, size: Any, align_corners: bool, scales: Any = None) -> Any:
        if not x.is_floating_point():
            return decomposed(x, size, align_corners, scales)
        made = upsample_compute_output_size(x.size(), size, scales)  # type: ignore[no-untyped-call]
        how: Any = made, align_corners, scales or [None] * len(made)
        gradient = image_gradients.linear(x, *how)
        return image_gradients.with_gradient(
            x, lambda x: image_gradients.resized_linear(x, *how), gradient
        )

    return resized


def _cubic_by_axes(decomposed: Callable[..., Any]) -> Callable[..., Any]:
    """torch's decomposition, which takes sixteen elements for one, on the CPU as two of four, and
    with a gradient that stores each element once."""

    def resized(x: torch.Tensor, size: Any, align_corners: bool, scales: Any = None) -> Any:
        made = upsample_compute_output_size(x.size(), size, scales)  # type: ignore[no-untyped-call]
        given = scales or [None] * len(made)
        gradient = image_gradients.cubic(x, made, align_corners, given)
        if x.device.type == "cpu":
            return image_gradients.with_gradient(
                x,
                lambda x: image_gradients.resized_cubic(x, made, align_corners, given),
                gradient,
            )
        apply = partial(
            decomposed, output_size=size, align_corners=align_corners, scale_factors=scales
        )
        return image_gradients.with_gradient(x, apply, gradient)

    return resized


def _with_nearest_gradient(decomposed: Callable[..., Any], exact: bool) -> Callable[..., Any]:
    def resized(x: torch.Tensor, size: Any, scales: Any = None) -> Any:
        made = upsample_compute_output_size(x.size(), size, scales)  # type: ignore[no-untyped-call]
        gradient = image_gradients.nearest(x, made, scales or [None] * len(made), exact)
        apply = partial(decomposed, output_size=size, scale_factors=scales)
        return image_gradients.with_gradient(x, apply, gradient)

    return resized


def _take(x: torch.Tensor, positions: torch.Tensor) -> Any:
    """`take`; torch's own decomposition reads a position without axes on the host."""
    return aten.index.Tensor(x.reshape(-1), [positions])


def _eye(rows: int, columns: int | None = None, **made: Any) -> Any:
    """torch's own counts in types that the CPU has no `arange` of."""
    device = made.get("device")
    if made.get("layout") not in (None, torch.strided) or made.get("pin_memory"):
        return NotImplemented
    places = torch.arange(rows, device=device)
    others = places if columns is None else torch.arange(columns, device=device)
    return (places.unsqueeze(-1) == others).to(made.get("dtype") or torch.get_default_dtype())


def _zeros(size: Sequence[Any], **made: Any) -> torch.Tensor:
    """In place of zeros that take no memory (gradients of `sgn`), whose views are not recorded."""
    return torch.zeros(size, **made)


def _vector_norm(
    x: torch.Tensor, ord: Any = 2, dim: Any = None, keepdim: bool = False, *, dtype: Any = None
) -> Any:
    """Norms along some of the axes as sums, which join what is around them."""
    dims = [dim] if isinstance(dim, int) else list(dim or ())
    simple = ord in (1, 2) and dtype is None and x.is_floating_point()
    if not simple or not 0 < len(dims) < x.dim():
        return NotImplemented
    wide = x.to(get_computation_dtype(x.dtype))
    lone = all(isinstance(x.shape[dim], int) and x.shape[dim] == 1 for dim in dims)
    squared = ord == 2 and not lone  # of one element there is no square that may overflow
    made = (wide * wide if squared else wide.abs()).sum(dims, keepdim)
    return (made.sqrt() if squared else made).to(x.dtype)


def _cross(a: torch.Tensor, b: torch.Tensor, *, dim: int = -1) -> Any:
    """By components; torch's own looks up positions that it computes."""
    if a.dtype != b.dtype or a.is_complex() or a.dim() != b.dim() or a.dim() == 0:
        return NotImplemented
    a, b = torch.broadcast_tensors(a, b)  # type: ignore[no-untyped-call]
    if a.shape[dim] != 3:
        return NotImplemented
    (a0, a1, a2), (b0, b1, b2) = a.unbind(dim), b.unbind(dim)
    return torch.stack((a1 * b2 - a2 * b1, a2 * b0 - a0 * b2, a0 * b1 - a1 * b0), dim)


def _transpose(x: torch.Tensor, first: int = 0, second: int = 1) -> Any:
    """As torch's own, which takes several times as long to trace."""
    axes = [*range(x.dim())]
    if len(axes) < 2:
        return aten.alias.default(x)
    axes[first], axes[second] = axes[second], axes[first]
    return aten.permute.default(x, axes)


def _roll(x: torch.Tensor, shifts: Any, dims: Any = ()) -> Any:
    """Along all axes at once as along one."""
    return NotImplemented if dims else x.flatten().roll(shifts, 0).view(x.shape)


def _pad_circular(x: torch.Tensor, pad: Sequence[int]) -> torch.Tensor:
    """Joins, of which one element is one of `x`; torch's own copies part after part."""
    for number in range(len(pad) // 2):
        dim = x.dim() - 1 - number
        low, high = pad[2 * number : 2 * number + 2]
        size = x.shape[dim]
        if low > size or high > size:
            raise RuntimeError("Padding value causes wrapping around more than once.")
        if low + high + size < 0:
            raise RuntimeError("Negative padding value is resulting in an empty dimension")
        middle = x.narrow(dim, max(-low, 0), size + min(low, 0) + min(high, 0))
        before = [middle.narrow(dim, middle.shape[dim] - low, low)] if low > 0 else []
        behind = [middle.narrow(dim, 0, high)] if high > 0 else []
        x = torch.cat([*before, middle, *behind], dim) if before or behind else middle
    return x.clone(memory_format=torch.contiguous_format)


aten._pad_circular.default.py_impl(torch._C.DispatchKey.CompositeImplicitAutograd)(_pad_circular)


def _empty_as_it_is(decomposed: Callable[..., Any]) -> Callable[..., Any]:
    """torch's decomposition, but for images without elements: the CPU's kernel copies these."""

    def unshuffled(x: torch.Tensor, downscale_factor: int) -> Any:
        empty = any(isinstance(size, int) and size == 0 for size in x.shape)
        if empty and x.device.type == "cpu":
            return x.clone()
        return decomposed(x, downscale_factor)

    return unshuffled


_UNSHUFFLE: Any = aten.pixel_unshuffle.default
replace_decomposition(_UNSHUFFLE, _empty_as_it_is)


def _cut_as_a_copy(decomposed: Callable[..., Any]) -> Callable[..., Any]:
    """torch's decomposition, but where nothing is added, which eager's kernel copies in the order
    of its memory; torch's own asks for something to be cut at each side."""

    def padded(x: torch.Tensor, pad: Sequence[Any], value: Any = 0) -> Any:
        cuts = [amount < 0 for amount in pad]
        added = (amount > 0 for amount, cut in zip(pad, cuts, strict=True) if not cut)
        if not any(cuts) or len(pad) % 2 or len(pad) > 2 * x.dim() or any(added):
            return decomposed(x, pad, value)
        for number in range(len(pad) // 2):
            dim, (low, high) = x.dim() - 1 - number, pad[2 * number : 2 * number + 2]
            x = x.narrow(dim, -low, x.shape[dim] + low + high)
        return x.clone()

    return padded


_PAD: Any = aten.constant_pad_nd.default
replace_decomposition(_PAD, _cut_as_a_copy)

_LOSSES: Any = (aten.huber_loss.default, aten.soft_margin_loss.default)
_SOFTSHRINK: Any = aten.softshrink.default
replace_decomposition(_SOFTSHRINK, lambda _: losses.softshrink)
_LOGITS: Any = aten.binary_cross_entropy_with_logits.default
for _loss in _LOSSES:
    replace_decomposition(_loss, losses.in_dtype_of_input)

for _resize in (aten.upsample_linear1d, aten.upsample_bilinear2d, aten.upsample_trilinear3d):
    replace_decomposition(_resize.vec, _linear_by_weights)
for _rank in (1, 2, 3):
    for _kind, _exact in (("upsample_nearest", False), ("_upsample_nearest_exact", True)):
        _resize = getattr(aten, f"{_kind}{_rank}d")
        replace_decomposition(_resize.vec, partial(_with_nearest_gradient, exact=_exact))

replace_decomposition(aten.upsample_bicubic2d.vec, _cubic_by_axes)
for _resize in (aten.upsample_bilinear2d, aten.upsample_bicubic2d):
    _vec, _whole = _resize.vec, _resize.default
    replace_decomposition(_vec, partial(_bytes_whole, whole=_whole))


def _in_common_type(join: Callable[..., Any]) -> Callable[..., Any]:
    """The blocks in the type of all of them, to which a number (of no axes) adds its kind alone;
    the decomposition takes it for a matrix."""

    def joined(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
        _, dtype = elementwise_dtypes(
            *tensors, type_promotion_kind=ELEMENTWISE_TYPE_PROMOTION_KIND.NO_OPMATH
        )
        return join([each.to(dtype) for each in tensors])  # type: ignore[no-any-return]

    return joined


def _sgn_of_real(decomposed: Callable[..., Any]) -> Callable[..., Any]:
    """Whole for complex numbers, of which the library makes it in one pass."""
    return lambda x: NotImplemented if x.is_complex() else decomposed(x)


@cache
def decompositions(
    drawing: tuple[str, ...] = (), implicit: bool = True
) -> dict[Any, Callable[..., Any]]:
    """The table for AOTAutograd: core ATen's and the above. drawing: the devices whose kernels make
    random numbers; on others eager's stream is kept. implicit: with the operators that torch itself
    writes out below autograd, of which it takes 0.1 s to find all (`OpOverload.decompose` does the
    same)."""
    table = dict((core_aten_decompositions if implicit else _EXPLICIT)())
    table.update(get_decompositions(list(_EXTRA)))
    kept = {getattr(packet, name) for packet in _KEEP for name in packet.overloads()}
    table[aten.addmm.default] = _biased_product
    table.update(foreach_decompositions())
    chosen = {op: fn for op, fn in table.items() if op not in kept and not _is_random(op)}
    chosen.update(random_decompositions(drawing) if drawing else {})
    chosen[_MARGINS] = losses.margin_losses
    chosen[aten.take.default] = _take
    chosen[aten.eye.default] = chosen[aten.eye.m] = _eye
    chosen[aten.t.default] = chosen[aten.transpose.int] = _transpose
    chosen[aten.roll.default] = _roll
    chosen[aten.block_diag.default] = _in_common_type(chosen[aten.block_diag.default])
    chosen[aten.hardshrink.default] = losses.in_type_of_input(chosen[aten.hardshrink.default])
    chosen[_SOFTSHRINK] = losses.softshrink
    chosen[aten.hardsigmoid_backward.default] = losses.hardsigmoid_backward
    chosen[aten.threshold.default] = losses.threshold(chosen[aten.threshold.default])
    chosen[aten.threshold_backward.default] = losses.threshold_backward
    for gradient in (aten.nll_loss_backward.default, aten.nll_loss2d_backward.default):
        chosen[gradient] = losses.of_weighted_classes(chosen[gradient])
    chosen[aten.logaddexp2.default] = losses.log_of_sum_of_powers_of_two
    for packet in (aten.xlogy, aten.special_xlog1py, aten.logaddexp, aten.logaddexp2):
        for binary in {getattr(packet, name) for name in packet.overloads()} & chosen.keys():  # type: ignore[no-untyped-call]
            chosen[binary] = losses.in_common_type(chosen[binary])
    chosen[aten.logit.default] = losses.logit
    chosen[aten.logit_backward.default] = losses.logit_backward
    chosen[aten.soft_margin_loss_backward.default] = losses.soft_margin_backward
    chosen[aten.smooth_l1_loss_backward.default] = losses.smooth_l1_backward
    chosen[aten._efficientzerotensor.default] = _zeros
    chosen[aten.linalg_vector_norm.default] = _vector_norm
    chosen[aten.linalg_cross.default] = _cross
    for loss in _LOSSES:
        chosen[loss] = losses.in_dtype_of_input(chosen[loss])
    chosen[_LOGITS] = losses.in_type_of_target(chosen[_LOGITS])
    chosen[_UNSHUFFLE] = _empty_as_it_is(chosen[_UNSHUFFLE])
    for name, rank in itertools.product(("reflection_pad", "replication_pad"), (1, 2, 3)):
        pad = getattr(aten, f"{name}{rank}d").default
        chosen[pad] = _in_order_of_eager(chosen[pad])
    log_sigmoid = aten.log_sigmoid_forward.default
    chosen[log_sigmoid] = _contiguous_on_host(chosen[log_sigmoid])
    dropout = aten.native_dropout.default
    if "cpu" not in drawing:
        chosen[dropout] = library_draws.dropout(chosen.get(dropout))
    chosen[aten.native_dropout_backward.default] = dropout_backward
    chosen[aten.bmm.default] = _thin_product
    chosen[aten.convolution.default] = biased_convolution
    chosen[aten.convolution_backward.default] = biased_convolution_backward
    chosen[aten.sgn.default] = _sgn_of_real(chosen[aten.sgn.default])
    chosen.update(POOLING)
    chosen[aten.adaptive_max_pool2d.default] = adaptive_max.pooled
    chosen[aten.adaptive_max_pool2d_backward.default] = adaptive_max.gradient
    chosen.update(image_gradients.padding_gradients(chosen))
    return {operator: or_whole(decomposed) for operator, decomposed in chosen.items()}
