"""Folds over rows: what a reduction folds is first written to a short array on the stack, which
`templates/rows.h` folds.

The array also serves later nests of the group that need the same values: a softmax computes each
exponential once.

And rows that are asked for before they are needed. A processor's own guesses end with the row, or
with the page, and start with what is read, so that each row's results wait for their memory. What
is folded at a row leaves memory idle, as does what is computed of it. So the first loop that folds
a row asks for where its results go, and the last one, which writes them, for the next row: a few
lines each time, as more than a processor keeps in flight hold up the loop.
"""

import dataclasses
from collections.abc import Iterator, Sequence
from math import prod
from typing import NamedTuple

import torch

from ...loops import sizes
from ...loops.inline import cost
from ...loops.ir import Buffer, Indirect, Load, Nest, Op, Reduced, Value, atoms, store_values, walk
from ...loops.legality import HALVES
from ...loops.ops import OPS
from ...loops.polynomials import at_least, hint, is_known
from ...loops.sizes import Axis, Index
from .cpp_expr import ExpressionPrinter, Lines, axes_of
from .cpp_ops import TYPES, highest, lowest

BLOCK = 512  # elements of an array that one nest alone uses
ROW_BLOCK = 32  # the same for sums of columns
LONGEST = 2048  # elements of an array that is kept for later nests
MOST_KEPT = 8
MOST_ACROSS = 1 << 18  # bytes of arrays of elements of many rows
COSTLY_OPERATIONS = 4  # operations
MIN_ROW_ELEMENTS = 16  # elements below which a row is folded one by one
LINE = 64  # bytes
# elements of a row that are asked for at a time: loops over halves convert blocks of them
ASKED, ASKED_HALVES = 64, 256
# bytes of a row that is asked for ahead: few are not worth it, many push out the row in use
LEAST_ASKED, MOST_ASKED = 1 << 10, 1 << 13
_FOLDS = {kind: f"op_row_{kind}" for kind in ("sum", "prod", "max", "min")}

Rows = dict[tuple[Axis, ...], dict[Value, str]]


SIMD_KINDS = {"sum": "+", "prod": "*", "max": "op_max", "min": "op_min", "any": "|", "all": "&"}
COMBINE = {
    "sum": "{0} += {1};",
    "prod": "{0} *= {1};",
    "max": "{0} = op_maximum<{t}>({1}, {0});",
    "min": "{0} = op_minimum<{t}>({1}, {0});",
    "any": "{0} |= {1};",
    "all": "{0} &= {1};",
}


@dataclasses.dataclass(frozen=True)
class Accumulator:
    """Variables of one reduction: `name` of `kind`; `wide`: a double that float sums are flushed
    into; `parts`: a row is not folded at once. `carries`: the sum goes with `name_low`, what its
    additions rounded off."""

    reduced: Reduced
    name: str
    parts: bool = False

    @property
    def kind(self) -> str:
        return self.reduced.kind

    @property
    def type(self) -> str:
        if self.kind in ("any", "all"):
            return "int32_t"
        return TYPES[self.reduced.value.dtype if self.is_position else self.reduced.dtype]

    @property
    def is_position(self) -> bool:
        return self.kind.startswith("arg")

    @property
    def wide(self) -> bool:
        return self.kind == "sum" and self.reduced.dtype == torch.float32

    @property
    def carries(self) -> bool:
        return self.parts and self.kind == "sum" and self.reduced.dtype == torch.float64

    @property
    def start(self) -> str:
        dtype = self.reduced.value.dtype
        if self.kind in ("sum", "any"):
            return "0"
        return (
            "1"
            if self.kind in ("prod", "all")
            else lowest(dtype)
            if "max" in self.kind
            else highest(dtype)
        )

    def moved(self, value: str, place: str) -> Iterator[str]:
        """Lines that take one element into a tile's extremum: the first NaN, else the first
        largest."""
        sign, best, new = (
            ">" if self.kind == "argmax" else "<",
            f"{self.name}[t]",
            f"{self.name}_new",
        )
        better = f"({value} {sign} {best}) | (({value} != {value}) & ({best} == {best}))"
        yield f"const bool {new} = {better};"
        yield f"{best} = {new} ? {value} : {best};"
        yield f"{self.name}_at[t] = {new} ? {place} : {self.name}_at[t];"

    def combine(self, into: str, value: str) -> str:
        return COMBINE[self.kind].format(into, value, t=self.type)

    def with_part(self, part: str) -> str:
        """A line that takes the fold of a part into that of all at a point."""
        if self.carries:
            return f"op_carry({self.name}, {self.name}_low, {part});"
        return self.combine(self.name, part)

    @property
    def folded(self) -> str:
        """The fold of all at a point."""
        return f"op_carried({self.name}, {self.name}_low)" if self.carries else self.name

    def outcome(self, lane: str) -> str:
        """The reduction's value, of a tile's point `lane`."""
        name = self.name + lane if lane else self.folded
        if self.is_position:
            return f"{self.name}_at{lane}"
        if self.wide:
            return f"(float){name}"
        return f"({name} != 0)" if self.kind in ("any", "all") else name


@dataclasses.dataclass(frozen=True)
class Row:
    """Where the elements of a row fold stand. kept: in an array for later nests; computed: the
    nest's loop writes them; room: the array has it for whole vectors."""

    array: str
    kept: bool
    computed: bool
    memory: tuple[Buffer, Index] | None = None
    room: bool = False

    def folded(self, a: Accumulator, printer: ExpressionPrinter, low: str, high: str) -> str:
        """The fold of elements `low` to `high`, which an array of one block holds from its
        start."""
        if self.memory is None:
            start = "" if low == "0" or not self.kept else f" + {low}"
            count = high if low == "0" else f"{high} - {low}"
            return fold(a.reduced, self.array + start, count, room=self.room)
        buffer, index = self.memory
        start = "" if low == "0" else f" + {low}"
        return fold(
            a.reduced,
            f"{buffer.name} + {printer.index(index)}{start}",
            high if low == "0" else f"{high} - {low}",
        )


def position_type(nest: Nest) -> str:
    """The type of positions: as wide as the values, where that is wide enough, they are vectorised
    beside them."""
    count = prod(nest.inner)
    return "int32_t" if is_known(count) and count < 1 << 31 else "int64_t"


def folds_row(reduced: Reduced, last: Axis) -> bool:
    """Whether the fold over the last inner axis is one of rows.h."""
    return (
        reduced.kind in _FOLDS and reduced.dtype in (torch.float32, torch.float64) and _long(last)
    )


def _long(axis: Axis) -> bool:
    return not is_known(axis.size) or axis.size >= MIN_ROW_ELEMENTS


def finds_in_row(reduced: Reduced, last: Axis) -> bool:
    """Whether the position of an extremum is looked for row by row, with rows.h."""
    position = reduced.kind.startswith("arg")
    return position and reduced.value.dtype in (torch.float32, torch.float64) and _long(last)


def _reductions(nest: Nest) -> Iterator[Reduced]:
    return (value for value in store_values(nest) if isinstance(value, Reduced))


def fold(reduced: Reduced, pointer: str, count: str, room: bool = False) -> str:
    end = ", true" if room else ""
    return f"{_FOLDS[reduced.kind]}<{TYPES[reduced.dtype]}>({pointer}, {count}{end})"


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


def costly(value: Value) -> bool:
    """Whether the value takes more than it takes to write it down and read it again."""
    return (
        sum(OPS[part.name].cost for part in walk(value) if isinstance(part, Op))
        >= COSTLY_OPERATIONS
    )


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
            wanted = folds_row(reduced, last) and value in needed and costly(value)
            if wanted and value not in known and count < MOST_KEPT:
                known[value] = f"row{count}"
                count += 1
    return kept


def kept_across(nests: Sequence[Nest], points: int) -> Rows:
    """The same for that many rows at once, element beside element."""
    kept: Rows = {}
    room = MOST_ACROSS
    for place, nest in enumerate(nests):
        if len(nest.inner) != 1 or not is_known(nest.inner[0]):
            continue
        others = (other for other in nests[place + 1 :] if other.axes == nest.axes)
        needed = set(walk(*(store.value for other in others for store in other.stores)))
        known = kept.setdefault(nest.axes, {})
        for reduced in _reductions(nest):
            value = reduced.value
            size = nest.inner[0] * points * value.dtype.itemsize
            if value in needed and value not in known and costly(value) and size <= room:
                known[value] = f"row{sum(map(len, kept.values()))}"
                room -= size
    return kept


class Stretch(NamedTuple):
    """Elements side by side in memory, from that one on."""

    buffer: Buffer
    start: Index


Asked = tuple[Stretch, bool]  # and whether it will be written


class Ahead:
    """What the loops over the rows of these nests ask for, each row once."""

    def __init__(self, nests: Sequence[Nest] = ()) -> None:
        whole = [nest for nest in nests if len(nest.inner) == 1 and is_known(nest.inner[0])]
        self._last = whole[-1] if whole else None
        # One loop that folds rows as they are reads them as soon as they are asked for.
        takes_long = len(whole) > 1 or any(map(cost, nests))
        self._next = [*_next_rows(whole)] if takes_long else []
        self._results = [*_results(whole)] if takes_long else []

    def within(self, nest: Nest) -> list[Asked]:
        """What the nest's loop over a row asks for, which is printed now."""
        asked = list[Asked]()
        if nest.is_reduction and len(nest.inner) == 1:
            asked += ((row, True) for row in self._results)
            self._results = []
        if nest is self._last:
            asked += ((row, False) for row in self._next)
            self._next = []
        return asked


def ask(
    asked: Sequence[Asked], at: str, count: int, lines: Lines, printer: ExpressionPrinter
) -> None:
    """Ask for so many elements of each row, from `at` on."""
    for (buffer, start), writes in asked:
        place = f"{buffer.name} + {printer.index(start)} + {at} + k"
        lines.add(
            f"for (int64_t k = 0; k < {count}; k += {LINE // buffer.dtype.itemsize})"
            f" __builtin_prefetch({place}{', 1' if writes else ''});"
        )


def open_parts(
    last: Axis, asked: Sequence[Asked], lines: Lines, printer: ExpressionPrinter
) -> tuple[str, str]:
    """Open a loop over parts of this axis, each of which asks for as many elements of each row.
    Returns where a part starts and ends."""
    halves = any(row.buffer.dtype in HALVES for row, _ in asked)
    count = ASKED_HALVES if halves else ASKED
    size, end = last.size, f"q + {count}"
    lines.open(f"for (int64_t q = 0; q < {size}; q += {count})")
    ask(asked, "q", count, lines, printer)
    whole = is_known(size) and size % count == 0
    return "q", end if whole else f"({end} < {size} ? {end} : {size})"


def _next_rows(nests: Sequence[Nest]) -> Iterator[Stretch]:
    """The rows that the next point of the last space axis reads."""
    for row, last, space in _read(nests):
        step = sizes.coefficient(row.start, space[-1])
        if at_least(step, last.size):
            yield Stretch(row.buffer, sizes.add(row.start, sizes.const(step)))


def _results(nests: Sequence[Nest]) -> Iterator[Stretch]:
    """The rows that are written, and not read before."""
    read = {row for row, _, _ in _read(nests)}
    stores = ((nest, store) for nest in nests if not nest.is_reduction for store in nest.stores)
    for nest, store in stores:
        row = _row(Load(store.buffer, store.index), nest) if store.combine is None else None
        if row is not None and row not in read:
            yield row


def _read(nests: Sequence[Nest]) -> Iterator[tuple[Stretch, Axis, tuple[Axis, ...]]]:
    """Each row that is read, its axis, and those of the nest's points."""
    seen = set[Stretch]()
    for nest in nests:
        for load in nest.loads:
            row = _row(load, nest)
            if row is not None and row not in seen:
                seen.add(row)
                yield row, nest.axes[-1], nest.axes[: len(nest.space)]


def _row(load: Load, nest: Nest) -> Stretch | None:
    *space, last = nest.axes
    found = in_memory(load, last)
    if found is None or not is_known(last.size):
        return None
    long = LEAST_ASKED <= last.size * load.buffer.dtype.itemsize <= MOST_ASKED
    below = list(atoms(found[1]))
    linear = all(not isinstance(atom, Indirect) and atom in space for atom in below)
    return Stretch(*found) if long and linear else None


def cut_of(axes: Sequence[Axis]) -> tuple[int, int]:
    """The axis of which, with those inside of it, some turns at a time are summed up by themselves,
    and how many: some `ROW_BLOCK` elements."""
    inside, cut = 1, len(axes) - 1
    while cut and is_known(axes[cut].size) and inside * axes[cut].size <= ROW_BLOCK:
        inside *= axes[cut].size
        cut -= 1
    return cut, max(1, ROW_BLOCK // inside)
