"""Gradients of padding: each element sums what the elements that are copies of it were given."""

from collections.abc import Sequence
from itertools import product
from typing import Any

import torch

from ..decompositions.image_gradients import REFLECTION_BACKWARD
from ..loops import sizes
from ..loops.ir import IndexValue, Value
from ..loops.kernel_graph import Ref
from ..loops.polynomials import is_known
from ..loops.sizes import Index
from .lowering_context import LoweringContext
from .registry import Unsupported, lowers
from .value_builders import cast, compute_dtype, const, op

LONG = torch.int64
Copy = tuple[Index, tuple[Value, ...]]  # where it lies, and the conditions on which it is one


def _copies(at: Index, size: int, low: int, high: int) -> list[Copy]:
    """The copies of element `at` of an axis that was padded by reflection."""

    def mirrored(end: int, first: int, last: int) -> Copy:
        value = IndexValue(at)
        tests = op("ge", value, const(first, LONG)), op("le", value, const(last, LONG))
        return sizes.add(sizes.const(end), sizes.scale(at, -1)), tests

    found: list[Copy] = [(sizes.add(at, sizes.const(low)), ())]
    found += [mirrored(low, 1, low)] * (low > 0)
    found += [mirrored(low + 2 * (size - 1), size - 1 - high, size - 2)] * (high > 0)
    return found


@lowers(REFLECTION_BACKWARD)
def _reflection_backward(
    ctx: LoweringContext, node: Any, grad: Ref, size: Sequence[int], padding: Sequence[int]
) -> Ref:
    rank, compute = len(padding) // 2, compute_dtype(grad.dtype)
    lead = len(size) - rank
    if not all(map(is_known, (*size, *padding))):
        raise Unsupported("padding that only a call knows")

    def body(at: tuple[Index, ...]) -> Value:
        axes = [
            _copies(at[lead + d], size[lead + d], *padding[2 * (rank - 1 - d) :][:2])
            for d in range(rank)
        ]
        total: Value | None = None
        for copies in product(*axes):
            inside: Value | None = None
            for test in (test for _, tests in copies for test in tests):
                inside = test if inside is None else op("and", inside, test)
            source = (*at[:lead], *(index for index, _ in copies))
            value = cast(grad.load(source, inside), compute)
            total = value if total is None else op("add", total, value)
        assert total is not None
        return cast(total, grad.dtype)

    return ctx.pointwise(node, body)
