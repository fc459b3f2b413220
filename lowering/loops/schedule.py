"""Grouping nests into kernels: nests that share their outer space, row by row (vertical) or by what
they read (horizontal).

Items keep an order that respects data flow. A nest joins the latest group it may join: one that
stands after everything the nest depends on. Only the last few groups that touch what it reads are
tried, so the work is near-linear in the number of nests.
"""

import dataclasses
from collections.abc import Iterable, Sequence
from math import prod

from . import sizes
from .axes import LEAST_ROWS, align, axes_of, following, gains_divisions
from .fuse_passes import is_disjoint, share_passes
from .ir import (
    Buffer,
    Group,
    Load,
    Nest,
    Store,
    Value,
    ValueRewriter,
    accesses,
    atoms,
    has_positions,
    nest_loads,
    part_height,
    scatters,
)
from .kernel_graph import ExternCall, Item, Unit
from .liveness import HeldMemory
from .polynomials import Size, at_least, hint, is_known
from .short_axes import without_short_axes
from .sizes import Axis, Index
from .vector_axis import clearly_across, goes_along, goes_both_ways, turned_inside

WINDOW = 12  # groups looked at, of those that touch what a nest reads
MOST_BUFFERS = 24  # of one kernel
LONGEST_HELD = 512  # elements of a column of which a program holds many
SMALL = 1 << 14  # elements below which spreading does not matter


def schedule(unit: Unit) -> Unit:
    return _Scheduler(unit).run(fuse=True)


def schedule_by_direction(unit: Unit) -> Unit:
    """For loops whose vectors run one way: folds that run across rows are apart from loops along
    these."""
    return _Scheduler(unit, one_way=True).run(fuse=True)


def schedule_unfused(unit: Unit) -> Unit:
    """One kernel a nest."""
    return _Scheduler(unit).run(fuse=False)


@dataclasses.dataclass
class _Open:
    """A group that may still grow, or an extern call. across: loops inside are for vectors along
    the last axis of its space."""

    nests: list[Nest]
    extern: ExternCall | None = None
    across: bool = False
    number: int = 0  # of its first item among those of the unit

    @property
    def space(self) -> tuple[Size, ...]:
        return self.nests[0].space

    def reads(self) -> set[Buffer]:
        if self.extern is not None:
            return set(self.extern.reads())
        return set[Buffer]().union(*(nest.reads for nest in self.nests))

    def buffers(self) -> set[Buffer]:
        return self.reads() | self.written()

    def written(self) -> set[Buffer]:
        return set[Buffer]().union(*(nest.writes for nest in self.nests))


class _Scheduler:
    def __init__(self, unit: Unit, *, one_way: bool = False) -> None:
        self.unit, self.one_way = unit, one_way
        self.places: list[_Open] = []
        self.writer: dict[Buffer, int] = {}
        self.reader: dict[Buffer, int] = {}
        self.touching: dict[Buffer, list[int]] = {}
        self.given = unit.given_buffers()
        self.last_raising = -1  # the last place that may raise: inputs are written after it
        self.held = None if one_way else HeldMemory(unit)

    def run(self, fuse: bool) -> Unit:
        for number, item in enumerate(self.unit.items):
            one = _Open([item]) if isinstance(item, Nest) else _Open([], item)  # type: ignore[arg-type]
            one.number = number
            self._place(one, fuse)
        if fuse:
            self._merge_groups()
        items = tuple(self._close(place, number) for number, place in enumerate(self.places, 1))
        return _locals_found(self.unit.replace(items=items))

    def _merge_groups(self) -> None:
        """Once more, with whole groups: nests that met too late for the first pass."""
        places, self.places, self.writer, self.reader = self.places, [], {}, {}
        self.touching = {}
        self.last_raising = -1
        for place in places:
            self._place(place, fuse=True)

    def _close(self, place: _Open, number: int) -> Item:
        if place.extern is not None:
            return place.extern
        return Group(f"{self.unit.name}_{number}", place.space, share_passes(place.nests))

    def _place(self, place: _Open, fuse: bool) -> None:
        where = self._join(place) if fuse and place.nests else None
        if where is None:
            where = len(self.places)
            self.places.append(place)
        for buffer in place.extern.writes() if place.extern else place.written():
            self.writer[buffer] = max(where, self.writer.get(buffer, 0))
        for buffer in place.buffers() if place.nests else ():
            known = self.touching.setdefault(buffer, [])
            if where not in known[-WINDOW:]:
                known.append(where)
        for buffer in place.reads() & self.given:
            self.reader[buffer] = max(where, self.reader.get(buffer, 0))
        if place.extern or any(map(has_positions, place.nests)):
            self.last_raising = max(where, self.last_raising)

    def _join(self, newcomer: _Open) -> int | None:
        """The place of a group that took the newcomer's nests in."""
        touched, reads = newcomer.buffers(), newcomer.reads()
        earliest = max((self.writer.get(buffer, 0) for buffer in touched), default=0)
        overwritten = newcomer.written() & self.given
        if overwritten:
            readers = [self.reader.get(buffer, 0) for buffer in overwritten]
            earliest = max(earliest, self.last_raising + 1, *readers)
        near = {where for buffer in reads for where in self.touching.get(buffer, ())[-WINDOW:]}
        for where in sorted(near, reverse=True)[:WINDOW]:
            place = self.places[where]
            if where >= earliest and place.nests and self._try(place, newcomer):
                return where
        return None

    def _try(self, place: _Open, newcomer: _Open) -> bool:
        joined = fuse_nests(place.nests, newcomer.nests, either=self.one_way)
        across = place.across or newcomer.across
        if joined is None and (self.one_way or _fold_columns(place.nests, newcomer.nests)):
            joined = _fused_across(place.nests, newcomer.nests, cached=not self.one_way)
            across = True
        if joined is None or len(_Open(joined).buffers()) > MOST_BUFFERS:
            return False
        if self.one_way and (_turns(joined, across) or (across and not _runs_in_vectors(joined))):
            return False
        if self.held is not None:
            read, made = newcomer.reads(), newcomer.written()
            if not self.held.may_come(place.number, newcomer.number, read, made):
                return False
            self.held.come(place.number, made)
        place.nests, place.across = joined, across
        return True


def fuse_nests(first: list[Nest], second: list[Nest], either: bool = False) -> list[Nest] | None:
    """The nests of one kernel that runs `first`, then `second`; None if that is illegal or does not
    pay. either: pointwise ones may take the axes of `second`, too."""
    space, rows = first[0].space, (_has_rows(first), _has_rows(second))
    if rows == (False, True):
        space = second[0].space
    made = _fused(first, second, space)
    if made is None and either and not any(rows) and second[0].space != space:
        made = _fused(first, second, second[0].space)
    return made


def _fused_across(first: list[Nest], second: list[Nest], cached: bool) -> list[Nest] | None:
    """`fuse_nests` where a pointwise nest takes axes before its last one inside, to join what is
    folded over these: across rows, or over so few points that it is no loop any more. cached: what
    is the same for all rows comes from a cache."""
    outer = min(first[0].space, second[0].space, key=lambda space: hint(prod(space)))
    lone = first if first[0].space != outer else second
    if len(lone) > 1 or lone[0].space == outer or any(map(has_positions, (*first, *second))):
        return None
    for turned in turned_inside(lone[0], outer):
        before, after = ([turned], second) if lone is first else (first, [turned])
        gains = _gains_across(turned, second if lone is first else first, cached)
        made = _fused(before, after, outer) if gains else None
        if made is not None:
            return made
    return None


def _fold_columns(first: list[Nest], second: list[Nest]) -> bool:
    """Whether folds are of columns that one program of a GPU holds while it uses them."""
    folds = [nest for nest in (*first, *second) if nest.is_reduction]
    lengths = [prod(nest.inner) for nest in folds]
    held = all(is_known(length) and 1 < length <= LONGEST_HELD for length in lengths)
    return bool(folds) and held and clearly_across(folds)


def _gains_across(turned: Nest, others: list[Nest], cached: bool) -> bool:
    """Whether all that the nest reads along the axes inside is read by the others, too: short
    pieces of rows take longer to come from memory."""
    known = {buffer for nest in others for buffer in nest.reads | nest.writes}
    inside = {*turned.axes[len(turned.space) :]}
    along = {
        load.buffer
        for load in turned.loads
        if inside & axes_of(load) and not (cached and inside >= axes_of(load))
    }
    return along <= known and not goes_along(turned)


def _runs_in_vectors(nests: Sequence[Nest]) -> bool:
    """Whether the loops inside run across rows, or are written out."""
    folds = [nest for nest in nests if nest.is_reduction]
    if any(map(goes_along, nests)) or folds:
        return clearly_across(folds)
    group = Group("across", nests[0].space, tuple(nests))
    return without_short_axes(group) is not group


def _fused(first: list[Nest], second: list[Nest], space: tuple[Size, ...]) -> list[Nest] | None:
    if any(nest.multiplies for nest in first):
        second = [following(nest, first) for nest in second]
    aligned = [align(nest, space) for nest in (*first, *second)]
    made = [nest for nest in aligned if nest is not None]
    if len(made) < len(aligned) or not _pays(space, made):
        return None
    before, after = made[: len(first)], made[len(first) :]
    products = sum(nest.multiplies for nest in made)
    if products > 1 or (products and sum(bool(nest.inner) for nest in made) > 1):
        return None
    if _has_rows(made):
        if not _share_rows(before, after):
            return None
    elif any(
        map(gains_divisions, (*first, *second), made)
    ):  # at every element, in the innermost loop
        return None
    if any(map(scatters, made)) or len({part_height((nest,)) for nest in made} - {None}) > 1:
        return None
    return made if all(_row_local(one, two) for one in before for two in after) else None


def _turns(nests: Sequence[Nest], across: bool) -> bool:
    """Whether folds would run across rows, but for others or loops along these beside them."""
    along = any(
        goes_along(nest) if across else nest.inner and not nest.is_reduction for nest in nests
    )
    folds = [nest for nest in nests if nest.is_reduction]
    return goes_both_ways(folds) or (along and clearly_across(folds))


def _has_rows(nests: Iterable[Nest]) -> bool:
    return any(nest.is_reduction or nest.inner for nest in nests)


def _share_rows(before: list[Nest], after: list[Nest]) -> bool:
    """Whether some memory is touched by both, at each point of space the same part of it."""
    steps = set[object]().union(*(nest.steps for nest in before))
    return any(not steps.isdisjoint(nest.steps) for nest in after)


def _pays(space: tuple[Size, ...], nests: list[Nest]) -> bool:
    """Rows are worth sharing when there are enough of them to spread, or so little work that it
    does not matter."""
    widest, rows = max(hint(prod(nest.inner)) for nest in nests), hint(prod(space))
    return widest <= 1 or rows >= LEAST_ROWS or rows * widest <= SMALL


def _row_local(first: Nest, second: Nest) -> bool:
    """Whether whatever `second` reads of `first`'s results was stored at the same point of
    space, and what it overwrites was read there."""
    if not (first.writes & (second.reads | second.writes) or second.writes & first.reads):
        return True
    for store in first.stores:
        for load in nest_loads(second):
            if load.buffer is store.buffer and not _same_row(store, load, first, second):
                return False
        if not all(is_disjoint(store, other) for other in second.stores):
            return False
    return all(
        _same_row(store, load, second, first)
        for store in second.stores
        for load in nest_loads(first)
        if load.buffer is store.buffer
    )


def _same_row(store: Store, load: Load, first: Nest, second: Nest) -> bool:
    if load.mask is not None:
        return False
    outer = first.axes[: len(first.space)]
    if store.index is load.index and first.axes == second.axes:
        return True
    steps = [(sizes.coefficient(store.index, a), a) for a in outer if a.size not in (0, 1)]
    if any(sizes.coefficient(load.index, a) != step or not at_least(step, 1) for step, a in steps):
        return False
    least = min((step for step, _ in steps), key=hint, default=1 << 62)
    return sizes.mixed_radix(steps) and all(
        _fits(index, set(outer), least) for index in (store.index, load.index)
    )


def _fits(index: Index, outer: set[Axis], step: Size) -> bool:
    """Whether the part of the index without the outer axes, which appear as terms alone, lies in
    [0, step)."""
    rest = Index(tuple((a, f) for a, f in index.terms if a not in outer), index.offset)
    if any(isinstance(atom, Axis) and atom in outer for atom in atoms(rest)):
        return False
    return sizes.nonnegative(rest) and sizes.within(rest, step)


def _locals_found(unit: Unit) -> Unit:
    """Buffers that only one kernel touches, with one value a point of space, become local: they
    need no memory."""
    users: dict[Buffer, set[int]] = {}
    for place, item in enumerate(unit.items):
        for buffer in _touched(item):
            users.setdefault(buffer, set()).add(place)
    pinned = unit.outputs_buffers() | unit.extern_buffers() | unit.given_buffers()
    items = [
        _localise(item, {b for b in _touched(item) if len(users[b]) == 1 and b not in pinned})
        if isinstance(item, Group)
        else item
        for item in unit.items
    ]
    return unit.replace(items=tuple(items))


def _touched(item: Item) -> set[Buffer]:
    if isinstance(item, ExternCall):
        return {*item.reads(), *item.writes()}
    nests: tuple[Nest, ...] = (item,) if isinstance(item, Nest) else item.nests
    return {x.buffer for nest in nests for x in accesses(nest)}


def _localise(group: Group, private: set[Buffer]) -> Group:
    from_space: dict[Buffer, Index] = {}
    for nest in group.nests:
        for store in nest.stores:
            at_point = not _uses_inner(nest, store.index) and (nest.is_reduction or not nest.inner)
            if store.buffer in private and at_point and store.buffer not in from_space:
                from_space[store.buffer] = store.index
            else:
                private.discard(store.buffer)
    for nest in group.nests:
        for load in nest_loads(nest):
            if from_space.get(load.buffer) is not load.index or load.mask is not None:
                private.discard(load.buffer)
    chosen = {b: Buffer(b.name, b.dtype, 1, "local") for b in private if b in from_space}
    return replace_buffers(group, chosen) if chosen else group


def _uses_inner(nest: Nest, index: Index) -> bool:
    inner = set(nest.axes[len(nest.space) :])
    return any(atom in inner for atom in atoms(index))


class _Localiser(ValueRewriter):
    def __init__(self, chosen: dict[Buffer, Buffer]) -> None:
        super().__init__()
        self.chosen = chosen

    def leave(self, value: Value) -> Value:
        if isinstance(value, Load) and value.buffer in self.chosen:
            return Load(self.chosen[value.buffer], sizes.ZERO)
        return value


def replace_buffers(group: Group, chosen: dict[Buffer, Buffer]) -> Group:
    rewriter = _Localiser(chosen)
    nests = []
    for nest in group.nests:
        stores = tuple(
            Store(
                chosen.get(s.buffer, s.buffer),
                sizes.ZERO if s.buffer in chosen else rewriter.index(s.index),
                rewriter(s.value),
                s.combine,
            )
            for s in nest.stores
        )
        nests.append(Nest(nest.space, nest.inner, stores, nest.origins))
    return Group(group.name, group.space, tuple(nests))
