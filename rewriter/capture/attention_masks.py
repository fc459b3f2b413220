"""Attention on real tensors, while a call is recorded, costs what eager's costs.

Model code that finds `torch.compiler.is_compiling()` true builds attention masks which it skips in
eager, because it may not ask of data whether a mask is all true. Such a mask sends attention to a
slower kernel, or to products in float32 that are saved for the backward. The graph keeps the mask
as the code made it; the passes on graphs drop it there.
"""

from typing import Any

import torch
from torch.utils.weak import WeakIdKeyDictionary

from ...lowering.graph.constant_masks import kind_of_mask
from ...runtime.programs.steps import CALL_INPUT

ATTENTION = "scaled_dot_product_attention"
# torch gives the function no signature that `inspect` reads
_PARAMETERS = "query key value attn_mask dropout_p is_causal scale enable_gqa".split()


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
