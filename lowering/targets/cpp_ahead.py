"""Rows that kernels ask memory for ahead of their use: a processor's own guesses end with the row,
or with the page."""

from collections.abc import Iterator, Sequence

from .. import sizes
from ..ir import Buffer, Indirect, Nest, atoms
from ..poly import at_least, is_known
from ..sizes import Axis, Index
from .cpp_rows import in_memory

LEAST, MOST = 1 << 10, 1 << 13  # bytes of a row: few are not worth it, many push out the row in use
LINE = 64  # bytes


def next_rows(nests: Sequence[Nest]) -> Iterator[tuple[Buffer, Index, int]]:
    """The rows that the next point of the last space axis reads: buffer, index of the first
    element, elements."""
    seen = set[tuple[Buffer, Index]]()
    for nest in nests:
        space, last = nest.axes[: len(nest.space)], nest.axes[-1]
        if not nest.inner or not is_known(last.size):
            continue
        for load in nest.loads:
            row = in_memory(load, last)
            if row is None or row in seen or not _is_long(load.buffer, last):
                continue
            seen.add(row)
            step = sizes.coefficient(row[1], space[-1])
            if at_least(step, last.size) and _linear(row[1], space):
                yield load.buffer, sizes.add(row[1], sizes.const(step)), last.size


def _is_long(buffer: Buffer, last: Axis) -> bool:
    return LEAST <= last.size * buffer.dtype.itemsize <= MOST


def _linear(index: Index, space: tuple[Axis, ...]) -> bool:
    """Whether the index is a sum of multiples of these axes alone."""
    below = list(atoms(index))
    return not any(isinstance(atom, Indirect) for atom in below) and all(
        atom in space for atom in below
    )
