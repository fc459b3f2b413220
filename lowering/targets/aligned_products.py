"""Matrix products on a GPU with a size that is no multiple of 16 bytes.

The library's fast kernels need such sizes: a product with a vocabulary of 50,257 takes several
times as long as one of 50,264. Such operands are copied into padded ones, and the result cut out.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.fx import Node

aten = torch.ops.aten

_BYTES = 16
_WORTH = 256  # the product's third size from which a copy of a matrix costs less than it gains


def mm(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """`torch.mm` of shapes (m, k) and (k, n), contiguous."""
    m, k, n = *a.shape, b.shape[1]
    return torch.mm(_padded(a, m, k), _padded(b, k, n))[:m, :n].contiguous()


def addmm(bias: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """`torch.addmm` of shapes (n,), (m, k) and (k, n), contiguous."""
    m, k, n = *a.shape, b.shape[1]
    wide = torch.nn.functional.pad(bias, (0, _up(n, bias) - n))
    return torch.addmm(wide, _padded(a, m, k), _padded(b, k, n))[:m, :n].contiguous()


_FORMS: dict[Any, Callable[..., torch.Tensor]] = {aten.mm.default: mm, aten.addmm.default: addmm}


def aligned_form(node: Node) -> Callable[..., torch.Tensor] | None:
    """What to call in place of a product of known sizes; None where it is well as it is."""
    form = _FORMS.get(node.target)
    made = node.meta.get("val")
    if form is None or node.kwargs or not isinstance(made, torch.Tensor):
        return None
    if made.device.type != "cuda" or made.dtype not in (torch.float16, torch.bfloat16):
        return None
    *bias, a, b = (operand.meta["val"] for operand in node.args)  # type: ignore[union-attr]
    sizes = (*a.shape, b.shape[1])
    if any(not isinstance(size, int) for size in sizes) or any(t.dim() != 1 for t in bias):
        return None
    m, k, n = sizes
    odd = [(m, min(k, n)), (k, min(m, n)), (n, min(m, k))]
    return form if any(_up(size, made) != size and other >= _WORTH for size, other in odd) else None


def _up(size: int, matrix: torch.Tensor) -> int:
    """The next multiple of 16 bytes."""
    elements = _BYTES // matrix.itemsize
    return -(-size // elements) * elements


def _padded(matrix: torch.Tensor, rows: int, columns: int) -> torch.Tensor:
    """The matrix with both sizes padded, in the order that it has; what is added is zero, since it
    may be summed over."""
    tall, wide = _up(rows, matrix), _up(columns, matrix)
    if (tall, wide) == (rows, columns):
        return matrix
    if matrix.stride(1) != 1:
        return _padded(matrix.t(), columns, rows).t()
    made = matrix.new_empty(tall, wide)
    made[:rows, :columns].copy_(matrix)
    made[rows:].zero_()
    made[:, columns:].zero_()
    return made
