"""What one Triton program of a group holds: flat axes, blocks, warps. Arithmetic on the IR; nothing
is printed here."""

from __future__ import annotations

import dataclasses
from math import prod

from ...loops import sizes
from ...loops.axes import axes_of
from ...loops.ir import (
    SQUARES,
    Group,
    IndexValue,
    Load,
    Nest,
    Reduced,
    group_variables,
    nest_loads,
    store_values,
)
from ...loops.polynomials import Size, divided, hint, is_known, variables
from ...loops.sizes import Axis, Index
from .triton_axes import (
    accesses,
    coordinates,
    flatten,
    reads_vectors,
    rewrite_nest,
    split_space,
    unit_axes,
)

PERSISTENT = 16384  # longest row held in registers, in elements of the padded tile
LOOPED = 2048  # elements of a row that one step of a loop takes
SHORT_ROW_ELEMENTS = 256  # and one for rows that may well be longer than in the recorded call
WINDOW = 16  # points of a window, such as of pooling
MOST_IN_TURN = (
    128  # and of one that is written out, where its rows are too short to be read as such
)
MAX_WINDOWS = 1 << 16  # windows
TURNED = 16  # rows a program, where an operand lies along the space
COLUMNS = 64  # side by side in a program that folds them
MANY_COLUMNS = 256  # where they are read in pieces that begin anywhere
MIN_BUSY_PROGRAMS = 128  # programs that leave much of a GPU idle
AT_ONCE = 1024  # elements of short rows that a program with partial sums takes together
LONGEST_TURNED = 1024  # elements of them that are held at once
# Of (rows, elements), where few warps do better: on an H200, maxima and sums over rows of 128, 256
# and 512 elements took 1.0 to 1.5 ms with four of them, and 0.5 with these; norms 1.3 and 0.55.
WARPS = {(8, 128): 1, (4, 256): 1, (2, 512): 2}
THREAD_ELEMENTS = 32  # of columns that are held whole, at least
INT32 = 2**31 - 1


@dataclasses.dataclass(frozen=True)
class Device:
    """What the heuristics know of a GPU. Defaults: H200."""

    multiprocessors: int = 132
    warp: int = 32


@dataclasses.dataclass(frozen=True)
class Dim:
    """A flat axis and how many of its points one program holds at once (1: the axis is a
    scalar)."""

    name: str
    axis: Axis
    block: int

    @property
    def programs(self) -> int:
        """How many programs, or turns of a loop, it takes in the recorded call."""
        return -(-hint(self.axis.size) // self.block)

    @property
    def count(self) -> str:
        """The same in the text of a kernel."""
        known = is_known(self.axis.size)
        return str(self.programs) if known else f"tl.cdiv({self.axis.size}, {self.block})"

    @property
    def grid(self) -> str:
        """The same in Python."""
        known = is_known(self.axis.size)
        return str(self.programs) if known else f"(-(-{self.axis.size} // {self.block}))"

    @property
    def several(self) -> bool:
        return self.programs > 1 or not is_known(self.axis.size)

    @property
    def exact(self) -> bool:
        return divided(self.axis.size, self.block) is not None


@dataclasses.dataclass(frozen=True)
class Tile:
    """Parallel dims (outermost first), the inner block of each nest (None: no inner axes), and
    launch parameters.

    `persistent`: an inner block covers its whole axis; otherwise the program loops over it.
    `height`: a program takes as many rows one after the other (0: those of its block, at once).
    `stages`: turns of a loop whose loads are under way at once (0: as the compiler likes).
    `across`: folds go across what lies side by side, so that lanes are along the space.
    `neighbours`: how many elements side by side a thread takes, at most (0: as the compiler likes).
    """

    dims: tuple[Dim, ...]
    inner: tuple[Dim | None, ...]
    nests: tuple[Nest, ...]
    persistent: bool
    warps: int
    wide: bool
    height: int = 0
    stages: int = 0
    across: bool = False
    neighbours: int = 0

    @property
    def grid(self) -> str:
        """How many programs it takes, in Python."""
        return " * ".join(dim.grid for dim in self.dims)

    @property
    def programs(self) -> int:
        if self.height:
            return -(-hint(self.dims[0].axis.size) // self.height)
        return prod(dim.programs for dim in self.dims)


def pow2(n: Size) -> int:
    """Smallest power of two that is at least n, in the recorded call."""
    return 1 << max(hint(n) - 1, 0).bit_length()


def _padded(size: Size) -> int:
    """A block for an axis that is not much longer; one that only a call knows may be."""
    return pow2(size) if is_known(size) else max(pow2(size), SHORT_ROW_ELEMENTS)


def length(nest: Nest) -> int:
    """Points of the inner axes; more than registers hold if only a call knows."""
    points = prod(nest.inner)
    return points if is_known(points) else max(hint(points), PERSISTENT + 1)


def needs_int64(group: Group) -> bool:
    """Whether an offset, a point or an index value of the group can pass 2**31 in the recorded
    call."""
    return max(map(hint, reach(group)), default=0) > INT32


def reach(group: Group) -> list[Size]:
    """The numbers that 32 bits have to hold, if they are to do; one too large for them in place of
    what cannot be told."""
    found: list[Size] = []
    for nest in group.nests:
        found += [prod(nest.space) * 2, prod(nest.inner) * 2]
        for buffer, index in accesses(nest):
            found += [buffer.size] if is_known(buffer.size) else _ends(index)
        for value in store_values(nest):
            if isinstance(value, IndexValue | Load):
                found += _ends(value.index)
    known = set(group_variables(group))
    return [n if known.issuperset(variables(n)) else INT32 + 1 for n in found]


def _ends(index: Index) -> list[Size]:
    ends = sizes.bounds(index)
    return [INT32 + 1] if None in ends else [*ends, *(-end for end in ends)]


# ---- choices


def row_tiles(group: Group, device: Device) -> list[Tile]:
    """Tiles for a group with inner axes: rows in registers where they fit, loops otherwise, columns
    side by side."""
    flat = tuple(flatten(nest) for nest in group.nests)
    x = Axis(0, prod(group.space))
    longest = max(map(length, flat))
    wide = needs_int64(group)
    if runs_along_space(flat):
        columns = _uneven_columns(group)
        if columns:
            return _staged(_column_tiles(group, columns, wide))
        shapes = _column_shapes(x.size, flat)
        if _are_windows(flat) and hint(x.size) >= MAX_WINDOWS:
            shapes = [(512, 1, 4), *shapes]
        tiles = [_flat_tile(x, shape, flat, wide) for shape in shapes]
        return _staged(list(map(_turned_across, tiles)))
    if _overlap(split_space(group)) and hint(x.size) >= MAX_WINDOWS:
        shapes = [(128, 1, 4), (256, 1, 4), *_row_shapes(x.size, longest, device)]
        return [_flat_tile(x, shape, flat, wide) for shape in shapes]
    for whole in (group, split_space(group)):
        column = _column_axis(whole)
        if column is not None:
            return _column_tiles(whole, (column,), wide)
    shapes, turned = [], list[Tile]()
    if _is_turned(flat) and hint(x.size) >= TURNED:
        turned.append(_turned_across(_flat_tile(x, _turned(longest), flat, wide)))
    if _is_two_passes(flat) and longest >= LOOPED:
        shapes.append(_two_passes(flat, longest))
    if not shapes and not turned and pow2(longest) > PERSISTENT:
        return _long_row_tiles(x, flat, wide)
    shapes += _row_shapes(x.size, longest, device)
    return _staged(turned + [_flat_tile(x, shape, flat, wide) for shape in shapes])


def _staged(tiles: list[Tile]) -> list[Tile]:
    """And the first ones with loops that load ahead: before the others where nothing is read
    twice, and all that is read comes in vectors."""
    ahead = [dataclasses.replace(tile, stages=3) for tile in tiles[:2] if not tile.persistent]
    once = sum(nest.inner != () for nest in tiles[0].nests) == 1
    return ahead + tiles if once and reads_vectors(tiles[0].nests) else tiles + ahead


def _long_row_tiles(x: Axis, nests: tuple[Nest, ...], wide: bool) -> list[Tile]:
    """Tiles for rows that no program holds. With 4 warps whose loops load ahead, with 8 and with 16
    an H200 took 43.2, 42.1 and 41.8 µs for a sum, 253, 247 and 252 for sums of exponentials, 36.5,
    41.0 and 38.1 for squares; where vectors do not fit, 127 with 8 warps and 102 with 16."""
    vectors = reads_vectors(nests)
    squares = any(isinstance(v, Reduced) and v.kind == SQUARES for n in nests for v in n.values)
    order = (16, 8, 4) if not vectors else (4, 8, 16) if squares else (8, 4, 16)
    shapes = [(LOOPED, warps) for warps in order] + [(LOOPED * 2, 8), (LOOPED * 4, 16)]
    tiles = [_flat_tile(x, (1, *shape), nests, wide) for shape in shapes]
    ahead = [dataclasses.replace(tile, stages=3) for tile in tiles[:2]]
    return ahead + tiles if vectors and squares else tiles + ahead


def part_tiles(group: Group, height: int) -> list[Tile]:
    """Tiles for a group with partial sums over `height` rows, which a program takes in turn: short
    ones some at a time."""
    nests = tuple(flatten(nest) for nest in group.nests)
    x, wide = Axis(0, prod(group.space)), needs_int64(group)
    longest = pow2(max(prod(nest.inner) for nest in nests))
    return [
        dataclasses.replace(
            _row_tile((Dim("x", x, rows),), nests, longest, count, wide),
            height=height,
            stages=stages,
        )
        for rows, count, stages in _part_shapes(longest, height)
    ]


def _part_shapes(longest: int, height: int) -> list[tuple[int, int, int]]:
    """(rows at a time, warps, stages). Rows that are taken together are of one part; on an H100 two
    warps for 1,024 elements took 35 µs where four took 53."""
    warps = min(max(longest // 512, 1), 16)
    alone = [(warps, 3), (warps, 2), (min(warps * 2, 16), 0), (warps, 0), (max(warps // 2, 1), 2)]
    most = height & -height  # the largest power of two that divides it
    rows = min(AT_ONCE // longest, most)
    if rows < 2:
        return [(1, *shape) for shape in alone]
    warps = max(rows * longest // 512, 1)
    shapes = [(rows, warps, 3), (rows, warps * 4, 3), (rows, warps, 0), (rows // 2, warps, 3)]
    return [*shapes, (1, *alone[0])]


def _is_two_passes(nests: tuple[Nest, ...]) -> bool:
    """One loop over the row that folds it, one that uses the result: the second reads from the
    cache."""
    loops = [nest for nest in nests if length(nest) * 8 > max(map(length, nests))]
    return len(loops) == 2 and loops[0].is_reduction and not loops[1].is_reduction


def _two_passes(nests: tuple[Nest, ...], longest: int) -> tuple[int, int, int]:
    """Found on an H200 with rows of 4,096: 0.066 ms where holding the row took 0.070 (16,384 rows
    of bfloat16). Of rows too long for registers few are under way at once, so that they stay in the
    cache: on an H100 with rows of 40,960, 0.071 ms where smaller programs took 0.090."""
    if longest > PERSISTENT:
        return 1, LOOPED * 4, 16
    rows = {
        load.buffer for nest in nests for load in nest_loads(nest) if load.buffer.scope == "global"
    }
    widest = max(buffer.dtype.itemsize for buffer in rows)
    return 1, LOOPED, 8 if widest <= 2 else 16


def _flat_tile(x: Axis, shape: tuple[int, int, int], nests: tuple[Nest, ...], wide: bool) -> Tile:
    """`shape`: (rows a program, elements a step, warps)."""
    block, step, warps = shape
    return _row_tile((Dim("x", x, min(block, pow2(x.size))),), nests, step, warps, wide)


def _row_tile(
    dims: tuple[Dim, ...], nests: tuple[Nest, ...], step: int, warps: int, wide: bool
) -> Tile:
    number = len(dims)
    inner = tuple(
        Dim("r", Axis(number, nest.inner[0]), min(step, _padded(nest.inner[0])))
        if nest.inner
        else None
        for nest in nests
    )
    persistent = all(
        dim is None or (is_known(dim.axis.size) and 0 < dim.axis.size <= dim.block) for dim in inner
    )
    return Tile(dims, inner, nests, persistent, warps, wide)


def runs_along_space(nests: tuple[Nest, ...]) -> bool:
    """Whether neighbours in memory are neighbours in the (flat) space rather than in inner."""
    weight = unit_axes(nest for nest in nests if nest.inner)
    along = {
        number: sum(w for axis, w in weight.items() if axis.number == number) for number in (0, 1)
    }
    return along[0] > along[1]


def folds_columns(nest: Nest) -> bool:
    """Whether programs fold columns side by side, rather than rows."""
    group = Group("fold", nest.space, (nest,))
    return runs_along_space((flatten(nest),)) or any(
        _column_axis(whole) is not None for whole in (group, split_space(group))
    )


def _is_turned(nests: tuple[Nest, ...], *, inner: bool = False) -> bool:
    """Whether some of the operands lie along the space, or along the inner axes, beside others."""
    weight = unit_axes(nest for nest in nests if nest.inner)
    rank = len(nests[0].space)
    along = sum(w for axis, w in weight.items() if (axis.number >= rank) == inner)
    return along * 8 > weight.total()


def _turned_across(tile: Tile) -> Tile:
    """The tile with its lanes along the space. Where it holds what it folds, each takes so few
    columns that none is folded by several of a warp."""
    return dataclasses.replace(tile, across=True, neighbours=2 if tile.persistent else 0)


def _turned(longest: int) -> tuple[int, int, int]:
    """As many rows at once as fill a sector of memory, since neighbours of what lies along the
    space are read with them: 32 rows of 196 x 768 took 75 µs on an H100 one by one."""
    step = min(pow2(longest), LONGEST_TURNED)
    a_thread = 64 if longest <= step else 32
    return TURNED, step, max(TURNED * step // (a_thread * 32), 1)


def _column_axis(group: Group) -> Axis | None:
    """The space axis along which memory runs, if it is one of the space and not of inner."""
    weight = unit_axes(nest for nest in group.nests if nest.inner)
    axis = max(weight, key=lambda axis: (weight[axis], -axis.number), default=None)
    if axis is None or axis.number >= len(group.space) or hint(axis.size) < TURNED:
        return None
    tied = any(weight[other] == weight[axis] for other in weight if other is not axis)
    return None if tied and hint(axis.size) % TURNED else axis


def _uneven_columns(group: Group) -> tuple[Axis, ...]:
    """The last space axes, if the columns that they make lie side by side in the largest operand,
    and a block over all of the space would go beyond their end: the compiler no longer sees there
    that neighbours lie side by side."""
    loads = (load for n in group.nests for load in nest_loads(n) if load.buffer.scope == "global")
    largest = max(loads, key=lambda load: hint(load.buffer.size), default=None)
    if largest is None or not all(map(is_known, group.space)):
        return ()
    axes, count = sizes.make_axes(group.space), 1
    for k in reversed(range(len(axes))):
        if sizes.coefficient(largest.index, axes[k]) != count:
            uneven = count >= COLUMNS and count % COLUMNS != 0
            return axes[k + 1 :] if uneven else ()
        count *= group.space[k]
    return ()


def _column_tiles(group: Group, columns: tuple[Axis, ...], wide: bool) -> list[Tile]:
    """Some space axes side by side, the others a scalar."""
    others = tuple(axis for axis in sizes.make_axes(group.space) if axis not in columns)
    z, x = Axis(0, prod(axis.size for axis in others)), Axis(1, prod(a.size for a in columns))
    where = dict(zip(others, coordinates(z, tuple(axis.size for axis in others)), strict=True))
    where |= zip(columns, coordinates(x, tuple(axis.size for axis in columns)), strict=True)
    nests = tuple(_over_two(nest, z, x, where) for nest in group.nests)
    tiles = [
        _row_tile((Dim("z", z, 1), Dim("x", x, block)), nests, step, warps, wide)
        for block, step, warps in _column_shapes(x.size, nests, hint(z.size))
    ]
    return list(map(_turned_across, tiles))


def _over_two(nest: Nest, z: Axis, x: Axis, where: dict[Axis, Index]) -> Nest:
    r = Axis(2, prod(nest.inner))
    inner = dict(zip(nest.axes[len(nest.space) :], coordinates(r, nest.inner), strict=True))
    places = {**where, **inner}

    def place(atom: sizes.Atom) -> sizes.Index:
        return places.get(atom, sizes.ZERO)  # type: ignore[call-overload, no-any-return]

    return rewrite_nest(nest, (z.size, x.size), (r.size,) if nest.inner else (), place)


def _row_shapes(rows: int, longest: int, device: Device) -> list[tuple[int, int, int]]:
    """(rows a program, elements a step, warps)."""
    padded = pow2(longest)
    if 0 < padded <= PERSISTENT:
        share = max(1, pow2(hint(rows) // (device.multiprocessors * 4)))
        block = min(max(1, 1024 // padded), share, 64)
        usual = _warps(block * padded)
        warps = WARPS.get((block, padded), usual)
        others = [
            (block, padded, min(usual * 2, 16) if warps == usual else usual),
            (block, padded, max(usual // 2, 1)),
            (min(block * 4, 128), padded, warps),
        ]
        looped = [(1, LOOPED, 4)] if padded > LOOPED else []
        few = hint(rows) <= block * device.multiprocessors  # what one waits for nobody else hides
        first, second = (block, padded, warps), others[0]
        start = [second, first] if few and padded >= 1024 else [first, second]
        return [*start, *others[1:], *looped]
    return [(1, LOOPED, 4), (1, LOOPED, 8), (1, LOOPED * 2, 8), (1, LOOPED * 4, 16)]


def _are_windows(nests: tuple[Nest, ...]) -> bool:
    """Whether each point folds so few others that a program takes them one by one."""
    return all(is_known(prod(nest.inner)) and prod(nest.inner) <= WINDOW for nest in nests)


def _overlap(group: Group) -> bool:
    """Whether neighbours in the space fold what lies close to each other, and a few elements each,
    as in a window of pooling: lanes along the space read it one by one from a cache."""
    folds = [nest for nest in group.nests if nest.inner]
    if len(folds) != 1 or not all(map(is_known, folds[0].inner)) or not group.space:
        return False
    last, inner = sizes.make_axes(group.space)[-1], folds[0].inner
    steps = [
        hint(sizes.coefficient(load.index, last))
        for load in nest_loads(folds[0])
        if load.buffer.scope == "global" and set(folds[0].axes[len(group.space) :]) & axes_of(load)
    ]
    rows = len(inner) == 1 and any(step >= inner[0] for step in steps)
    near = bool(steps) and all(1 <= step <= WINDOW for step in steps)
    return near and not rows and 1 < prod(inner) <= MOST_IN_TURN


def _column_shapes(
    columns: Size, nests: tuple[Nest, ...], others: int = 1
) -> list[tuple[int, int, int]]:
    """others: programs for each of columns side by side. Few programs take few columns each, which
    fill a sector of memory, with more warps."""
    longest = max(hint(prod(nest.inner)) for nest in nests)
    block = min(COLUMNS, pow2(columns))
    while block > 8 and hint(columns) * others // block < 64 and longest > 2048 // block:
        block //= 2
    both = _is_turned(nests, inner=True)  # what lies along the columns comes in runs, too
    step = min(pow2(max(longest, 1)), (4096 if both else 2048) // block)
    start = [(block, step, 4), (block, step, 8)] if both else [(block, step, 2), (block, step, 4)]
    held = _columns_in_registers(columns, nests, others) if step < pow2(longest) else []
    if not both and longest > 2048 // COLUMNS and not reads_vectors(nests):
        held += _long_pieces(columns, others)
    return [
        *held,
        *(start if hint(columns) * others // block > MIN_BUSY_PROGRAMS else start[::-1]),
        (block, min(step * 2, pow2(max(longest, 1))), 8),
        (min(block * 2, pow2(columns)), step, 8),
    ]


def _long_pieces(columns: Size, others: int) -> list[tuple[int, int, int]]:
    """Many columns a program, where rows begin in the middle of a sector: each piece of them
    touches one sector more than it fills."""
    count = -(-hint(columns) // MANY_COLUMNS)
    padded = count * MANY_COLUMNS - hint(columns)
    many = count * others >= 8 * MIN_BUSY_PROGRAMS and padded * 8 <= hint(columns)
    return [(MANY_COLUMNS, 4096 // MANY_COLUMNS, 8)] if many else []


def _columns_in_registers(
    columns: Size, nests: tuple[Nest, ...], others: int
) -> list[tuple[int, int, int]]:
    """Whole columns that are gone through several times, in registers: they are read once. A warp
    that takes a pair of columns with each lane folds without shuffles."""
    looped = [length(nest) for nest in nests if nest.inner]
    padded = pow2(max(looped))
    block = min(COLUMNS, pow2(columns), PERSISTENT // padded)
    while block > TURNED and hint(columns) * others // block < 2 * MIN_BUSY_PROGRAMS:
        block //= 2
    if len(looped) < 2 or block < TURNED:
        return []
    warps = pow2(block * max(looped) // (2 * THREAD_ELEMENTS * 32) + 1)
    return [(block, padded, min(warps, 16))]


def _warps(tile: int) -> int:
    """About 8 elements a thread for short tiles, 16 to 32 for long ones."""
    return next(
        (warps for limit, warps in ((256, 1), (512, 2), (1024, 4), (4096, 8)) if tile <= limit), 16
    )
