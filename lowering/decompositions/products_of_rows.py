"""Products along an axis, with a gradient in two passes whatever is zero.

torch looks whether there are zeros, which a graph cannot, and falls back on products of all that
stands before and behind each element: two scans. Infinities have here the gradient that eager
gives them where nothing is zero.
"""

from typing import Any

import torch

_Tensor = torch.Tensor


class _Product(torch.autograd.Function):
    """`x.prod(dim)`; of several axes as one."""

    @staticmethod
    def forward(ctx: Any, x: _Tensor, dim: int, keepdim: bool) -> _Tensor:
        made = x.prod(dim, keepdim)
        ctx.save_for_backward(x, made)
        ctx.dim, ctx.keepdim = dim, keepdim
        return made

    @staticmethod
    def backward(ctx: Any, grad: _Tensor) -> Any:
        """An element's gradient is the product of the others: of all by it, or, of a zero, of those
        that are none."""
        x, made = ctx.saved_tensors
        if not ctx.keepdim:
            grad, made = grad.unsqueeze(ctx.dim), made.unsqueeze(ctx.dim)
        zero = x == 0
        count = zero.sum(ctx.dim, keepdim=True)
        rest = torch.where(zero, 1, x).prod(ctx.dim, keepdim=True)
        rest = torch.where(count == 1, rest, rest * 0)
        return grad * torch.where(zero, rest, made / x), None, None


def product(input: _Tensor, dim: Any = None, keepdim: bool = False, **given: Any) -> _Tensor:
    """`torch.prod`, while a graph is traced."""
    if dim is None:
        whole = given if not keepdim else {"keepdim": keepdim, **given}
        if not _is_written_out(input, whole):
            return torch.prod(input, **whole)
        return _Product.apply(input.reshape(-1), 0, False)  # type: ignore[no-any-return, no-untyped-call]
    if type(dim) is not int or not _is_written_out(input, given):
        return torch.prod(input, dim, keepdim, **given)
    return _Product.apply(input, dim, keepdim)  # type: ignore[no-any-return, no-untyped-call]


def _is_written_out(x: _Tensor, others: Any) -> bool:
    trained = torch.is_grad_enabled() and x.requires_grad
    return trained and not others and x.dim() > 0 and x.dtype.is_floating_point
