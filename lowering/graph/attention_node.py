"""FlexAttention (https://pytorch.org/docs/stable/nn.attention.flex_attention.html) as one node of a
torch-level graph. It holds the user's functions as graphs of single numbers, and becomes torch's
operator where it is traced, which has gradients and a lowering of ours."""

import importlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from itertools import accumulate
from operator import mul
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint

from ...runtime.gpu.triton_kernels import interpreted
from .control_flow import Bodies, is_traced

MOST_SCORES = {"cpu": 1 << 24, "cuda": 1 << 27}  # of rows that are computed at once
Results = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def attend(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    score_mod: Callable[..., Any],
    block_mask: Sequence[Any],
    scale: float,
    kernel_options: dict[str, Any],
) -> Results:
    """As torch's operator in eager: the result, and of each row the logarithm of the sum and the
    maximum, both to the base 2. No more than a block of rows of scores is in memory."""
    kind = query.device.type
    if torch.is_autocast_enabled(kind) and _casts():
        dtype = torch.get_autocast_dtype(kind)
        if query.dtype != torch.float64:
            query, key, value = (each.to(dtype) for each in (query, key, value))
        with torch.autocast(kind, enabled=False):
            return attend(query, key, value, score_mod, block_mask, scale, kernel_options)
    own = query, key, value, score_mod, block_mask[-1], scale
    small = _is_small(query, key) or is_traced()
    out, sums, most = _of_rows(*own, 0) if small else _by_blocks(*own)
    return _in_order(out, query), sums, most


def _in_order(out: torch.Tensor, query: torch.Tensor) -> torch.Tensor:
    """The axes in memory as those of the query, but for the last one, which stays last."""
    order = [3, *sorted((2, 1, 0), key=query.stride().__getitem__)]
    counts = accumulate((out.shape[d] for d in order), mul, initial=1)
    steps = dict(zip(order, counts, strict=False))
    strides = [steps[d] for d in range(4)]
    made = out.new_empty_strided(out.shape, strides)
    return out if [*out.stride()] == strides else made.copy_(out)


class AttentionNode(Bodies):
    """The first graph gives scores, the second one whether a place is seen."""

    __name__ = "flex_attention"

    def __call__(
        self,
        first: Sequence[Any],
        second: Sequence[Any],
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        block_mask: Sequence[Any],
        scale: float,
        kernel_options: dict[str, Any],
    ) -> Results:
        def score(*given: Any) -> Any:
            return self.first(*given[5:], *given[:5])[0]

        def mask(*given: Any) -> Any:
            return self.second(*given[4:], *given[:4])[0]

        if is_traced() and _has_kernel(query, key):
            shapes = (*block_mask, mask)
            wide = _in_working_precision(score)
            given = query, key, value, wide, shapes, scale, kernel_options
            operator: Any = torch.ops.higher_order.flex_attention
            return operator(*given, tuple(first), tuple(second))  # type: ignore[no-any-return]
        shapes = (*block_mask, bound(mask, second))
        return attend(query, key, value, bound(score, first), shapes, scale, kernel_options)


def _casts() -> bool:
    """Whether torch's operator takes what autocast makes of the tensors; in torch 2.13 it does."""
    operator: Any = torch.ops.higher_order.flex_attention
    return torch._C.DispatchKey.AutocastCPU in operator.py_kernels


def _has_kernel(query: torch.Tensor, key: torch.Tensor) -> bool:
    return query.device.type == "cuda" or interpreted() or not _is_small(query, key)


def bound(function: Callable[..., Any], captured: Sequence[Any]) -> Callable[..., Any]:
    return lambda *given: function(*given, *captured)


def _in_working_precision(score: Callable[..., Any]) -> Callable[..., Any]:
    """The operator traces it with scores of the query's type, and calls it with wider ones."""
    return lambda first, *given: score(first.to(working(first.dtype)), *given)


def working(dtype: torch.dtype) -> torch.dtype:
    return torch.promote_types(dtype, torch.float32)


def _most(query: torch.Tensor) -> int:
    return MOST_SCORES.get(query.device.type, MOST_SCORES["cpu"])


def _is_small(query: torch.Tensor, key: torch.Tensor) -> bool:
    batches, heads, rows, _ = query.shape
    return bool(batches * heads * rows * key.shape[2] <= _most(query))


def _by_blocks(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *rest: Any) -> Results:
    """Rows in blocks. Where gradients are recorded, a backward computes a block's scores again."""
    given = (query, key, value)
    trains = torch.is_grad_enabled() and any(each.requires_grad for each in given)
    parts = []
    for first, rows in _blocks(query, key):
        own = query[:, :, first : first + rows], key, value, *rest, first
        parts.append(checkpoint(_of_rows, *own, use_reentrant=False) if trains else _of_rows(*own))
    out, sums, most = (torch.cat(each, 2) for each in zip(*parts, strict=True))
    return out, sums, most


def _blocks(query: torch.Tensor, key: torch.Tensor) -> Iterator[tuple[int, int]]:
    batches, heads, count, _ = query.shape
    rows = max(_most(query) // max(batches * heads * key.shape[2], 1), 1)
    return ((first, min(rows, count - first)) for first in range(0, count, rows))


def _of_rows(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    score_mod: Callable[..., Any],
    mask_mod: Callable[..., Any],
    scale: float,
    first: int,
) -> Results:
    """Rows from `first` on, by the formula that torch's operator stands for."""
    key, value = (each_head(each, query) for each in (key, value))
    dtype = working(query.dtype)
    scores = query.to(dtype) @ key.to(dtype).transpose(-2, -1) * scale
    places = [torch.arange(n, device=query.device) for n in scores.shape]
    places[2] = places[2] + first
    with indexed_by_tensors():
        seen = mapped(mask_mod)(*places)
        changed = mapped(score_mod, 0)(scores, *places)
    nothing = torch.tensor(-float("inf"), dtype=dtype, device=query.device)
    scores = torch.where(seen, changed, nothing)
    sums = scores.logsumexp(-1)
    sums = torch.where(torch.all(scores == -float("inf"), -1), -float("inf"), sums)
    most = torch.max(scores.detach(), -1)[0]
    weights = torch._safe_softmax(scores, -1)
    result = weights.to(query.dtype) @ value.to(query.dtype)
    return result, sums / _LN2, most / _LN2


def each_head(given: torch.Tensor, query: torch.Tensor) -> torch.Tensor:
    """Keys or values for each head and batch of the query."""
    group = query.shape[1] // given.shape[1]
    return given.repeat_interleave(group, 1).expand(query.shape[0], -1, -1, -1)


def mapped(function: Callable[..., Any], *before: int) -> Callable[..., Any]:
    """The function of numbers over batches, heads, rows and columns; `before`: the axes of
    arguments that have all of these."""
    for place in (3, 2, 1, 0):
        own = [0 if place == each else None for each in range(4)]
        function = torch.vmap(function, in_dims=(*before, *own))
    return function


def indexed_by_tensors() -> AbstractContextManager[Any]:
    """Inside, `table[i]` reads no number out of the tensor `i`."""
    # torch's own, which has gradients; it takes long to load, and is there where it is needed
    module: Any = importlib.import_module("torch._dynamo._trace_wrapped_higher_order_op")
    return module.TransformGetItemToIndex()  # type: ignore[no-any-return]


_LN2 = 0.6931471805599453
