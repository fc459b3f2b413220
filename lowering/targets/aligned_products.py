"""Matrix products on a GPU whose rows do not begin at multiples of 16 bytes.

The library's fast kernels need that alignment: a product with a vocabulary of 50,257 takes several
times as long without. Such an operand is copied into padded rows, and the result computed in them.
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
    out = _padded(a, (a.shape[0], b.shape[1]))
    return torch.mm(_aligned(a), _aligned(b), out=out).contiguous()


def addmm(bias: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """`torch.addmm` of shapes (n,) or (m, n), (m, k) and (k, n), contiguous."""
    out = _padded(a, (a.shape[0], b.shape[1]))
    return torch.addmm(bias, _aligned(a), _aligned(b), out=out).contiguous()


_FORMS: dict[Any, Callable[..., torch.Tensor]] = {aten.mm.default: mm, aten.addmm.default: addmm}


def aligned_form(node: Node) -> Callable[..., torch.Tensor] | None:
    """What to call in place of a product of known sizes; None where it is well as it is."""
    form = _FORMS.get(node.target)
    made = node.meta.get("val")
    if form is None or node.kwargs or not isinstance(made, torch.Tensor):
        return None
    if made.device.type != "cuda" or made.dtype not in (torch.float16, torch.bfloat16):
        return None
    a, b = (operand.meta["val"] for operand in node.args[-2:])  # type: ignore[union-attr]
    sizes = (*a.shape, b.shape[1])
    if any(not isinstance(size, int) for size in (*sizes, *a.stride(), *b.stride())):
        return None
    m, k, n = sizes
    gains = [(_misses(a), n), (_misses(b), m), (n % _elements(made) != 0, k)]
    return form if any(misses and third >= _WORTH for misses, third in gains) else None


def _elements(matrix: torch.Tensor) -> int:
    return _BYTES // matrix.itemsize


def _misses(matrix: torch.Tensor) -> bool:
    """Whether rows, or columns, stand one after the other without being aligned."""
    steps = matrix.stride()
    return 1 in steps and max(steps) % _elements(matrix) != 0


def _padded(like: torch.Tensor, shape: tuple[int, int]) -> torch.Tensor:
    """New memory for a matrix of this shape, in rows of a multiple of 16 bytes."""
    rows, columns = shape
    width = -(-columns // _elements(like)) * _elements(like)
    return like.new_empty(rows, width)[:, :columns]


def _aligned(matrix: torch.Tensor) -> torch.Tensor:
    """The matrix, in memory of its own where its rows or columns are not aligned."""
    if not _misses(matrix):
        return matrix
    if matrix.stride(1) != 1:
        return _aligned(matrix.t()).t()
    return _padded(matrix, (matrix.shape[0], matrix.shape[1])).copy_(matrix)
