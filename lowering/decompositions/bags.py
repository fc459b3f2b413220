"""Bags of equal sizes (`F.embedding_bag` of a matrix of positions) as sums and means of rows that
are looked up, which loops make in one pass."""

from typing import Any

import torch
import torch.nn.functional as F

_Tensor = torch.Tensor


def bags(input: _Tensor, weight: _Tensor, *given: Any, **settings: Any) -> _Tensor:
    """`F.embedding_bag`, while a graph is traced."""
    mode, weights = settings.get("mode", "mean"), settings.get("per_sample_weights")
    usual = not given and not any(settings.get(name) for name in _FLAGS)
    usual = usual and all(settings.get(name) is None for name in _OTHERS)
    if not usual or mode not in ("sum", "mean") or not _are_rows(input, weight):
        return F.embedding_bag(input, weight, *given, **settings)
    rows = F.embedding(input, weight)
    if weights is not None:
        if mode != "sum" or weights.shape != input.shape or weights.dtype != weight.dtype:
            return F.embedding_bag(input, weight, **settings)
        rows = rows * weights.unsqueeze(-1)
    return rows.sum(1) if mode == "sum" else rows.mean(1)


_FLAGS = "scale_grad_by_freq", "sparse", "include_last_offset"
_OTHERS = "offsets", "max_norm", "padding_idx"


def _are_rows(input: _Tensor, weight: _Tensor) -> bool:
    """Whether there are bags that hold something, on a device where stores may meet. Gradients of
    halves are the library's either way."""
    if input.dim() != 2 or weight.dim() != 2 or weight.device.type != "cpu":
        return False
    trained = weight.requires_grad and torch.is_grad_enabled()
    floats = weight.dtype.is_floating_point and (weight.dtype.itemsize >= 4 or not trained)
    whole = input.dtype in (torch.int32, torch.int64)
    known = all(type(size) is int and size > 0 for size in (*input.shape, *weight.shape))
    return floats and whole and known
