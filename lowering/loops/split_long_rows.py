"""Folds of few long rows (the mean of a loss, the norm of a gradient): each row is cut into a fixed
number of parts, which threads fold beside each other, and a short fold of these. The result is the
same for every number of threads.
"""

from math import prod
from typing import NamedTuple

import torch

from . import sizes
from .axes import rebuild, undivided
from .columns import Reloader
from .ir import JOINED_BY, Buffer, Load, Nest, Reduced, Store, Value, has_positions
from .kernel_graph import Item, Layout, Unit
from .polynomials import is_known
from .sizes import Atom, Axis, Index

MAX_SPLIT_ROWS = 16  # rows that threads share already
LONG = 1 << 17  # elements of all rows
PARTS = range(8, 65)


class RowSplit(NamedTuple):
    """`axis`, an inner one, in `parts` equal parts."""

    axis: Axis
    parts: int


def split_few_rows(unit: Unit) -> Unit:
    layouts, items = dict(unit.layouts), list[Item]()
    for whole in unit.items:
        item = undivided(whole) if isinstance(whole, Nest) else whole
        cut = _cut(item) if isinstance(item, Nest) and _is_long(item) else None
        if cut is None or not isinstance(item, Nest):
            items.append(item)
        else:
            items.extend(_split(item, cut, layouts, f"piece{len(items)}"))
    return unit.replace(items=tuple(items), layouts=layouts)


def _is_long(nest: Nest) -> bool:
    """Whether the nest folds few rows that are long, each of them in one place of memory."""
    if not nest.is_reduction or has_positions(nest) or not all(map(is_known, _shape(nest))):
        return False
    rows = prod(nest.space)
    plain = all(store.combine is None for store in nest.stores)
    foldable = all(r.kind in JOINED_BY for r in _reduced(nest))
    large = 0 < rows < MAX_SPLIT_ROWS and rows * prod(nest.inner) >= LONG
    return plain and foldable and large and not _is_across(nest)


def _shape(nest: Nest) -> tuple[sizes.Size, ...]:
    return nest.space + nest.inner


def _reduced(nest: Nest) -> list[Reduced]:
    return [value for value in nest.values if isinstance(value, Reduced)]


def _is_across(nest: Nest) -> bool:
    """Whether neighbours in memory belong to different rows."""
    rows = nest.axes[: len(nest.space)]
    return any(sizes.coefficient(load.index, axis) == 1 for load in nest.loads for axis in rows)


def _cut(nest: Nest) -> RowSplit | None:
    """The outermost axis that has equal parts."""
    for axis in nest.axes[len(nest.space) :]:
        assert isinstance(axis.size, int)
        parts = next((n for n in reversed(PARTS) if axis.size % n == 0), None)
        if parts is not None:
            return RowSplit(axis, parts)
    return None


def _split(
    nest: Nest, cut: RowSplit, layouts: dict[Buffer, Layout], name: str
) -> tuple[Nest, Nest]:
    """The nest that folds the parts, and the one that folds what it stores."""
    device = layouts[nest.stores[0].buffer].device
    shape = (*nest.space, cut.parts)
    strides = sizes.contiguous_strides(shape)
    index = sizes.linear(sizes.make_axes(shape), strides)
    made: dict[Value, Buffer] = {}
    for value in _reduced(nest):
        buffer = Buffer(f"{name}_{len(made)}", value.dtype, prod(shape))
        layouts[buffer] = Layout(shape, strides, device)
        made[value] = buffer
    rewriter = Reloader(
        {value: Load(buffer, index) for value, buffer in made.items()}, torch.double
    )
    whole = tuple(Store(s.buffer, s.index, rewriter(s.value)) for s in nest.stores)
    return _parts(nest, cut, made, index), Nest(nest.space, (cut.parts,), whole, nest.origins)


def _parts(nest: Nest, cut: RowSplit, made: dict[Value, Buffer], index: Index) -> Nest:
    rows = len(nest.space)
    size = cut.axis.size // cut.parts
    inner = tuple(size if axis is cut.axis else axis.size for axis in nest.axes[rows:])
    space = (*nest.space, cut.parts)
    new = sizes.make_axes(space + inner)
    places: dict[Atom, Index] = {
        old: sizes.atom_index(axis)
        for old, axis in zip(nest.axes, new[:rows] + new[rows + 1 :], strict=True)
    }
    places[cut.axis] = sizes.linear((new[rows], places[cut.axis]), (size, 1))
    stores = tuple(Store(buffer, sizes.ZERO, value) for value, buffer in made.items())
    folded = rebuild(
        Nest(nest.space, nest.inner, stores, nest.origins), space, inner, lambda a: places[a]
    )
    return Nest(
        folded.space,
        folded.inner,
        tuple(Store(store.buffer, index, store.value) for store in folded.stores),
        nest.origins,
    )
