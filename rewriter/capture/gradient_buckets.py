"""Where a graph is cut so that gradients are reduced while the backward goes on.

DistributedDataParallel reduces the gradients of a bucket as soon as all of them are there, beside
what is left of the backward. One graph gives all of its gradients at its end; so below such a
wrapper a graph ends behind the block of modules with which its parameters fill a bucket, or an
eighth of all where buckets are smaller: each graph costs the host some time. Behind a module that
has none inside it ends where two are full.
"""

import math

import torch
from torch.nn.parallel import DistributedDataParallel

from ...runtime.programs.steps import CALL_INPUT
from .segments import SegmentBuilder
from .values import Meta

_PARTS = 8


def capacity() -> int | None:
    """Bytes of the parameters whose gradients are reduced together, where the call at hand is of a
    model in a DistributedDataParallel; None elsewhere."""
    wrapper = DistributedDataParallel._get_active_ddp_module()  # type: ignore[no-untyped-call]
    if wrapper is None or not torch.is_grad_enabled():
        return None
    cap: int | None = getattr(wrapper, "bucket_bytes_cap", None)
    if cap is None:
        return None
    given: int = sum(p.numel() * p.element_size() for p in wrapper.parameters() if p.requires_grad)
    return max(cap, given // _PARTS)


def gradient_bytes(segment: SegmentBuilder) -> int:
    """Bytes of the call's inputs that get gradients from this segment."""
    metas = (meta for value, meta in segment.taken() if value.home == CALL_INPUT)
    given = (meta for meta in metas if isinstance(meta, Meta) and meta.requires_grad)
    return sum(math.prod(meta.size) * meta.dtype.itemsize for meta in given)
