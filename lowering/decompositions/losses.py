"""Losses and activations whose kernels round bounds, or meet NaN, otherwise than torch's own
decompositions."""

import functools
import math
from collections.abc import Callable
from typing import Any

import torch
from torch._prims_common import (
    ELEMENTWISE_TYPE_PROMOTION_KIND,
    elementwise_dtypes,
    get_computation_dtype,
)
from torch._prims_common.wrappers import elementwise_type_promotion_wrapper
from torch.utils._python_dispatch import _disable_current_modes

_HALVES = torch.float16, torch.bfloat16
_MEAN = 1  # as `reduction` has it
_SIXTH = 0.16666667163372040  # rounded to float32


def _rounded(number: float, dtype: torch.dtype) -> float:
    with _disable_current_modes():
        return torch.tensor(number, dtype=dtype).item()


def in_common_type(decomposed: Callable[..., Any]) -> Callable[..., Any]:
    """torch's decomposition of a binary operator, with both operands in the half type that they
    have in common, as eager has numbers and tensors without axes."""

    def made(a: Any, b: Any) -> Any:
        _, dtype = elementwise_dtypes(
            a, b, type_promotion_kind=ELEMENTWISE_TYPE_PROMOTION_KIND.NO_OPMATH
        )
        if dtype not in _HALVES:
            return decomposed(a, b)
        return decomposed(*(_in_type(each, dtype) for each in (a, b)))

    return made


@elementwise_type_promotion_wrapper(
    type_promoting_args=("a", "b"),
    type_promotion_kind=ELEMENTWISE_TYPE_PROMOTION_KIND.DEFAULT,
)
def log_of_sum_of_powers_of_two(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """`logaddexp2`, whose product and sum eager's kernel on the CPU rounds once, as a fused one (0
    is -1e-8 there); a product of two float32 numbers is exact in float64."""
    greater = a >= b
    most, least = torch.where(greater, a, b), torch.where(greater, b, a)
    share = torch.log1p(torch.exp2(least - most))
    factor = 1 / math.log(2)
    if a.device.type == "cpu" and a.dtype == torch.float32:
        result = (share.double() * _rounded(factor, a.dtype) + most).float()
    else:
        result = share * factor + most
    return torch.where(a.isinf() & (a == b), a, result)


def _in_type(operand: Any, dtype: torch.dtype) -> Any:
    return operand.to(dtype) if isinstance(operand, torch.Tensor) else _rounded(operand, dtype)


def of_weighted_classes(decomposed: Callable[..., Any]) -> Callable[..., Any]:
    """torch's decomposition of a gradient of `nll_loss`, with weights of classes that are no
    targets left out of it, as eager's kernel has it: they may be infinite."""

    def made(
        grad: Any, x: Any, target: Any, weight: Any, reduction: int, ignored: int, total: Any
    ) -> Any:
        found = decomposed(grad, x, target, None, reduction, ignored, total)
        if weight is None:
            return found
        axis = min(x.dim(), 2) - 1
        if target.dim() >= x.dim():  # a vector's, in a vector
            target = target[0]
        shape = [-1 if d == axis else 1 for d in range(x.dim())]
        classes = torch.arange(x.shape[axis], device=x.device).reshape(shape)
        target = target.unsqueeze(axis)
        counts = (target == classes) & (target != ignored)
        return torch.where(counts, found * weight.reshape(shape), 0)

    return made


def margin_losses(x: torch.Tensor, target: torch.Tensor, reduction: int) -> Any:
    """`multilabel_margin_loss_forward`: (the loss, which elements are targets). torch's own
    decomposition counts the labels behind the first -1, too, and has a row of losses for a
    vector."""
    rows, labels = (
        each.reshape(-1, each.shape[-1]) if each.dim() else each.reshape(1, 1)
        for each in (x, target)
    )
    count = rows.shape[1]
    places = torch.arange(count, device=target.device)
    end = torch.where(labels == -1, places, count).amin(-1, keepdim=True)
    counts = places < end
    chosen = rows.gather(-1, torch.where(counts, labels, 0))
    is_target = (places == torch.where(counts, labels, -1).unsqueeze(-1)).any(1)
    margins = 1.0 - chosen.unsqueeze(-1) + rows.unsqueeze(1)
    count_for = ~is_target.unsqueeze(1) & counts.unsqueeze(-1) & (margins > 0)  # NaN does not
    margins = torch.where(count_for, margins / count, 0)
    losses = margins.sum((1, 2))
    if reduction:
        losses = losses.mean() if reduction == 1 else losses.sum()
    else:
        losses = losses.reshape(x.shape[:-1])
    return losses, is_target.to(x.dtype).reshape(target.shape)


def in_dtype_of_input(decomposed: Callable[..., Any]) -> Callable[..., Any]:
    """torch's decomposition, with the losses in the input's dtype, as in eager, before they are
    summed up. others: the `delta` of Huber's loss."""

    def loss(x: torch.Tensor, target: torch.Tensor, reduction: int = _MEAN, *others: float) -> Any:
        made = decomposed(x, target, 0, *others).to(x.dtype)
        if reduction == 0:
            return made
        return made.mean() if reduction == _MEAN else made.sum()

    return loss


def in_type_of_input(shrink: Callable[..., Any]) -> Callable[..., Any]:
    """With the bound in the type of the tensor, as eager has it."""

    def shrunk(x: torch.Tensor, bound: float = 0.5) -> Any:
        return shrink(x, _rounded(bound, x.dtype))

    return shrunk


@functools.cache
def _rounds_bound() -> bool:
    """Whether the CPU's kernel has a bound in the type of the tensor, as this torch shows."""
    with _disable_current_modes(), torch.inference_mode():
        least = torch.tensor(1.0009765625, dtype=torch.float16, device="cpu")
        return torch.nn.functional.softshrink(least, 1.0009).item() == 0


def softshrink(x: torch.Tensor, bound: float = 0.5) -> torch.Tensor:
    """Torch's own has products by zero, of which the gradient is no zero where it is infinite. On
    the CPU, halves are compared in a wider type with the bound as it is given, but for the
    gradient, which has it rounded; from torch 2.14 on both have it rounded."""
    if bound < 0:
        raise RuntimeError(f"lambda must be greater or equal to 0, but found to be {bound}.")
    on_cpu = x.device.type == "cpu"
    if on_cpu and _rounds_bound():
        bound = _rounded(bound, x.dtype)
    wide = x.float() if x.dtype in _HALVES and on_cpu else x
    made = torch.where((wide >= -bound) & (wide <= bound), 0, wide - torch.sign(wide) * bound)
    if wide is not x and _rounded(bound, x.dtype) > bound:
        made = torch.where(x.abs() == _rounded(bound, x.dtype), made.detach(), made)
    return made.to(x.dtype)


def hardsigmoid_backward(grad: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Eager's kernel has a sixth in float32, whatever the type is."""
    return torch.where((x > -3.0) & (x < 3.0), grad * _SIXTH, 0.0)


def threshold(decomposed: Callable[..., Any]) -> Callable[..., Any]:
    """torch's decomposition, which compares halves in a wider type with the bound as it is given,
    as kernels of the CPU do; those of other devices have it rounded."""

    def made(x: torch.Tensor, bound: float, value: float) -> Any:
        return decomposed(x, _bound(bound, x), value)

    return made


def threshold_backward(grad: torch.Tensor, x: torch.Tensor, bound: float) -> torch.Tensor:
    """The bound is as that of `threshold`, unlike that of `x <= bound`."""
    wide = x
    if x.dtype in _HALVES and _rounded(bound, x.dtype) != bound:
        wide = x.float()
    return torch.where(wide <= _bound(bound, x), 0, grad)


def _bound(bound: float, x: torch.Tensor) -> float:
    rounded = x.dtype in _HALVES and x.device.type != "cpu"
    return _rounded(bound, x.dtype) if rounded else bound


def logit(x: torch.Tensor, eps: float | None = None) -> torch.Tensor:
    """Torch's own does not round the bounds, the upper one of which may be 1."""
    kind = x.dtype if x.is_floating_point() else torch.get_default_dtype()
    wide = x.to(get_computation_dtype(kind))
    if eps is not None:
        low, high = _logit_bounds(x, eps)
        wide = torch.where(wide < low, low, torch.where(wide > high, high, wide))
    return torch.log(wide / (1.0 - wide)).to(kind)


def logit_backward(grad: torch.Tensor, x: torch.Tensor, eps: float | None = None) -> torch.Tensor:
    """What is between the bounds is computed in a wider type; -0.0 counts as 0.0."""
    wide = x.float() if x.dtype in _HALVES else x
    low, high = _logit_bounds(x, eps or 0.0)
    within = (wide >= low) & (wide <= high)
    wide = wide.abs()
    made = (grad / (wide * (1.0 - wide))).to(x.dtype)
    return torch.where(within, made, float("nan") if eps is None else 0.0)


def _logit_bounds(x: torch.Tensor, eps: float) -> tuple[float, float]:
    """In half types if the CPU computes in them; GPUs do in a wider one."""
    if x.dtype not in _HALVES or x.device.type != "cpu":
        return eps, 1.0 - eps
    low = _rounded(eps, x.dtype)
    return low, _rounded(1.0 - low, x.dtype)


def soft_margin_backward(
    grad: torch.Tensor, x: torch.Tensor, target: torch.Tensor, reduction: int = _MEAN
) -> torch.Tensor:
    """Torch's own decomposition subtracts a sigmoid from 1, which leaves nothing of what is
    small."""
    wide, sign, scale = (each.to(get_computation_dtype(x.dtype)) for each in (x, target, grad))
    made = -sign * torch.sigmoid(-sign * wide) * scale
    return (made / x.numel() if reduction == _MEAN else made).to(x.dtype)


def smooth_l1_backward(
    grad: torch.Tensor, x: torch.Tensor, target: torch.Tensor, reduction: int, beta: float
) -> torch.Tensor:
    """NaN where a difference is, as eager's kernel has it."""
    difference = x - target
    scaled = grad / x.numel() if reduction == _MEAN else grad
    outer = scaled * difference.sign()
    inner = scaled * difference / beta if beta else scaled * difference
    return torch.where(difference.abs() >= beta, outer, inner)


def in_type_of_target(decomposed: Callable[..., Any]) -> Callable[..., Any]:
    """`binary_cross_entropy_with_logits`, which eager computes in `1 - target`, in place."""

    def loss(x: torch.Tensor, target: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        made = decomposed(x, target, *args, **kwargs)
        return made if made.dtype == target.dtype else made.to(target.dtype)

    return loss
