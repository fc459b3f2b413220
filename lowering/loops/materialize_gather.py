"""Elements that are picked at positions from memory, or by irregular steps, and read again and
again: tables of relative positions, added to the scores of every head and window. They are picked
once, into the order in which they are read."""

from collections.abc import Iterator

from . import sizes
from .axes import axes_of, canonical, points
from .ir import Buffer, Indirect, Load, Nest, Store, atoms
from .kernel_graph import Layout, Unit
from .polynomials import hint
from .sizes import Axis, FloorDiv

MIN_ELEMENTS_SAVED = 1 << 12  # elements more, below which a loop of its own does not pay


def picked_again(unit: Unit) -> dict[Buffer, Axis]:
    """Buffers of values that are picked one by one, which loops read more often than there are any,
    and the axis of the nest that makes them along which they do."""
    nests = [item for item in unit.items if isinstance(item, Nest)]
    picking = {nest.stores[0].buffer: nest for nest in nests if any(_picked_axes(nest))}
    found: dict[Buffer, Axis] = {}
    for nest in nests if picking else ():
        for load in nest.loads:
            maker = picking.get(load.buffer)
            if maker is None or not _is_value(maker) or not _again(maker, nest):
                continue
            along = _axis_along(maker, load, nest.axes[-1])
            if along in set(_picked_axes(maker)):
                found[load.buffer] = along
    return found


def split_gather(nest: Nest, along: Axis, unit: Unit, name: str) -> tuple[Nest, Nest, Layout]:
    """A nest that makes the same values in an order in which `along` comes last, one that copies
    them, and the layout of what lies between."""
    (store,) = nest.stores
    order = [*(axis for axis in nest.axes if axis is not along), along]
    shape = tuple(axis.size for axis in order)
    strides = sizes.contiguous_strides(shape)
    buffer = Buffer(name, store.buffer.dtype, store.buffer.size)
    index = sizes.linear(order, strides)
    made = Nest(nest.space, (), (Store(buffer, index, store.value),), nest.origins)
    copied = Store(store.buffer, store.index, Load(buffer, index))
    layout = Layout(shape, strides, unit.layouts[store.buffer].device)
    return canonical(made), Nest(nest.space, (), (copied,), nest.origins), layout


def _picked_axes(nest: Nest) -> Iterator[Axis]:
    """Axes along which the nest reads at positions from memory, or takes irregular steps."""
    for atom in (atom for load in nest.loads for atom in atoms(load.index)):
        if isinstance(atom, Indirect):
            yield from axes_of(atom.value)
        elif isinstance(atom, FloorDiv):
            yield from (a for a in nest.axes if sizes.coefficient(atom.base, a) not in (0, 1))


def _is_value(nest: Nest) -> bool:
    (store, *others) = nest.stores
    whole = hint(points(nest)) == hint(store.buffer.size)
    return whole and not (others or nest.inner or nest.is_reduction or store.combine)


def _again(maker: Nest, reader: Nest) -> bool:
    more = hint(points(reader)) - hint(points(maker))
    return bool(reader.axes) and more >= max(MIN_ELEMENTS_SAVED, hint(points(maker)))


def _axis_along(maker: Nest, load: Load, last: Axis) -> Axis | None:
    """The axis of the maker that a step along the reader's last axis moves on."""
    step = hint(sizes.coefficient(load.index, last))
    index = maker.stores[0].index
    within = [axis for axis in maker.axes if 0 < hint(sizes.coefficient(index, axis)) <= step]
    return max(within, key=lambda axis: hint(sizes.coefficient(index, axis)), default=None)
