"""Folds over rows: what a reduction folds is first written to a short array on the stack, which
`templates/rows.h` folds.

The array also serves later nests of the group that need the same values: a softmax computes each
exponential once.
"""

from collections.abc import Iterator, Sequence

import torch

from .. import sizes
from ..ir import Buffer, Load, Nest, Op, Reduced, Value, store_values, walk
from ..ops import OPS
from ..poly import hint, is_known
from ..sizes import Axis, Index
from .cpp_expr import axes_of
from .cpp_ops import TYPES

BLOCK = 512  # elements of an array that one nest alone uses
LONGEST = 2048  # elements of an array that is kept for later nests
MOST_KEPT = 8
COSTLY = 4  # operations
SHORTEST = 16  # elements below which a row is folded one by one
_FOLDS = {"sum": "op_row_sum", "max": "op_row_max", "min": "op_row_min"}

Rows = dict[tuple[Axis, ...], dict[Value, str]]


def folds_row(reduced: Reduced, last: Axis) -> bool:
    """Whether the fold over the last inner axis is one of rows.h."""
    return (
        reduced.kind in _FOLDS and reduced.dtype in (torch.float32, torch.float64) and _long(last)
    )


def _long(axis: Axis) -> bool:
    return not is_known(axis.size) or axis.size >= SHORTEST


def finds_in_row(reduced: Reduced, last: Axis) -> bool:
    """Whether the position of an extremum is looked for row by row, with rows.h."""
    position = reduced.kind.startswith("arg")
    return position and reduced.value.dtype in (torch.float32, torch.float64) and _long(last)


def _reductions(nest: Nest) -> Iterator[Reduced]:
    return (value for value in store_values(nest) if isinstance(value, Reduced))


def fold(reduced: Reduced, pointer: str, count: str) -> str:
    return f"{_FOLDS[reduced.kind]}<{TYPES[reduced.dtype]}>({pointer}, {count})"


def in_memory(value: Value, last: Axis) -> tuple[Buffer, Index] | None:
    """Buffer and index of a row that lies in memory, element by element: it needs no array."""
    if not isinstance(value, Load) or value.buffer.scope == "local" or value.mask is not None:
        return None
    start = Index(
        tuple((atom, factor) for atom, factor in value.index.terms if atom is not last),
        value.index.offset,
    )
    contiguous = sizes.coefficient(value.index, last) == 1 and last not in axes_of(
        Load(value.buffer, start), {}
    )
    return (value.buffer, start) if contiguous else None


def _costly(value: Value) -> bool:
    """Whether the value takes more than it takes to write it down and read it again."""
    return sum(OPS[part.name].cost for part in walk(value) if isinstance(part, Op)) >= COSTLY


def kept_rows(nests: Sequence[Nest]) -> Rows:
    """By the axes of the nests that share them: folded values that later nests need, each with the
    name of its array."""
    kept: Rows = {}
    count = 0
    for place, nest in enumerate(nests):
        if len(nest.inner) != 1 or hint(nest.inner[0]) > LONGEST:
            continue
        last = nest.axes[-1]
        later = [
            store.value
            for other in nests[place + 1 :]
            if other.axes == nest.axes
            for store in other.stores
        ]
        needed = set(walk(*later))
        for reduced in _reductions(nest):
            value, known = reduced.value, kept.setdefault(nest.axes, {})
            wanted = folds_row(reduced, last) and value in needed and _costly(value)
            if wanted and value not in known and count < MOST_KEPT:
                known[value] = f"row{count}"
                count += 1
    return kept
