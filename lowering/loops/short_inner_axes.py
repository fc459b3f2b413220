"""Loops whose innermost run in memory is short (the few channels of a group in channels-last
order): what differs along it runs together with its neighbours.

A fold over such a run becomes one for each of its places, whose neighbours are those of the next
group, and a short fold of these. What is the same for all of a group, in a loop that reads it many
times, is first written out for each place.
"""

from collections import Counter
from collections.abc import Sequence
from math import prod
from typing import NamedTuple

import torch

from . import sizes
from .axes import canonical, divisor_of, rebuild, split_axis
from .columns import Reloader
from .ir import JOINED_BY, Buffer, Load, Nest, Reduced, Store, Value, ValueRewriter, has_positions
from .kernel_graph import Item, Layout, Unit
from .polynomials import is_known
from .sizes import Atom, Axis, Index
from .storage import written

SHORT = range(2, 33)  # elements of a run
MIN_LOOP_ELEMENTS = 1 << 12  # of a loop
MAX_READS = 16  # reads of what is written out


class Run(NamedTuple):
    """`axis` is innermost in memory and `before` next to it; `spread`: loads that differ along
    `before` alone."""

    axis: Axis
    before: Axis
    spread: tuple[Load, ...]


def widen(unit: Unit) -> Unit:
    return _Widening(unit).run()


class _Widening:
    def __init__(self, unit: Unit) -> None:
        self.unit = unit
        self.layouts = dict(unit.layouts)
        self.items: list[Item] = []
        writes = Counter(buffer for item in unit.items for buffer in written(item))
        self._once = {buffer for buffer, count in writes.items() if count == 1}
        self._written: dict[tuple[object, ...], Buffer] = {}

    def run(self) -> Unit:
        for item in self.unit.items:
            nest = _divided(item) if isinstance(item, Nest) else None
            found = None if nest is None else _run(nest)
            if found is None or nest is None:
                self.items.append(item)
            else:
                self._widen(nest, found)
        return self.unit.replace(items=tuple(self.items), layouts=self.layouts)

    def _widen(self, nest: Nest, run: Run) -> None:
        whole: Nest | None = None
        if nest.is_reduction:
            nest, whole = self._unfolded(nest, run)
            *_, before, axis = nest.axes[: len(nest.space)]
            run = Run(axis, before, _spread(nest, before, axis) or ())
        spread: dict[Value, Value] = {v: self._written_out(nest, run, v) for v in run.spread}
        rewriter = _Replacer(spread)
        stores = tuple(Store(s.buffer, s.index, rewriter(s.value)) for s in nest.stores)
        self.items.append(canonical(Nest(nest.space, nest.inner, stores, nest.origins)))
        if whole is not None:
            self.items.append(whole)

    def _buffer(self, name: str, like: Buffer, shape: Sequence[int], dtype: torch.dtype) -> Buffer:
        buffer = Buffer(f"{name}{len(self.layouts)}", dtype, prod(shape))
        strides = sizes.contiguous_strides(shape)
        self.layouts[buffer] = Layout(tuple(shape), strides, self.layouts[like].device)
        return buffer

    def _unfolded(self, nest: Nest, run: Run) -> tuple[Nest, Nest]:
        """The nest that folds every place of the run by itself, with the axes of the run as the
        last ones of its space, and the one that folds those."""
        rows = nest.axes[: len(nest.space)]
        outer = [axis for axis in rows if axis is not run.before]
        inner = [axis for axis in nest.axes[len(rows) :] if axis is not run.axis]
        order = [*outer, run.before, run.axis, *inner]
        space, rest = order[: len(rows) + 1], order[len(rows) + 1 :]
        made: dict[Value, Buffer] = {}
        for value in nest.values:
            if isinstance(value, Reduced):
                shape = [axis.size for axis in space]
                made[value] = self._buffer("places", nest.stores[0].buffer, shape, value.dtype)
        new = sizes.make_axes([axis.size for axis in order])
        places = dict(zip(order, map(sizes.atom_index, new), strict=True))
        strides = sizes.contiguous_strides([axis.size for axis in space])
        folds = tuple(Store(buffer, sizes.ZERO, value) for value, buffer in made.items())
        apart = _moved(Nest(nest.space, nest.inner, folds, nest.origins), len(space), order, places)
        index = sizes.linear(new[: len(space)], strides)
        stores = tuple(Store(store.buffer, index, store.value) for store in apart.stores)
        apart = Nest(apart.space, tuple(axis.size for axis in rest), stores, nest.origins)
        last = Axis(len(rows), run.axis.size)
        index = sizes.linear((*outer, run.before, last), strides)
        loads = {value: Load(buffer, index) for value, buffer in made.items()}
        reloader = Reloader(loads, torch.float64)
        stores = tuple(Store(s.buffer, s.index, reloader(s.value)) for s in nest.stores)
        return apart, Nest(nest.space, (run.axis.size,), stores, nest.origins)

    def _written_out(self, nest: Nest, run: Run, load: Load) -> Load:
        """The load's buffer for each place of the run, made by a nest of its own."""
        own = [axis for axis, _ in load.index.terms if isinstance(axis, Axis)]
        axes = [*(a for a in own if a is not run.before), run.before, run.axis]
        shape = [axis.size for axis in axes]
        new = sizes.make_axes(shape)
        strides = sizes.contiguous_strides(shape)
        places: dict[Atom, Index] = dict(zip(axes, map(sizes.atom_index, new), strict=True))
        source = sizes.substitute(load.index, places)
        key = (load.buffer, source, run.axis.size)
        if key not in self._written or load.buffer not in self._once:
            buffer = self._buffer("spread", load.buffer, shape, load.dtype)
            store = Store(buffer, sizes.linear(new, strides), Load(load.buffer, source))
            self.items.append(Nest(tuple(shape), (), (store,), nest.origins))
            self._written[key] = buffer
        return Load(self._written[key], sizes.linear(axes, strides))


class _Replacer(ValueRewriter):
    def __init__(self, replaced: dict[Value, Value]) -> None:
        super().__init__()
        self._done |= replaced


def _moved(nest: Nest, space: int, order: Sequence[Axis], places: dict[Axis, Index]) -> Nest:
    def rewrite(axis: Atom) -> Index:
        return places[axis] if isinstance(axis, Axis) else sizes.atom_index(axis)

    shape = [axis.size for axis in order]
    return rebuild(nest, shape[:space], shape[space:], rewrite)


def _divided(nest: Nest) -> Nest:
    """A pointwise nest with its last axes split wherever an index divides them exactly: into runs
    of what is the same."""
    if nest.inner or nest.is_reduction:
        return nest
    for place in (-1, -2):
        while len(nest.axes) >= -place:
            divisor = divisor_of((nest,), nest.axes[place], least=2)
            if divisor is None:
                break
            nest = split_axis(nest, nest.axes[place], divisor)
    return nest


def _run(nest: Nest) -> Run | None:
    """The short run of the nest, if its loop is worth another form."""
    plain = all(store.combine is None for store in nest.stores) and not has_positions(nest)
    shape = nest.space + nest.inner
    if not plain or not shape or not all(map(is_known, shape)) or prod(shape) < MIN_LOOP_ELEMENTS:
        return None
    if nest.inner and not nest.is_reduction:
        return None
    if not all(v.kind in JOINED_BY for v in nest.values if isinstance(v, Reduced)):
        return None
    axis = nest.axes[-1]
    if axis.size not in SHORT or (nest.is_reduction and prod(nest.inner) == axis.size):
        return None  # a fold over the run alone would be copied
    rows = nest.axes[: len(nest.space)]
    for before in rows:
        if before is not axis and before.size > 1:
            spread = _spread(nest, before, axis)
            if spread is not None and (spread or nest.is_reduction) and _pays(nest, axis, spread):
                return Run(axis, before, spread)
    return None


def _spread(nest: Nest, before: Axis, axis: Axis) -> tuple[Load, ...] | None:
    """The loads that differ along `before` but not along `axis`, if the others, and stores, lie
    side by side along both."""
    spread, dense = list[Load](), False
    accesses: list[Load | Store] = [*nest.loads]
    accesses += [] if nest.is_reduction else nest.stores
    for access in accesses:
        along, across = (sizes.coefficient(access.index, a) for a in (axis, before))
        if not all(isinstance(atom, Axis) for atom, _ in access.index.terms):
            return None
        dense |= along == 1
        if (along, across) in ((1, axis.size), (0, 0)):
            continue
        if along != 0 or isinstance(access, Store) or access.mask is not None:
            return None
        spread.append(access)
    return tuple(spread) if dense else None


def _pays(nest: Nest, axis: Axis, spread: Sequence[Load]) -> bool:
    """Whether everything that is written out is read many times."""
    points = prod(nest.space + nest.inner)
    return all(
        points
        >= MAX_READS * axis.size * prod(a.size for a, _ in load.index.terms if isinstance(a, Axis))
        for load in spread
    )
