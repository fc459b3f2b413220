"""Groups with too few rows to fill a GPU: cut into kernels (fission), and reductions cut into two
nests (split).

Both are rewrites of the IR; what passes between the kernels lies in scratch buffers.
"""

from __future__ import annotations

import dataclasses
from math import prod

import torch

from ...loops import sizes
from ...loops.axes import merge
from ...loops.ir import (
    EXPONENTIALS,
    SQUARES,
    AxisRewriter,
    Buffer,
    Const,
    Group,
    IndexValue,
    Indirect,
    Load,
    Nest,
    Op,
    Reduced,
    Select,
    Store,
    Value,
    ValueRewriter,
    accesses,
    group_variables,
    part_height,
    walk,
)
from ...loops.sizes import Atom, Axis, Index
from ..triton_pointwise import sides
from .triton_axes import absorb_inner, split_space
from .triton_one_pass import BASES, base_of, one_pass
from .triton_ops import identity
from .triton_tile import COLUMNS, LOOPED, PERSISTENT, Device, folds_columns, pow2

LEAST_SPLIT = 1 << 16  # elements below which nothing is
FEWEST = 256  # elements of a column up to which it is not
MIN_SPLIT_ELEMENTS = 32  # elements of a part of it
PIECE = 64  # bytes side by side in memory that are worth fetching together
MAX_COLUMN_PARTS = 512  # parts of columns: another kernel goes through them


@dataclasses.dataclass(frozen=True)
class Pieces:
    """Groups to run in order, and the scratch buffers that they share."""

    groups: tuple[Group, ...]
    scratch: tuple[Buffer, ...] = ()


def cut(group: Group, device: Device) -> Pieces:
    """The group as it is, or in pieces when its rows alone would leave most of the device idle."""
    if part_height(group.nests) is not None:
        fits = max(prod(nest.inner) for nest in group.nests) <= PERSISTENT
        return Pieces((group,)) if fits else fission(group)
    if group_variables(group):
        return Pieces((one_pass(group, (EXPONENTIALS,)),))
    if 0 in group.space or any(nest.multiplies for nest in group.nests):
        return Pieces((group,))
    group = one_pass(group, _kinds(group, device))
    if not any(_splits(nest, device) for nest in group.nests) and not _ends_in_pieces(group):
        return Pieces((group,))
    pieces = fission(group)
    groups: list[Group] = []
    scratch = list(pieces.scratch)
    for piece in pieces.groups:
        count = _splits(piece.nests[0], device)
        made = split(piece, count) if count else Pieces((piece,))
        groups += made.groups
        scratch += made.scratch
    return Pieces(tuple(groups), tuple(scratch))


def _kinds(group: Group, device: Device) -> tuple[str, ...]:
    """The pairs of reductions that are worth joining: rows held in registers are read once anyway.
    What parts of unequal length give of `SQUARES` is not put together."""
    lengths = [prod(nest.inner) for nest in group.nests]
    nest = group.nests[lengths.index(max(lengths))]
    count = _splits(nest, device)
    if count > 1:
        length = prod(_folded(nest))
        chunk, parts = _chunks(length, count, _unit(_by_columns(nest)))
        return (SQUARES, EXPONENTIALS) if chunk * parts == length else (EXPONENTIALS,)
    return (SQUARES, EXPONENTIALS) if max(lengths) > PERSISTENT else ()


def _ends_in_pieces(group: Group) -> bool:
    """Whether long rows are folded as they lie in memory, and the loop that uses the folds has to
    store them in another order, which a kernel of its own does in tiles."""
    last = group.nests[-1]
    if not last.inner or last.is_reduction or prod(last.inner) <= PERSISTENT:
        return False
    alone = absorb_inner(Group(group.name, group.space, (last,)))
    return len(group.nests) > 1 and not alone.nests[0].inner and sides(alone)[1] is not None


def _unit(columns: bool) -> int:
    return 32 if columns else LOOPED


def _neighbours(nest: Nest) -> tuple[int, ...]:
    """The last inner axis, if it is a short run in memory that goes on along the space, as groups
    of channels that lie last: each of its points is a column, and they are folded in the end."""
    divided = split_space(Group("fold", nest.space, (nest,))).nests[0]
    loads = [load for load in divided.loads if load.buffer.scope == "global"]
    places = any(
        value.kind.startswith("arg") for value in nest.values if isinstance(value, Reduced)
    )
    if places or not loads or not nest.is_reduction or len(nest.inner) < 2:
        return ()
    largest, last = max(loads, key=lambda load: load.buffer.size), divided.axes[-1]
    steps = [sizes.coefficient(largest.index, axis) for axis in divided.axes]
    short = last.size * largest.dtype.itemsize < PIECE
    goes_on = last.size in steps[: len(divided.space)]
    return (last.size,) if steps[-1] == 1 and short and goes_on else ()


def _folded(nest: Nest) -> tuple[int, ...]:
    """The inner axes without one of columns that lie side by side."""
    return nest.inner[: len(nest.inner) - len(_neighbours(nest))]


def _by_columns(nest: Nest) -> bool:
    return bool(_neighbours(nest)) or folds_columns(nest)


def _splits(nest: Nest, device: Device) -> int:
    """Into how many parts the inner axes of a nest should be cut; 0: leave them whole."""
    beside, columns = _neighbours(nest), _by_columns(nest)
    rows, length = prod((*nest.space, *beside)), prod(_folded(nest))
    programs = -(-rows // COLUMNS) if columns else rows
    least = FEWEST if columns else PERSISTENT
    if length <= least or rows * length < LEAST_SPLIT:
        return 0
    if programs >= 2 * device.multiprocessors:
        return 2 if beside else 0
    if not nest.is_reduction:
        return 1
    longest = min(length // MIN_SPLIT_ELEMENTS, MAX_COLUMN_PARTS) if columns else length // LOOPED
    share = 12 if columns else 16  # of 4,096 columns 16 parts took 47.6 µs on an H200, 32 took 49.1
    return max(2, min(pow2(share * device.multiprocessors // programs) // 2, longest))


# ---- fission


def fission(group: Group) -> Pieces:
    """One group for each nest with inner axes; nests without stay with the one before them."""
    parts: list[list[Nest]] = []
    for nest in group.nests:
        if nest.inner or not parts:
            parts.append([nest])
        else:
            parts[-1].append(nest)
    rows = prod(group.space)
    places = {
        buffer: Buffer(f"{group.name}_{buffer.name}", buffer.dtype, rows)
        for buffer in _shared_locals(parts)
    }
    rewriter = _Globaliser(places, _row(group.space))
    groups = tuple(
        Group(f"{group.name}_{k}", group.space, tuple(map(rewriter.nest, part)))
        for k, part in enumerate(parts)
    )
    return Pieces(groups, tuple(places.values()))


def _row(space: tuple[int, ...]) -> Index:
    return sizes.linear(sizes.make_axes(space), sizes.contiguous_strides(space))


def _shared_locals(parts: list[list[Nest]]) -> list[Buffer]:
    users: dict[Buffer, set[int]] = {}
    for k, part in enumerate(parts):
        for nest in part:
            for buffer in [access.buffer for access in accesses(nest)]:
                if buffer.scope == "local":
                    users.setdefault(buffer, set()).add(k)
    return [buffer for buffer, where in users.items() if len(where) > 1]


class _Globaliser(ValueRewriter):
    """Locals that several kernels use, moved to memory."""

    def __init__(self, places: dict[Buffer, Buffer], row: Index) -> None:
        super().__init__()
        self.places, self.row = places, row

    def leave(self, value: Value) -> Value:
        if isinstance(value, Load) and value.buffer in self.places:
            return Load(self.places[value.buffer], self.row)
        return value

    def nest(self, nest: Nest) -> Nest:
        return Nest(
            nest.space, nest.inner, tuple(self.store(store) for store in nest.stores), nest.origins
        )

    def store(self, store: Store) -> Store:
        moved = store.buffer in self.places
        index = self.row if moved else self.index(store.index)
        return Store(
            self.places.get(store.buffer, store.buffer), index, self(store.value), store.combine
        )


# ---- split reductions


def split(group: Group, count: int) -> Pieces:
    """The reduction that opens the group, cut into `count` parts a row: one kernel for partial
    results, one that folds them."""
    first = group.nests[0]
    if count < 2 or not first.is_reduction:
        return Pieces((group,))
    cutter = _Split(group, count)
    partial = cutter.partials()
    rest = Group(f"{group.name}_fold", group.space, (*cutter.folded(), *group.nests[1:]))
    return Pieces((partial, rest), tuple(cutter.buffers.values()))


class _Split:
    def __init__(self, group: Group, count: int) -> None:
        self.group, self.nest = group, group.nests[0]
        self.columns, self.beside = _by_columns(self.nest), _neighbours(self.nest)
        self.length = prod(_folded(self.nest))
        self.chunk, self.count = _chunks(self.length, count, _unit(self.columns))
        self.rows = prod((*group.space, *self.beside))
        # Columns lie side by side in the partial results, rows' parts lie together.
        rows = (*group.space, *self.beside)
        self.space = (self.count, *rows) if self.columns else (*rows, self.count)
        self.reduced = [
            v for v in walk(*(s.value for s in self.nest.stores)) if isinstance(v, Reduced)
        ]
        self.buffers: dict[tuple[Reduced, str], Buffer] = {}

    def _buffer(self, value: Reduced, part: str, dtype: torch.dtype) -> Buffer:
        key = (value, part)
        if key not in self.buffers:
            self.buffers[key] = Buffer(
                f"{self.group.name}_{part}{len(self.buffers)}", dtype, self.rows * self.count
            )
        return self.buffers[key]

    def _base_buffer(self, value: Reduced) -> Buffer:
        """Of each part's sum, or maximum, beside what stands in `triton_one_pass.BASES`."""
        return self._buffer(base_of(value), "part", value.dtype)

    # -- first kernel

    def partial(self) -> Nest:
        shift = 1 if self.columns else 0
        part = Axis(0 if self.columns else len(self.group.space), self.count)
        within = Axis(len(self.space), self.chunk)
        position = sizes.add(sizes.atom_index(part, self.chunk), sizes.atom_index(within))
        folded, rows = _folded(self.nest), self.nest.axes[: len(self.group.space)]
        last = self.nest.axes[len(rows) + len(folded) :]
        places = sizes.delinear(position, folded)
        where: dict[Atom, Index] = dict(zip(self.nest.axes[len(rows) :], places, strict=False))
        for number, axis in enumerate((*rows, *last), shift):
            where[axis] = sizes.atom_index(Axis(number, axis.size))
        move, inside = AxisRewriter(lambda axis: where[axis]), self._inside(position)
        stores = [
            store
            for value in self.reduced
            for store in self._partials(
                value, move(value.value), sizes.atom_index(part, self.chunk), inside
            )
        ]
        unique = tuple({store.buffer: store for store in stores}.values())
        return Nest(self.space, (self.chunk,), unique, self.nest.origins)

    def partials(self) -> Group:
        """The first kernel; columns that a row has of its own join those of its neighbours."""
        made = Group(f"{self.group.name}_part", self.space, (self.partial(),))
        if not self.beside:
            return made
        nest = merge(split_space(made).nests[0])
        return Group(made.name, nest.space, (nest,))

    def _inside(self, position: Index) -> Value | None:
        if self.chunk * self.count == self.length:
            return None
        return Op("lt", (IndexValue(position), Const(self.length, torch.int64)), torch.bool)

    def _partials(
        self, old: Reduced, value: Value, start: Index, inside: Value | None
    ) -> list[Store]:
        at = _row(self.space)
        if inside is not None:
            neutral = Const(identity(old.kind, value.dtype), value.dtype)
            value = Select(inside, _Masker(inside)(value), neutral)
        if not old.kind.startswith("arg"):
            kinds = {self._buffer(old, "part", value.dtype): old.kind}
            if old.kind in BASES:
                kinds[self._base_buffer(old)] = BASES[old.kind]
            return [
                Store(buffer, at, Reduced(kind, value, value.dtype))
                for buffer, kind in kinds.items()
            ]
        best = Store(
            self._buffer(old, "best", value.dtype), at, Reduced(old.kind[3:], value, value.dtype)
        )
        place = Op("add", (Reduced(old.kind, value, torch.int64), IndexValue(start)), torch.int64)
        return [best, Store(self._buffer(old, "place", torch.int64), at, place)]

    # -- second kernel

    def folded(self) -> tuple[Nest, ...]:
        nest, inner = self.nest, (self.count, *self.beside)
        part, *beside = sizes.make_axes((*self.group.space, *inner))[len(self.group.space) :]
        at = self._at(sizes.atom_index(part), tuple(beside))
        bases = tuple(self._base(value, at) for value in self.reduced if value.kind in BASES)
        swap = _Swap({value: self._fold(value, at) for value in self.reduced})
        stores = tuple(Store(s.buffer, s.index, swap(s.value), s.combine) for s in nest.stores)
        first = (Nest(nest.space, inner, bases, nest.origins),) if bases else ()
        return *first, Nest(nest.space, inner, stores, nest.origins)

    def _base(self, value: Reduced, at: Index) -> Store:
        """The mean, or the maximum, of the whole row."""
        kind, local = BASES[value.kind], self._local(value)
        base: Value = Reduced(kind, Load(self._base_buffer(value), at), value.dtype)
        if kind == "sum":
            base = Op("div", (base, Const(float(prod(self.nest.inner)), value.dtype)), value.dtype)
        return Store(local, sizes.ZERO, base)

    def _local(self, value: Reduced) -> Buffer:
        return Buffer(f"{self._base_buffer(value).name}_all", value.dtype, 1, "local")

    def _joined(self, value: Reduced, at: Index) -> Value:
        """Chan's formula, or exponentials below one maximum."""
        dtype = value.dtype
        part, base, all_ = (
            Load(self._buffer(value, "part", dtype), at),
            Load(self._base_buffer(value), at),
            Load(self._local(value), sizes.ZERO),
        )
        if value.kind == EXPONENTIALS:
            below = Op("exp", (Op("sub", (base, all_), dtype),), dtype)
            return Reduced("sum", Op("mul", (part, below), dtype), dtype)
        count = Const(float(self.chunk), dtype)
        apart = Op("sub", (Op("div", (base, count), dtype), all_), dtype)
        more = Op("mul", (count, Op("mul", (apart, apart), dtype)), dtype)
        return Reduced("sum", Op("add", (part, more), dtype), dtype)

    def _at(self, part: Index, beside: tuple[Axis, ...] = ()) -> Index:
        axes = (*sizes.make_axes(self.group.space), *beside)
        row = sizes.linear(axes, sizes.contiguous_strides((*self.group.space, *self.beside)))
        across = (part, row) if self.columns else (row, part)
        return sizes.add(
            sizes.scale(across[0], self.rows if self.columns else self.count), across[1]
        )

    def _fold(self, value: Reduced, at: Index) -> Value:
        dtype = value.value.dtype
        if value.kind in BASES:
            return self._joined(value, at)
        if not value.kind.startswith("arg"):
            return Reduced(value.kind, Load(self._buffer(value, "part", dtype), at), dtype)
        winner = Reduced(value.kind, Load(self._buffer(value, "best", dtype), at), torch.int64)
        where = self._at(sizes.atom_index(Indirect(winner, self.count)))
        return Load(self._buffer(value, "place", torch.int64), where)


def _chunks(length: int, count: int, unit: int) -> tuple[int, int]:
    """(elements a part, parts): parts that divide the length if some near `count` do, else a
    multiple of `unit`."""
    for parts in range(count, count // 2, -1):
        if length % parts == 0:
            return length // parts, parts
    units = -(-length // unit)
    chunk = -(-units // count) * unit
    return chunk, -(-length // chunk)


class _Masker(ValueRewriter):
    """Every load in memory guarded by `inside` as well, unless it is of a place that the buffer has
    in any case: with no mask of the row's parts, a loop over them may make it once, ahead."""

    def __init__(self, inside: Value) -> None:
        super().__init__()
        self.inside = inside

    def leave(self, value: Value) -> Value:
        if not isinstance(value, Load) or value.buffer.scope == "local":
            return value
        if sizes.nonnegative(value.index) and sizes.within(value.index, value.buffer.size):
            return value
        mask = (
            self.inside if value.mask is None else Op("and", (value.mask, self.inside), torch.bool)
        )
        return Load(value.buffer, value.index, mask)


class _Swap(ValueRewriter):
    """Reductions replaced by what the second kernel computes."""

    def __init__(self, results: dict[Reduced, Value]) -> None:
        super().__init__()
        self.results = results

    def __call__(self, value: Value) -> Value:
        return self.results[value] if isinstance(value, Reduced) else super().__call__(value)
