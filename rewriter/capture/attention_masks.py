"""Attention on real tensors, while a call is recorded, costs what eager's costs.

Model code that finds `torch.compiler.is_compiling()` true builds attention masks which it skips in
eager, because it may not ask of data whether a mask is all true. Such a mask sends attention to a
slower kernel, or to products in float32 that are saved for the backward. The graph keeps the mask
as the code made it; the passes on graphs drop it there.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.weak import WeakIdKeyDictionary

from ...lowering.graph.constant_masks import kind_of_mask
from ...runtime.programs.steps import CALL_INPUT

ATTENTION = "scaled_dot_product_attention"
# torch gives the function no signature that `inspect` reads
_PARAMETERS = "query key value attn_mask dropout_p is_causal scale enable_gqa".split()


def attention_kernels() -> tuple[Any, ...]:
    """Which kernels attention may take, and in which order: `sdpa_kernel()` sets it for the
    operators inside."""
    order = getattr(torch._C, "_get_sdp_priority_order", tuple)
    return (*(asks() for asks in _ASK), tuple(order()))


def _set_kernels(kernels: tuple[Any, ...]) -> None:
    for enable, enabled in zip(_ENABLE, kernels, strict=False):
        enable(enabled)
    order = [*kernels[-1]]
    if order != [*attention_kernels()[-1]]:
        torch._C._set_sdp_priority_order(order)


_CUDA = torch.backends.cuda
_ASK: tuple[Callable[[], bool], ...] = (
    *(_CUDA.flash_sdp_enabled, _CUDA.mem_efficient_sdp_enabled),
    *(_CUDA.math_sdp_enabled, _CUDA.cudnn_sdp_enabled),
)
_ENABLE: Any = (
    *(_CUDA.enable_flash_sdp, _CUDA.enable_mem_efficient_sdp),
    *(_CUDA.enable_math_sdp, _CUDA.enable_cudnn_sdp),
)


@dataclasses.dataclass(frozen=True)
class UnderKernels:
    """Attention that may take these kernels."""

    kernels: tuple[Any, ...]
    __name__ = ATTENTION

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        before = attention_kernels()
        _set_kernels(self.kernels)
        try:
            return torch.nn.functional.scaled_dot_product_attention(*args, **kwargs)
        finally:
            _set_kernels(before)


class AttentionMasks:
    """The attention masks of one recorded call, each looked at once."""

    def __init__(self) -> None:
        self.asked_compiling = False  # so that user code may do other than it does in eager
        self._known: Any = WeakIdKeyDictionary()

    def as_eager_runs(self, rec: Any, args: Any, kwargs: Any) -> tuple[Any, Any]:
        """The arguments with which attention is performed. They give the same values: no mask for
        one that is all true, `is_causal` for a causal one, and a dense mask for a broadcast one,
        which the library's fused kernels refuse."""
        given = dict(zip(_PARAMETERS, args, strict=False)) | kwargs
        mask = given.get("attn_mask")
        if not self.asked_compiling or type(mask) is not torch.Tensor or given.get("is_causal"):
            return args, kwargs
        if mask.requires_grad or rec.value(mask).home == CALL_INPUT:
            return args, kwargs
        return (), given | self._cheapest(mask)

    def _cheapest(self, mask: torch.Tensor) -> dict[str, Any]:
        version, arguments = self._known.get(mask, (None, {}))
        if version != mask._version:
            arguments = _arguments(mask)
            self._known[mask] = mask._version, arguments
        return dict(arguments)


def _arguments(mask: torch.Tensor) -> dict[str, Any]:
    kind = kind_of_mask(mask)
    if kind is not None:
        return {"attn_mask": None, "is_causal": kind == "causal"}
    return {"attn_mask": mask.contiguous()} if mask.stride(-1) != 1 else {}
