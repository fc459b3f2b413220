"""Sums over columns that read what a loop over rows reads, and those of many rows: each becomes
partial sums over a fixed number of rows, which that loop takes along, and a short sum of these. The
operands are read once, in the order of memory, by all threads, and the result is the same for every
number of them.

The backward of a layer norm folds its gradient along rows for the input, along columns for weight
and bias; that of a batch norm in channels-last order has few columns.
"""

from collections.abc import Iterator
from typing import NamedTuple

import torch

from ..lowerings.value_builders import cast
from . import sizes
from .axes import LEAST_ROWS, rebuild
from .ir import PARTIAL, Buffer, Load, Nest, Reduced, Store, Value, ValueRewriter, has_positions
from .kernel_graph import Item, Layout, Unit
from .polynomials import Size, Var, hint, is_known, variable
from .sizes import Atom, Axis, Index

WIDEST = 8192  # columns whose parts stay in cache

# A load of a buffer over rows and columns: sizes of both, and the step of either.
Access = tuple[Buffer, Size, Size, Size, Size]


class ColumnSplit(NamedTuple):
    """most: rows summed in one part; parts: wanted, to spread over threads; unit: of which the rows
    of a part are a multiple; least: rows worth it; alone: elements from which a sum is cut that no
    loop over rows takes along; whole: the type in which the parts are added."""

    most: int
    parts: int
    unit: int
    least: int
    alone: int | None
    whole: torch.dtype


CORES = ColumnSplit(
    128, 32, 1, LEAST_ROWS, 1 << 17, torch.float64
)  # longer parts would round more than eager
GPU = ColumnSplit(
    1 << 10, 264, 16, 1 << 10, None, torch.float32
)  # one program's each: two for each of 132
NARROW = 256  # columns that a few warps hold: twice as many programs then keep a GPU busy
UNKNOWN = 64  # rows of a part where only a call knows how many there are
LEAST_COLUMNS, MANY_ROWS = 4, 1 << 10  # of a sum that is cut alone


def split_columns(unit: Unit, cut: ColumnSplit = CORES) -> Unit:
    shared = {access for item in unit.items if isinstance(item, Nest) for access in _rows(item)}
    layouts, items, counts = dict(unit.layouts), list[Item](), dict[Size, Var]()
    for item in unit.items:
        if isinstance(item, Nest) and _is_column_sum(item, cut) and _is_cut(item, cut, shared):
            height = _height(item.axes[0].size, item.axes[1].size, cut)
            parts = _parts(item.axes[1].size, height, counts)
            partial, made = _partial(item, parts, height, layouts, f"part{len(items)}")
            items.extend((partial, _whole(item, made, parts, cut.whole)))
        else:
            items.append(item)
    variables = (*unit.variables, *counts.values())
    return unit.replace(items=tuple(items), layouts=layouts, variables=variables)


def split_columns_of_many_rows(unit: Unit) -> Unit:
    """For kernels whose programs go through the rows of a part one after the other."""
    return split_columns(unit, GPU)


def _parts(rows: Size, height: int, counts: dict[Size, Var]) -> Size:
    """How many parts the rows make, by a variable where only a call knows."""
    if isinstance(rows, int):
        return -(-rows // height)
    if rows not in counts:
        formula = ("//", (rows + (height - 1), height))
        name = f"parts{len(counts)}"
        counts[rows] = Var(name, -(-hint(rows) // height), 0, None, formula)
    return variable(counts[rows])


def _height(columns: Size, rows: Size, cut: ColumnSplit) -> int:
    if not is_known(rows):
        return UNKNOWN
    parts = cut.parts * (2 if cut is GPU and hint(columns) <= NARROW else 1)
    rows_each = max(min(cut.most, -(-hint(rows) // parts)), 8)
    return -(-rows_each // cut.unit) * cut.unit


def _has_parts(columns: Size, rows: Size, cut: ColumnSplit) -> bool:
    """Whether there may be more than one: not where a call has fewer rows than one takes."""
    row = sizes.atom_index(Axis(0, rows))
    return bool(sizes.floordiv(row, _height(columns, rows, cut)).terms)


def _is_cut(nest: Nest, cut: ColumnSplit, shared: set[Access]) -> bool:
    """Whether a loop over rows takes the sum along, or it is worth a loop of its own."""
    accesses = set(_columns(nest))
    columns, rows = (hint(axis.size) for axis in nest.axes)
    large = cut.alone is not None and columns * rows >= cut.alone and rows >= MANY_ROWS
    worth = shared & accesses or (large and columns >= LEAST_COLUMNS and accesses)
    return bool(worth) and _has_parts(nest.axes[0].size, nest.axes[1].size, cut)


def _rows(nest: Nest) -> Iterator[Access]:
    """What a reduction of rows reads."""
    if nest.is_reduction and len(nest.space) == len(nest.inner) == 1:
        row, column = nest.axes
        yield from _accesses(nest, row, column)


def _columns(nest: Nest) -> Iterator[Access]:
    column, row = nest.axes
    yield from _accesses(nest, row, column)


def _accesses(nest: Nest, row: Axis, column: Axis) -> Iterator[Access]:
    for load in nest.loads:
        steps = (sizes.coefficient(load.index, axis) for axis in (row, column))
        across, along = steps
        if along == 1 and across != 0:
            yield load.buffer, row.size, column.size, across, along


def _is_column_sum(nest: Nest, cut: ColumnSplit) -> bool:
    if not (nest.is_reduction and len(nest.space) == len(nest.inner) == 1) or has_positions(nest):
        return False
    columns, rows = nest.axes[0].size, nest.axes[1].size
    return (
        all(store.combine is None for store in nest.stores)
        and all(r.kind == "sum" and r.dtype == torch.float32 for r in _reduced(nest))
        and hint(rows) >= cut.least
        and (is_known(rows) or cut is not GPU)
        and is_known(columns)
        and 1 < columns <= WIDEST
    )


def _reduced(nest: Nest) -> list[Reduced]:
    return [value for value in nest.values if isinstance(value, Reduced)]


def _partial(
    nest: Nest, parts: Size, height: int, layouts: dict[Buffer, Layout], name: str
) -> tuple[Nest, dict[Value, Buffer]]:
    """The nest that stores the sums of the parts, and where it stores each."""
    device = layouts[nest.stores[0].buffer].device
    made: dict[Value, Buffer] = {}
    for value in _reduced(nest):
        width = nest.axes[0].size
        buffer = Buffer(f"{name}_{len(made)}", value.dtype, parts * width)
        layouts[buffer] = Layout((parts, width), (width, 1), device)
        made[value] = buffer
    return _stored(nest, made, height), made


def _stored(nest: Nest, made: dict[Value, Buffer], height: int) -> Nest:
    columns, rows = nest.axes
    row, column = Axis(0, rows.size), Axis(1, columns.size)
    places: dict[Atom, Index] = {columns: sizes.atom_index(column), rows: sizes.atom_index(row)}
    part = sizes.floordiv(sizes.atom_index(row), height)
    index = sizes.add(sizes.scale(part, columns.size), sizes.atom_index(column))
    folded = [
        Store(buffer, index, value.value, PARTIAL)  # type: ignore[attr-defined]
        for value, buffer in made.items()
    ]
    swapped = rebuild(
        Nest(nest.space, nest.inner, tuple(folded), nest.origins),
        (rows.size,),
        (columns.size,),
        lambda axis: places.get(axis, sizes.atom_index(axis)),
    )
    stores = tuple(
        Store(old.buffer, index, new.value, PARTIAL)
        for old, new in zip(folded, swapped.stores, strict=True)
    )
    return Nest(swapped.space, swapped.inner, stores, nest.origins)


def _whole(nest: Nest, made: dict[Value, Buffer], parts: Size, dtype: torch.dtype) -> Nest:
    """The nest over the partial sums, added in `dtype`."""
    columns = nest.axes[0]
    part = Axis(1, parts)
    index = sizes.linear((part, columns), (columns.size, 1))
    rewriter = Reloader({value: Load(buffer, index) for value, buffer in made.items()}, dtype)
    stores = tuple(Store(s.buffer, s.index, rewriter(s.value)) for s in nest.stores)
    return Nest(nest.space, (parts,), stores, nest.origins)


class Reloader(ValueRewriter):
    """What each reduction folds, replaced; sums of float32 are made in `dtype`."""

    def __init__(self, folded: dict[Value, Load], dtype: torch.dtype) -> None:
        super().__init__()
        self.folded, self.dtype = folded, dtype

    def __call__(self, value: Value) -> Value:
        if value in self.folded:
            assert isinstance(value, Reduced)
            rounds = value.kind == "sum" and value.dtype == torch.float32
            dtype = self.dtype if rounds else value.dtype
            return cast(Reduced(value.kind, cast(self.folded[value], dtype), dtype), value.dtype)
        return super().__call__(value)
