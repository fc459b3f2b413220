"""Random numbers, by their place among those of an operator."""

from typing import Any

import torch

from ..decompositions.random_numbers import UNIFORM
from ..loops import sizes
from ..loops.ir import IndexValue
from ..loops.kernel_graph import Ref
from .lowering_context import LoweringContext
from .registry import lowers
from .value_builders import const, op


@lowers(UNIFORM)
def _uniform(ctx: LoweringContext, node: Any, seed: Ref, stream: int, size: Any) -> Ref:
    steps = sizes.contiguous_strides(ctx.symbols.shape(ctx.value_of(node)))
    start, number = seed.load((sizes.ZERO,)), const(stream, torch.int64)
    return ctx.pointwise(
        node, lambda at: op("uniform", start, number, IndexValue(sizes.linear(at, steps)))
    )
