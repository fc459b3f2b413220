"""Kernels of attention as a function of tensors that makes its results."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch

from ..errors import BuildError
from .launch_triton import Launch, load_groups
from .triton_kernels import TritonGroup


@dataclasses.dataclass(frozen=True, eq=False)
class AttentionKernels:
    """`launch` takes tensors, then results, then numbers. The first `returned` results are given
    back."""

    launch: Launch
    returned: int
    __name__ = "attention_kernels"

    def __call__(
        self, tensors: Sequence[Any], layouts: Sequence[Any], numbers: Sequence[int]
    ) -> tuple[Any, ...]:
        """`layouts`: sizes, strides and dtype of each result."""
        device = tensors[0].device
        made = [torch.empty_strided(*two, dtype=dtype, device=device) for *two, dtype in layouts]
        self.launch(*tensors, *made, *numbers)
        return tuple(made[: self.returned])


def load_attention(group: TritonGroup, device: torch.device, returned: int) -> AttentionKernels:
    """Of each kernel the first variant that fits the device. Raises BuildError if none does."""
    chosen = [_first(group, kernels, device) for kernels in group.variants]
    (launch,) = load_groups([dataclasses.replace(group, variants=tuple(chosen))], device)
    return AttentionKernels(launch, returned)


def _first(group: TritonGroup, kernels: Sequence[Any], device: torch.device) -> tuple[Any, ...]:
    for kernel in kernels[:-1]:
        try:
            load_groups([dataclasses.replace(group, variants=((kernel,),))], device)
            return (kernel,)
        except BuildError:
            continue  # the next one needs less memory on the chip
    return (kernels[-1],)
