"""Rows that are asked for before they are needed. A processor's own guesses end with the row, or
with the page, and start with what is read, so that each row's results wait for their memory.

What is folded at a row leaves memory idle, as does what is computed of it. So the first loop that
folds a row asks for where its results go, and the last one, which writes them, for the next row: a
few lines each time, as more than a processor keeps in flight hold up the loop.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from .. import sizes
from ..ir import Buffer, Indirect, Load, Nest, atoms
from ..legality import HALVES
from ..poly import at_least, is_known
from ..sizes import Axis, Index
from ..stages.inline import cost
from .cpp_expr import ExpressionPrinter, Lines
from .cpp_rows import in_memory

LINE = 64  # bytes
# elements of a row that are asked for at a time: loops over halves convert blocks of them
PART, PART_OF_HALVES = 64, 256
# bytes of a row that is asked for ahead: few are not worth it, many push out the row in use
LEAST, MOST = 1 << 10, 1 << 13


class Row(NamedTuple):
    """Elements side by side in memory, from that one on."""

    buffer: Buffer
    start: Index


class Ahead:
    """What the loops over the rows of these nests ask for, each row once."""

    def __init__(self, nests: Sequence[Nest] = ()) -> None:
        whole = [nest for nest in nests if len(nest.inner) == 1 and is_known(nest.inner[0])]
        self._last = whole[-1] if whole else None
        # One loop that folds rows as they are reads them as soon as they are asked for.
        takes_long = len(whole) > 1 or any(map(cost, nests))
        self._next = [*_next_rows(whole)] if takes_long else []
        self._results = [*_results(whole)] if takes_long else []

    def within(self, nest: Nest) -> list[tuple[Row, bool]]:
        """What the nest's loop over a row asks for, which is printed now, and whether to write
        there."""
        asked = list[tuple[Row, bool]]()
        if nest.is_reduction and len(nest.inner) == 1:
            asked += ((row, True) for row in self._results)
            self._results = []
        if nest is self._last:
            asked += ((row, False) for row in self._next)
            self._next = []
        return asked


def ask(
    asked: Sequence[tuple[Row, bool]], at: str, count: int, lines: Lines, printer: ExpressionPrinter
) -> None:
    """Ask for so many elements of each row, from `at` on."""
    for (buffer, start), writes in asked:
        place = f"{buffer.name} + {printer.index(start)} + {at} + k"
        lines.add(
            f"for (int64_t k = 0; k < {count}; k += {LINE // buffer.dtype.itemsize})"
            f" __builtin_prefetch({place}{', 1' if writes else ''});"
        )


def open_parts(
    last: Axis, asked: Sequence[tuple[Row, bool]], lines: Lines, printer: ExpressionPrinter
) -> tuple[str, str]:
    """Open a loop over parts of this axis, each of which asks for as many elements of each row.
    Returns where a part starts and ends."""
    halves = any(row.buffer.dtype in HALVES for row, _ in asked)
    count = PART_OF_HALVES if halves else PART
    size, end = last.size, f"q + {count}"
    lines.open(f"for (int64_t q = 0; q < {size}; q += {count})")
    ask(asked, "q", count, lines, printer)
    whole = is_known(size) and size % count == 0
    return "q", end if whole else f"({end} < {size} ? {end} : {size})"


def _next_rows(nests: Sequence[Nest]) -> Iterator[Row]:
    """The rows that the next point of the last space axis reads."""
    for row, last, space in _read(nests):
        step = sizes.coefficient(row.start, space[-1])
        if at_least(step, last.size):
            yield Row(row.buffer, sizes.add(row.start, sizes.const(step)))


def _results(nests: Sequence[Nest]) -> Iterator[Row]:
    """The rows that are written, and not read before."""
    read = {row for row, _, _ in _read(nests)}
    stores = ((nest, store) for nest in nests if not nest.is_reduction for store in nest.stores)
    for nest, store in stores:
        row = _row(Load(store.buffer, store.index), nest) if store.combine is None else None
        if row is not None and row not in read:
            yield row


def _read(nests: Sequence[Nest]) -> Iterator[tuple[Row, Axis, tuple[Axis, ...]]]:
    """Each row that is read, its axis, and those of the nest's points."""
    seen = set[Row]()
    for nest in nests:
        for load in nest.loads:
            row = _row(load, nest)
            if row is not None and row not in seen:
                seen.add(row)
                yield row, nest.axes[-1], nest.axes[: len(nest.space)]


def _row(load: Load, nest: Nest) -> Row | None:
    *space, last = nest.axes
    found = in_memory(load, last)
    if found is None or not is_known(last.size):
        return None
    long = LEAST <= last.size * load.buffer.dtype.itemsize <= MOST
    below = list(atoms(found[1]))
    linear = all(not isinstance(atom, Indirect) and atom in space for atom in below)
    return Row(*found) if long and linear else None
