"""Gradients in another order of memory than their results have.

A backward is compiled for gradients in the order of the results. Eager's operators mostly give
gradients in the order of what they are given: here that order is found out, once for each that
comes, and what the program gives is laid out in it.
"""

from collections.abc import Sequence
from typing import Any

import torch

from ..graph.result_strides import in_order_of, is_dense, overlaps

Layout = tuple[Any, Any]  # sizes and strides


def resolve(given: list[Any]) -> None:
    """Make lazy conjugates and negatives, in place: programs read memory as it lies there."""
    for k, grad in enumerate(given):
        if grad is not None and (grad.is_conj() or grad.is_neg()):
            given[k] = grad.resolve_conj().resolve_neg()


def layouts(cls: Any, given: list[Any]) -> tuple[Layout | None, ...] | None:
    """The layouts of the gradients, if one is dense and not as the program of `cls` takes it; such
    ones are laid out, in place. None otherwise."""
    laid_out = getattr(cls, "laid_out", None)
    if laid_out is None:
        return None
    made: dict[int, Any] = {}
    for k, lay_out in zip(cls.taken, laid_out, strict=True):
        grad = given[k]
        if type(grad) is torch.Tensor and grad.dim() > 1 and is_dense(grad.shape, grad.stride()):
            laid = lay_out(grad)
            if laid is not grad:
                made[k] = laid
    if not made:
        return None
    found = tuple(
        (tuple(grad.shape), grad.stride()) if isinstance(grad, torch.Tensor) else None
        for grad in given
    )
    for k, laid in made.items():
        given[k] = laid
    return found


def as_in_eager(cls: Any, found: Sequence[Any], given: tuple[Layout | None, ...]) -> Any:
    """The gradients of the inputs, in the order that they have in eager."""
    expected = cls.dynfix_strides(_orders(given) if cls.dynfix_several_sizes else given)
    if len(expected) != len(found):
        return found
    pairs = list(zip(found, expected, strict=True))
    if any(layout and grad is not None and grad.shape != layout[0] for grad, layout in pairs):
        cls.dynfix_several_sizes = True  # one order is asked for once, not for each set of sizes
    return tuple(
        _in_order(grad, layout) if type(grad) is torch.Tensor and layout is not None else grad
        for grad, layout in pairs
    )


def _orders(given: tuple[Layout | None, ...]) -> tuple[Layout | None, ...]:
    """The layouts without their sizes: strides are ranks, equal ones where axes share memory."""

    def order(layout: Layout) -> Layout:
        steps = sorted(set(layout[1]))
        return (), tuple(map(steps.index, layout[1]))

    return tuple(None if layout is None else order(layout) for layout in given)


def _in_order(grad: torch.Tensor, layout: Layout) -> torch.Tensor:
    shape, strides = layout
    if tuple(grad.shape) != shape:
        if grad.dim() != len(shape) or not is_dense(shape, strides):
            return grad
        shape, strides = tuple(grad.shape), in_order_of(strides, grad.shape)
    if grad.stride() == strides or overlaps(shape, strides):
        return grad
    return grad.new_empty_strided(shape, strides).copy_(grad)
