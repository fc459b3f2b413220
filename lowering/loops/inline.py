"""Vertical fusion by substitution: a pointwise value is computed where it is read instead of being
stored.

Nothing that is expensive is computed twice as often as before: a producer is inlined when it is
read by one nest at no more points than it has, or when it is cheap. Rounding to float16/bfloat16
stays where the program put it, so the result does not depend on what was inlined.
"""

from collections import Counter
from collections.abc import Container, Iterator, Mapping, Sequence
from math import prod

import torch

from ..lowerings.value_builders import const, op
from . import sizes
from .axes import axes_of, canonical, points
from .ir import (
    Buffer,
    Load,
    Nest,
    Op,
    Select,
    Store,
    Value,
    ValueRewriter,
    atoms,
    nest_loads,
    rewrite_axes,
    store_values,
)
from .kernel_graph import Item, Layout, Unit
from .materialize_gather import picked_again, split_gather
from .ops import OPS
from .polynomials import Size, at_least, hint, is_known
from .positions import asked, checks_of, harmful_case, uncertain, unconditional
from .sizes import Atom, Axis, FloorDiv, Index, Mod

CHEAP = 6  # a value that costs no more may be computed at every read
NARROW = 8  # times smaller than what is computed: such a buffer costs little to read again
MOST_NARROW = 4
TWICE = 40  # and one that costs no more, in two nests
OFTEN = 2  # times that it may be computed by what has been inlined into one nest, up to that cost
LEAST_CUT = 16  # elements of a row that vectors read as it lies
MOST_VALUES = 160  # of one nest: keeps compile time and registers in bounds
MOST_LOADS = 14
SMALL_FACTOR = 1 << 20  # elements of a matrix that a kernel of its own brings in order
LIBRARY = 16  # cost from which an operation is a function of a library
OWN = frozenset({"exp", "exp2", "erf", "sigmoid", "lgamma"})  # made of others, in float32


def inline(unit: Unit, ordered: bool = False) -> Unit:
    """Every inlinable producer substituted into its readers, in one pass over the items. ordered:
    for kernels that read one after the other, for which it counts how often they pick."""
    pinned = unit.outputs_buffers() | unit.extern_buffers() | unit.given_buffers()
    writers = Counter(
        store.buffer for item in unit.items if isinstance(item, Nest) for store in item.stores
    )
    kept = pinned | {buffer for buffer, count in writers.items() if count > 1}
    readers, narrowed, compared = _final_readers(unit, kept), _narrowed(unit), _compared(unit)
    picked, layouts = picked_again(unit) if ordered else {}, dict(unit.layouts)
    available: dict[Buffer, Nest] = {}
    checks = _Checks(layouts)
    items: list[Item] = []
    for item in unit.items:
        if not isinstance(item, Nest):
            items.append(item)
            continue
        nest = _inline_into(item, available, items, checks, ordered)
        buffer = nest.stores[0].buffer
        moves = buffer in narrowed and _is_value(nest)
        once = buffer in compared and any(map(_varies, nest.values))
        own = readers.get(buffer, {})
        if buffer in picked and buffer not in kept:
            made, nest, layout = split_gather(nest, picked[buffer], unit, f"picked{len(layouts)}")
            layouts[made.stores[0].buffer] = layout
            items.append(made)
            available[buffer] = nest
            continue
        if buffer not in kept and not once and (moves or _inlinable(nest, own)):
            available[buffer] = nest
            checks.expect(nest, len(items))
        else:
            items.append(nest)
    checks.add_missing(available, items)
    return unit.replace(items=tuple(items), layouts=layouts)


def _final_readers(unit: Unit, kept: Container[Buffer]) -> dict[Buffer, dict[Nest, int]]:
    """Nests that will read each buffer after inlining, and at how many points: one that is computed
    in its only reader reads nothing by itself (`x * sigmoid(x)` reads x once, `x.roll(1) +
    x.roll(2)` twice)."""
    readers: dict[Buffer, dict[Nest, set[tuple[Index, tuple[Size, ...]]]]] = {}
    for item in reversed(unit.items):
        if not isinstance(item, Nest):
            continue
        own = readers.get(item.stores[0].buffer, {})
        joins = len(own) == 1 and _is_value(item) and item.stores[0].buffer not in kept
        final = next(iter(own)) if joins else item
        shape = item.space + item.inner
        whole = sizes.linear(item.axes, sizes.contiguous_strides(shape))
        for load in nest_loads(item):
            all_of_it = load.index is whole and prod(shape) == load.buffer.size
            place = (sizes.ZERO, (load.buffer.size,)) if all_of_it else (load.index, shape)
            readers.setdefault(load.buffer, {}).setdefault(final, set()).add(place)
    return {
        buffer: {
            nest: sum(hint(prod(shape)) for _, shape in places) for nest, places in own.items()
        }
        for buffer, own in readers.items()
    }


def _narrowed(unit: Unit) -> set[Buffer]:
    """Buffers that one nest alone reads, element by element, to store no more bytes: whatever reads
    them often, as a window does, had better read what that makes of them."""
    nests = [item for item in unit.items if isinstance(item, Nest)]
    direct = Counter(buffer for nest in nests for buffer in nest.reads)
    found = set[Buffer]()
    for nest in nests:
        if _is_value(nest):
            (store,) = nest.stores
            found |= {
                load.buffer
                for load in nest.loads
                if direct[load.buffer] == 1
                and load.index is store.index
                and load.buffer.size == store.buffer.size
                and load.dtype.itemsize >= store.buffer.dtype.itemsize
            }
    return found


def _compared(unit: Unit) -> set[Buffer]:
    """Buffers that several nests read, of which one asks whether elements are equal to others, as
    gradients of extrema do: to what the others found in them."""
    nests = [item for item in unit.items if isinstance(item, Nest)]
    direct = Counter(buffer for nest in nests for buffer in nest.reads)
    sides = (
        side
        for nest in nests
        for value in nest.values
        if isinstance(value, Op) and value.name in ("eq", "ne")
        for side in value.args
        if side.dtype.is_floating_point
    )
    loads = {leaf.buffer for side in sides for leaf in side.leaves if isinstance(leaf, Load)}
    return {buffer for buffer in loads if direct[buffer] > 1}


def _varies(value: Value) -> bool:
    """Whether the last bits depend on the loop: functions of which a library has one for vectors
    and one for what is left behind them."""
    if not isinstance(value, Op) or OPS[value.name].cost < LIBRARY:
        return False
    return value.dtype == torch.float64 or value.name not in OWN


def _is_value(nest: Nest) -> bool:
    """Whether the nest computes one value at each point of its space, and no more."""
    simple = len(nest.stores) == 1 and not nest.inner and nest.stores[0].combine is None
    return simple and not nest.is_reduction


def cost(nest: Nest) -> int:
    """Rough instructions a point."""
    return sum(OPS[value.name].cost for value in store_values(nest) if isinstance(value, Op))


def _inlinable(nest: Nest, readers: Mapping[Nest, int]) -> bool:
    """readers: with how many elements of the buffer each will have read, by itself and by what is
    inlined into it, some of them more than once."""
    if not _is_value(nest):
        return False
    count = hint(points(nest))
    loads = nest.loads
    buffer = nest.stores[0].buffer
    if any(reader.multiplies for reader in readers):
        turned = any(load.index is not nest.stores[0].index for load in loads)
        often = max(_products(buffer, reader) for reader in readers)
        if often > count or (turned and count <= SMALL_FACTOR):
            return False
    evaluations = max((_evaluations(buffer, reader) for reader in readers), default=0)
    cheap = len(loads) <= MOST_NARROW and cost(nest) <= CHEAP
    if cheap and len(loads) <= 2:
        return True
    often = max(readers.values(), default=0)
    if evaluations > count or often > OFTEN * count or (often > count and cost(nest) > TWICE):
        return False
    wide = sum(hint(load.buffer.size) * NARROW > count for load in loads)
    if cheap and wide <= 1:
        return True
    return len(readers) == 1 or (len(readers) == 2 and wide <= 3 and cost(nest) <= TWICE)


def _products(buffer: Buffer, reader: Nest) -> int:
    """How many elements of the buffer a matrix product takes, some of them more than once."""
    loads = (load for load in reader.loads if load.buffer is buffer)
    return sum(hint(prod(axis.size for axis in axes_of(load))) for load in loads)


def _evaluations(buffer: Buffer, reader: Nest) -> int:
    """How many elements of the buffer the nest itself reads, some of them more than once."""
    places = {load.index for load in reader.loads if load.buffer is buffer}
    return hint(points(reader)) * max(1, len(places))


def _inline_into(
    nest: Nest, available: dict[Buffer, Nest], items: list[Item], checks: "_Checks", ordered: bool
) -> Nest:
    """The nest with loads of available producers replaced by their values. One that would make it
    too large becomes an item; so does, for kernels of vectors, one of rows that the nest cuts into
    rows of another length."""
    whole = nest
    for buffer in sorted(
        {load.buffer for load in nest_loads(nest) if load.buffer in available}, key=lambda b: b.name
    ):
        rewriter = _Inliner(available[buffer])
        grown = _substitute(nest, available[buffer], rewriter)
        if _bearable(grown) and not (ordered and _cuts_rows(nest, grown)):
            lost = checks.lost(nest, grown, rewriter, available)
            items += [_inline_into(each, available, items, checks, ordered) for each in lost]
            nest = grown
        else:
            items.append(available.pop(buffer))
    return nest if nest is whole or _merges_alike(whole, nest) else canonical(nest)


def _cuts_rows(before: Nest, after: Nest) -> bool:
    """Whether there are divisions, where there were none, that give each row of a loop another
    place at which memory jumps."""
    if any(map(_is_cut, _divisions(before))):
        return False
    return any(map(_is_cut, _divisions(canonical(after))))


def _divisions(nest: Nest) -> Iterator[FloorDiv | Mod]:
    found = (atom for load in nest.loads for atom in atoms(load.index))
    return (atom for atom in found if isinstance(atom, FloorDiv | Mod))


def _is_cut(atom: FloorDiv | Mod) -> bool:
    divisor, axes = atom.divisor, atom.base.terms
    if not is_known(divisor) or divisor < LEAST_CUT:
        return False
    if len(axes) > 1:
        steps = [factor for part, factor in axes if isinstance(part, Axis)]
        return 1 in steps and any(is_known(s) and s > 1 and s % divisor for s in steps)
    (part, factor), offset = axes[0], atom.base.offset
    if not isinstance(part, Axis) or not is_known(part.size) or factor != 1:
        return False
    return divisor < part.size and bool(part.size % divisor or offset % divisor)


def _merges_alike(before: Nest, after: Nest) -> bool:
    """Whether the nest, whose axes were in canonical form, still is: its indices are those that it
    had, and more."""
    same = {load.index for load in after.loads} >= {load.index for load in before.loads}
    return same and before.space == after.space and not after.inner


def _bearable(nest: Nest) -> bool:
    few = sum(root.count for root in nest.roots) <= MOST_VALUES or len(nest.values) <= MOST_VALUES
    return few and len({v.buffer for v in nest.loads}) <= MOST_LOADS


class _Checks:
    """Positions that may be out of range, of what is inlined and of what that is inlined into: a
    nest of its own asks for those that no nest asks for any more."""

    def __init__(self, layouts: dict[Buffer, Layout]) -> None:
        self._layouts = layouts
        self._expected: dict[Buffer, tuple[int, Nest]] = {}  # by the place of its item

    def expect(self, nest: Nest, place: int) -> None:
        if asked(nest):
            self._expected[nest.stores[0].buffer] = place, nest

    def lost(
        self, nest: Nest, grown: Nest, rewriter: "_Inliner", available: dict[Buffer, Nest]
    ) -> list[Nest]:
        """Nests for what `nest` asked for, and `grown` does not."""
        buffer = rewriter.store.buffer
        if buffer in self._expected:
            others = [available[b] for b in nest.reads if b in available and b is not buffer]
            if rewriter.covers(nest) or rewriter.covers_harmful(nest, others):
                del self._expected[buffer]
        now = asked(grown)
        own = uncertain(rewriter.index(sizes.atom_index(atom)) for atom in asked(nest))
        return checks_of(grown, [atom for atom in own if atom not in now], self._layouts)

    def add_missing(self, available: Container[Buffer], items: list[Item]) -> None:
        for buffer, (place, nest) in reversed(self._expected.items()):
            if buffer in available:
                made = checks_of(nest, asked(nest), self._layouts)
                items[place:place] = map(canonical, made)


def _of_size(nest: Nest, axis: Axis) -> Iterator[Axis]:
    return (each for each in nest.axes if each.size == axis.size)


def _substitute(nest: Nest, producer: Nest, rewriter: "_Inliner") -> Nest:
    stores = tuple(
        Store(s.buffer, rewriter.index(s.index), rewriter(s.value), s.combine) for s in nest.stores
    )
    origins = tuple(dict.fromkeys(producer.origins + nest.origins))
    return Nest(nest.space, nest.inner, stores, origins)


class _Inliner(ValueRewriter):
    """Replaces loads of the producer's buffer by its value at the point where the loaded element
    was stored."""

    def __init__(self, producer: Nest) -> None:
        super().__init__()
        self.producer, self.store = producer, producer.stores[0]
        self.axes = producer.axes

    def leave(self, value: Value) -> Value:
        if not isinstance(value, Load) or value.buffer is not self.store.buffer:
            return value
        made = self._at(self.store.value, value.index)
        return made if value.mask is None else masked(made, value.mask)

    def covers(self, nest: Nest) -> bool:
        """Whether one of the nest's loads meets, at all its points, all the positions that the
        producer asks for."""
        return any(self._covers_all(load, nest) for load in unconditional(nest))

    def covers_harmful(self, nest: Nest, others: Sequence[Nest]) -> bool:
        """Whether one of the nest's loads meets them wherever they may be out of range, which is in
        one case alone of each. others: further producers of what the nest reads."""
        cases = [harmful_case(atom) for atom in asked(self.producer)]
        if None in cases:
            return False
        for other in others:
            nest = _substitute(nest, other, _Inliner(other))
        for load in (load for load in nest.loads if self._covers_all(load, nest)):
            given = [(self._at(case[0], load.index), case[1]) for case in cases if case]
            if all(load in unconditional(nest, (case,)) for case in given):
                return True
        return False

    def _covers_all(self, load: Value, nest: Nest) -> bool:
        """Whether the load goes, at the points of the nest, to everything that the producer's
        positions depend on."""
        if not isinstance(load, Load) or load.buffer is not self.store.buffer:
            return False
        axes = {axis for atom in asked(self.producer) for axis in axes_of(atom.value)}
        whole = sizes.linear(nest.axes, sizes.contiguous_strides(nest.space + nest.inner))
        if load.index is self.store.index:
            return True
        if load.index is whole and prod(nest.space + nest.inner) == load.buffer.size:
            return True
        places = stored_at(self.store, self.axes, load.index)
        return len({places[axis] for axis in axes}) == len(axes) and all(
            places[axis] in map(sizes.atom_index, _of_size(nest, axis)) for axis in axes
        )

    def _at(self, value: Value, position: Index) -> Value:
        """The value where the producer stores at flat `position`."""
        if position is self.store.index:  # the reader's axes are the producer's
            return value
        places = stored_at(self.store, self.axes, position)
        return rewrite_axes(value, lambda axis: places[axis])


def masked(value: Value, mask: Value) -> Value:
    """`value` where `mask`, else 0, with no load where it is false."""
    return Select(mask, _Masker(mask)(value), const(0, value.dtype))


class _Masker(ValueRewriter):
    def __init__(self, mask: Value) -> None:
        super().__init__()
        self.mask = mask

    def leave(self, value: Value) -> Value:
        if not isinstance(value, Load):
            return value
        return Load(
            value.buffer,
            value.index,
            self.mask if value.mask is None else op("and", self.mask, value.mask),
        )


def stored_at(store: Store, axes: tuple[Axis, ...], position: Index) -> dict[Atom, Index]:
    """The axis values at which a store that fills its buffer, or leaves gaps in it, writes flat
    `position`."""
    places: dict[Atom, Index] = {}
    span = store.buffer.size
    steps = [(sizes.coefficient(store.index, axis), axis) for axis in axes]
    steps.sort(key=lambda step: -hint(step[0]))
    for number, (stride, axis) in enumerate(steps):
        if number and _leaves_gaps(steps[number - 1][0], steps[number:]):
            position = sizes.mod(position, steps[number - 1][0])
        quotient = sizes.floordiv(position, stride)
        places[axis] = quotient if stride * axis.size == span else sizes.mod(quotient, axis.size)
    return places


def _leaves_gaps(outer: Size, steps: Sequence[tuple[Size, Axis]]) -> bool:
    """Whether all that these axes reach lies within one step of `outer`, which need not be a
    multiple of theirs."""
    stride, axis = steps[0]
    last = sum(step * (each.size - 1) for step, each in steps)
    return outer != stride * axis.size and at_least(outer, last + 1)
