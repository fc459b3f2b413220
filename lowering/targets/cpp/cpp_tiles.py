"""Kernels whose accesses run along different axes: blocks of two axes, in which whatever lies
across is first turned into a short array on the stack (`templates/tiles.h`). Pointwise kernels, and
those that fold short rows: vectors take one element of each row there."""

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from math import prod
from typing import NamedTuple

import torch

from ...loops import sizes
from ...loops.axes import axes_of, divisor_of, split_axis
from ...loops.fuse_passes import without_locals
from ...loops.inline import cost
from ...loops.ir import (
    Group,
    Indirect,
    Load,
    Nest,
    Op,
    Store,
    accesses,
    atoms,
    nest_loads,
    store_values,
)
from ...loops.polynomials import Size, at_least, hint, is_known
from ...loops.short_axes import FEWEST_ROWS, INTERLEAVED, last_inside
from ...loops.sizes import Axis, FloorDiv, Index, Mod
from ...loops.vector_axis import LEAST_ROWS
from .cpp_expr import Lines
from .cpp_nest import TILE
from .cpp_ops import element_type, library_calls
from .cpp_rows import LINE

MIN_TILE_ELEMENTS = 8  # elements of an axis below which a block is not worth it
# elements of a block along the axis that is turned, and along the last one; the same where the
# last axis has no more than the latter
ACROSS, ALONG = 64, 256
ACROSS_SHORT, SHORT = 128, 64
VECTOR = 16  # elements
CONVERTED = 64  # elements along the last axis of what `cpp_halves` converts, call by call
MAX_TILE_BYTES = 1 << 16  # bytes of the arrays of one kernel
# elements up to which rows are turned: where some are turned back, and where all that is made are
# folds, of what takes long or does not
STORED_ROW, COSTLY_ROW, CHEAP_ROW = 2 * VECTOR, 4 * VECTOR, 24
COSTLY_INSTRUCTIONS_A_POINT = 16  # instructions
SHORTEST_ROW = 5
LEAST_FILLED = 10  # floats that are worth a vector of `VECTOR`
MOST_TURNED = 4  # arrays of longer rows than a vector, with conversions
SHARED = 1 << 14  # elements from which there should be blocks of rows for several threads
Turned = Mapping[Load, Size] | Mapping[Store, Size]  # and the steps between their rows


@dataclasses.dataclass(frozen=True)
class Tiles:
    """Blocks over axis `across` and the last axis `along`, made of tiles of `VECTOR` and `columns`
    elements along them, which stay in registers where little is computed of them. loads, stores:
    with the steps between elements that neighbour along the last axis."""

    across: Axis
    along: Axis
    columns: int
    loads: dict[Load, Size]
    stores: dict[Store, Size]

    @property
    def turned(self) -> tuple[Load | Store, ...]:
        return *self.loads, *self.stores

    @property
    def is_short(self) -> bool:
        return hint(self.along.size) <= SHORT

    @property
    def block(self) -> dict[Axis, int]:
        """Elements of a block, by its loops, the outer one first: whole lines of memory are read
        where what is written lies together in any case, else long rows are written."""
        if self.is_short:
            return {self.along: SHORT, self.across: ACROSS_SHORT}
        return {self.across: ACROSS, self.along: ALONG}

    @property
    def tile(self) -> dict[Axis, int]:
        return {self.across: VECTOR, self.along: self.columns}

    def is_whole(self, axis: Axis) -> bool:
        """Whether tiles cover the axis without a rest."""
        return is_known(axis.size) and axis.size % self.tile[axis] == 0


def find_tiles(group: Group) -> Tiles | None:
    """What a pointwise group has to turn; None if nothing, or if it does not pay."""
    axes = group.nests[0].axes
    along = axes[-1]
    if len(axes) < 2 or hint(along.size) < MIN_TILE_ELEMENTS:
        return None
    crossing = Counter(axis for x in _accesses(group) for axis in _crossed(x.index, axes, along))
    if not crossing:
        return None
    across = max(crossing, key=lambda axis: (crossing[axis], axis.number))
    stored = {store.buffer for nest in group.nests for store in nest.stores}
    loaded = {load.buffer for nest in group.nests for load in nest_loads(nest)}
    loads = {
        x: sizes.coefficient(x.index, along)
        for x in _accesses(group)
        if isinstance(x, Load)
        and x.buffer not in stored
        and across in _crossed(x.index, axes, along)
    }
    stores = {
        x: sizes.coefficient(x.index, along)
        for x in _accesses(group)
        if isinstance(x, Store)
        and x.buffer not in loaded
        and across in _crossed(x.index, axes, along)
    }
    tiles = Tiles(across, along, _columns(group, (*loads, *stores)), loads, stores)
    bytes_ = sum(VECTOR * tiles.columns * x.buffer.dtype.itemsize for x in tiles.turned)
    return tiles if tiles.turned and bytes_ <= MAX_TILE_BYTES else None


def _columns(group: Group, turned: Sequence[Load | Store]) -> int:
    """Elements of a tile along the last axis: whole lines of what is turned."""
    if any(x.buffer.dtype == torch.float16 for nest in group.nests for x in accesses(nest)):
        return CONVERTED
    return max([VECTOR, *(LINE // x.buffer.dtype.itemsize for x in turned)])


def _accesses(group: Group) -> Iterator[Load | Store]:
    for nest in group.nests:
        for load in nest_loads(nest):
            if load.mask is None and load.buffer.scope == "global":
                yield load
        for store in nest.stores:
            if store.combine is None and store.buffer.scope == "global":
                yield store


def _crossed(index: Index, axes: tuple[Axis, ...], along: Axis) -> list[Axis]:
    """Axes along which neighbours are neighbours in memory, while they are not along the last."""
    step = sizes.coefficient(index, along)
    below = list(atoms(index))
    inside = {a for atom in below if isinstance(atom, FloorDiv | Mod) for a in atoms(atom.base)}
    if (
        hint(step) < MIN_TILE_ELEMENTS
        or along in inside
        or any(isinstance(a, Indirect) for a in below)
    ):
        return []
    return [
        axis
        for axis in axes[:-1]
        if hint(axis.size) >= MIN_TILE_ELEMENTS
        and sizes.coefficient(index, axis) == 1
        and axis not in inside
    ]


class TileBody(NamedTuple):
    """What the loops of a tile are around. place: prints an index; simd: the pragma of the
    vector loop; point: one element."""

    place: Callable[[Index], str]
    simd: Callable[[], None]
    point: Callable[[], None]


class TilePrinter:
    """The loops over the tiles of a block."""

    def __init__(self, lines: Lines, tiles: Tiles) -> None:
        self.lines, self.tiles = lines, tiles
        self.arrays = {x: f"tile{number}" for number, x in enumerate(tiles.turned)}

    def element(self, access: Load | Store) -> str:
        """The access as an element of its array."""
        across, along = self.tiles.across.text, self.tiles.along.text
        return f"{self.arrays[access]}[k_{across} * {self.tiles.columns} + k_{along}]"

    def open(self, axis: Axis) -> None:
        start, step = f"from_{axis.text}", self.tiles.block[axis]
        self.lines.open(f"for (int64_t {start} = 0; {start} < {axis.size}; {start} += {step})")

    def print(self, body: TileBody) -> None:
        """All tiles of a block: whole ones and, where such can be, those at an end."""
        tile = self.tiles.tile
        for axis, size in self.tiles.block.items():
            end, most = f"from_{axis.text} + {size}", axis.size
            self.lines.add(f"const int64_t to_{axis.text} = {end} < {most} ? {end} : {most};")
        for axis in self.tiles.block:
            at, name = f"at_{axis.text}", axis.text
            step = f"{at} += {tile[axis]}"
            self.lines.open(f"for (int64_t {at} = from_{name}; {at} < to_{name}; {step})")
        partial = [axis for axis in tile if not self.tiles.is_whole(axis)]
        if partial:
            fits = (f"at_{axis.text} + {tile[axis]} <= to_{axis.text}" for axis in partial)
            self.lines.open(f"if ({' && '.join(fits)})")
        self._tile(body, {axis: f"{size}" for axis, size in tile.items()})
        if partial:
            self.lines.close()
            self.lines.open("else")
            for axis, size in tile.items():
                rest, name = f"to_{axis.text} - at_{axis.text}", f"count_{axis.text}"
                self.lines.add(f"const int64_t {name} = {rest} < {size} ? {rest} : {size};")
            self._tile(body, {axis: f"count_{axis.text}" for axis in tile}, whole=False)
            self.lines.close()
        self.lines.close(2)

    def _tile(self, body: TileBody, counts: Mapping[Axis, str], whole: bool = True) -> None:
        for x, array in self.arrays.items():
            size = f"{VECTOR * self.tiles.columns}] __attribute__((aligned(64)));"
            self.lines.add(f"{element_type(x.buffer)} {array}[{size}")
        turn = self._turn_whole if whole else self._turn_part
        turn(self.tiles.loads, body.place)
        for axis in (self.tiles.across, self.tiles.along):
            if axis is self.tiles.along:
                body.simd()
            k = f"k_{axis.text}"
            self.lines.open(f"for (int64_t {k} = 0; {k} < {counts[axis]}; ++{k})")
            self.lines.add(f"const int64_t {axis.text} = at_{axis.text} + {k};")
        body.point()
        self.lines.close(2)
        turn(self.tiles.stores, body.place)

    def _turn_whole(self, turned: Turned, place: Callable[[Index], str]) -> None:
        """Of a short axis, have what lies below on its way or, at its end, what lies beside it."""
        along, columns = self.tiles.along.text, self.tiles.columns
        for x, step, memory in self._starts(turned, place):
            kind, array = element_type(x.buffer), f"{self.arrays[x]}, {columns}"
            if isinstance(x, Store):
                self.lines.add(
                    f"op_transpose_tile<{kind}, {VECTOR}, {columns}>({memory}, {array});"
                )
                continue
            ahead = (
                f", at_{along} + {columns} < to_{along} ? {columns} * {step}"
                f" : {self.tiles.block[self.tiles.across]} - at_{along} * {step}"
            )
            short = self.tiles.is_short
            call = f"op_transpose_tile<{kind}, {columns}, {VECTOR}{', true' * short}>"
            self.lines.add(f"{call}({array}, {memory}{ahead * short});")
        if turned:
            self.lines.close()

    def _turn_part(self, turned: Turned, place: Callable[[Index], str]) -> None:
        rows, columns = f"count_{self.tiles.along.text}", f"count_{self.tiles.across.text}"
        for x, _, memory in self._starts(turned, place):
            array = f"{self.arrays[x]}, {self.tiles.columns}"
            ends = f"{array}, {memory}, {rows}, {columns}"
            if isinstance(x, Store):
                ends = f"{memory}, {array}, {columns}, {rows}"
            self.lines.add(f"op_transpose<{element_type(x.buffer)}>({ends});")
        if turned:
            self.lines.close()

    def _starts(
        self, turned: Turned, place: Callable[[Index], str]
    ) -> Iterator[tuple[Load | Store, Size, str]]:
        """Each access, the step between its rows, and both in memory, at a tile's first element."""
        if turned:
            names = [axis.text for axis in (self.tiles.across, self.tiles.along)]
            self.lines.open("")
            self.lines.add(f"const int64_t {', '.join(f'{n} = at_{n}' for n in names)};")
        for x, step in turned.items():
            yield x, step, f"{x.buffer.name} + {place(x.index)}, {step}"


# short rows


@dataclasses.dataclass(frozen=True)
class RowTiles:
    """Blocks of `TILE` rows along axis `rows`, of all elements along axis `inside`. stored: loads
    of what an earlier nest of the group stores."""

    rows: Axis
    inside: Axis
    loads: tuple[Load, ...]
    stores: tuple[Store, ...]
    stored: dict[Load, Store]


def find_row_tiles(group: Group) -> RowTiles | None:
    """What a group that folds short rows, which lie in memory one behind the other, has to turn."""
    nests = [nest for nest in group.nests if nest.inner]
    inner = {nest.inner for nest in nests}
    if len(inner) != 1 or len(nests[0].inner) != 1:
        return None
    rows, inside = nests[0].axes[len(group.space) - 1 :]
    if not is_known(inside.size) or not SHORTEST_ROW <= inside.size <= _longest(inside, nests):
        return None
    count = hint(prod(group.space))
    if hint(rows.size) < FEWEST_ROWS or SHARED < count * inside.size < LEAST_ROWS * inside.size:
        return None
    kinds = {x: _kind(x, rows, inside) for nest in nests for x in accesses(nest)}
    turned = [x for x, kind in kinds.items() if kind == "turned"]
    stores = tuple(x for x in turned if isinstance(x, Store))
    stored = _stored_before(nests, stores)
    loads = tuple(x for x in turned if isinstance(x, Load) and x not in stored)
    folded = [nest for nest in nests if any(load in loads for load in nest.loads)]
    narrow = any(load.dtype.itemsize < 4 for load in loads)
    whole = inside.size % VECTOR == 0 and inside.size > VECTOR and len(folded) < 2 and not narrow
    if "odd" in kinds.values() or not loads or whole:
        return None
    read = {load.buffer for nest in group.nests for load in nest.loads if load not in stored}
    written = {buffer for nest in group.nests for buffer in nest.writes}
    if read & {store.buffer for store in stores} or written & {load.buffer for load in loads}:
        return None  # a row is turned before all nests, or after them
    buffers = [*(x.buffer for x in loads), *(x.buffer for x in stores)]
    bytes_ = sum(buffer.dtype.itemsize for buffer in buffers) * inside.size * TILE
    return RowTiles(rows, inside, loads, stores, stored) if bytes_ <= MAX_TILE_BYTES else None


def with_short_rows(group: Group) -> Group | None:
    """A pointwise group with its last axis inside, or the part of it that indices divide it by,
    where that turns the rows along it."""
    if any(nest.inner or nest.is_reduction for nest in group.nests) or not group.space:
        return None
    nests, last = without_locals(group.nests), group.nests[0].axes[-1]
    if not nests:  # all is local, or something stays in its place
        return None
    divisor = divisor_of(nests, last, SHORTEST_ROW)
    if divisor is not None:
        nests = tuple(split_axis(nest, last, divisor) for nest in nests)
    short = nests[0].space[-1]
    if short in INTERLEAVED or not (hint(short) < VECTOR or any(map(_suffers_along, nests))):
        return None
    nests = tuple(map(last_inside, nests))
    inside, rows = Group(group.name, nests[0].space, nests), nests[0].axes[-2:-1]
    gathers = any(_hidden(x.index) & {*rows} for nest in nests for x in accesses(nest))
    tiles = find_row_tiles(inside) if rows and not gathers else None
    return inside if tiles is not None and not _fills_vectors(tiles, nests) else None


def _fills_vectors(tiles: RowTiles, nests: Sequence[Nest]) -> bool:
    """Whether vectors along the rows, the last under a mask, take less than to turn the rows: those
    that hold enough, of functions that exist under a mask."""
    count, turned = hint(tiles.inside.size), len(tiles.loads) + len(tiles.stores)
    kinds = {x.buffer.dtype for nest in nests for x in accesses(nest)}
    calls = (
        library_calls(value.name, value.args[0].dtype)
        for nest in nests
        for value in store_values(nest)
        if isinstance(value, Op)
    )
    if not kinds <= {torch.float32, torch.bfloat16} or count < LEAST_FILLED or any(calls):
        return False
    whole, many = count % VECTOR == 0, turned > MOST_TURNED
    if kinds == {torch.float32}:
        return many or not whole
    costly = any(cost(nest) >= COSTLY_INSTRUCTIONS_A_POINT for nest in nests)
    return count > VECTOR and (whole or many or not costly)


def _suffers_along(nest: Nest) -> bool:
    """Whether vectors along short rows would hold too little: of what is costly, or converted."""
    return cost(nest) >= COSTLY_INSTRUCTIONS_A_POINT or any(
        load.dtype.itemsize < 4 for load in nest.loads
    )


def _stored_before(nests: Sequence[Nest], stores: Sequence[Store]) -> dict[Load, Store]:
    """The loads that read, element by element, what one of the stores has written in an earlier
    nest: all loads of that buffer."""
    found = dict[Load, Store]()
    for store in stores:
        writers = [k for k, nest in enumerate(nests) if store.buffer in nest.writes]
        readers = [k for k, nest in enumerate(nests) if store.buffer in nest.reads]
        if len(writers) == 1 and all(writers[0] < k for k in readers):
            loads = (load for nest in nests for load in nest.loads if load.buffer is store.buffer)
            found |= {x: store for x in loads if x.index is store.index and x.mask is None}
    return found


def _longest(inside: Axis, nests: Sequence[Nest]) -> int:
    if inside.size % VECTOR == 0 or not all(nest.is_reduction for nest in nests):
        return STORED_ROW
    return COSTLY_ROW if max(map(cost, nests)) >= COSTLY_INSTRUCTIONS_A_POINT else CHEAP_ROW


def _kind(access: Load | Store, rows: Axis, inside: Axis) -> str:
    """'turned': one row behind the other; 'plain': what vectors across the rows take as it is, or
    once; 'odd': anything else."""
    index, hidden = access.index, _hidden(access.index)
    along, step = sizes.coefficient(index, inside), sizes.coefficient(index, rows)
    if access.buffer.scope == "local" or (along == 0 and inside not in hidden):
        return "plain"
    if {rows, inside} & hidden or (isinstance(access, Store) and access.combine is not None):
        return "odd"
    if step in (0, 1) and isinstance(access, Load):
        return "plain"
    masked = isinstance(access, Load) and access.mask is not None
    behind = is_known(step) and at_least(step, inside.size)
    return "turned" if along == 1 and behind and not masked else "odd"


def _hidden(index: Index) -> set[Axis]:
    """Axes inside of divisions and positions."""
    found = set[Axis]()
    for atom in atoms(index):
        if isinstance(atom, FloorDiv | Mod):
            found |= {part for part in atoms(atom.base) if isinstance(part, Axis)}
        elif isinstance(atom, Indirect):
            found |= axes_of(atom.value)
    return found


class RowTilePrinter:
    """What is turned before and after the loops over a block."""

    def __init__(self, lines: Lines, tiles: RowTiles) -> None:
        self.lines, self.tiles = lines, tiles
        self.turned: tuple[Load | Store, ...] = (*tiles.loads, *tiles.stores)
        self.arrays = {x: f"tile{number}" for number, x in enumerate(self.turned)}
        self.arrays |= {load: self.arrays[store] for load, store in tiles.stored.items()}

    def element(self, access: Load | Store) -> str:
        return f"{self.arrays[access]}[{self.tiles.inside.text} * {TILE} + t]"

    def declare(self) -> None:
        size = self.tiles.inside.size * TILE
        for x in self.turned:
            kind = element_type(x.buffer)
            self.lines.add(f"{kind} {self.arrays[x]}[{size}] __attribute__((aligned(64)));")

    def turn_in(self, index: Callable[[Index], str]) -> None:
        self._turn(self.tiles.loads, index)

    def turn_out(self, index: Callable[[Index], str]) -> None:
        self._turn(self.tiles.stores, index)

    def _turn(self, accesses: Sequence[Load | Store], index: Callable[[Index], str]) -> None:
        rows, inside = self.tiles.rows, self.tiles.inside
        if not accesses:
            return
        self.lines.open("")
        self.lines.add(f"const int64_t {rows.text} = base, {inside.text} = 0;")
        for x in accesses:
            array = f"{self.arrays[x]}, {TILE}"
            step = sizes.coefficient(x.index, rows)
            memory = f"{x.buffer.name} + {index(x.index)}, {step}"
            ends = f"{array}, {memory}, width, {inside.size}"
            if isinstance(x, Store):
                ends = f"{memory}, {array}, {inside.size}, width"
            self.lines.add(f"op_transpose<{element_type(x.buffer)}>({ends});")
        self.lines.close()
