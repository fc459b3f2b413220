"""Tiles of loops without folds: one flat axis, or two sides where accesses run along different axes
of the space."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence
from math import prod

from ..loops import sizes
from ..loops.axes import axes_of
from ..loops.ir import Buffer, Group, Nest, Op, nest_loads, store_values
from ..loops.ops import OPS
from ..loops.polynomials import Size, hint, is_known
from ..loops.sizes import Axis, Index
from .triton.triton_axes import (
    VECTOR,
    MemoryRun,
    accesses,
    coordinates,
    flatten,
    permute_space,
    points_of_end,
    rewrite_nest,
    run_length,
    runs,
    split_space,
    unit_axes,
)
from .triton.triton_ops import SHORTER
from .triton.triton_tile import INT32, Device, Dim, Tile, needs_int64, pow2

ARITHMETIC = 40  # what the functions of an element cost where they bound a kernel
LEAST_RUN = 16  # elements side by side that are worth fetching together
SIDE = 64  # points of one side of a tile
FLAT = 1024  # points of a flat program
WARP = 128  # and of a warp in it
LEAST_WINDOW = 3  # elements that are read of one
SECTOR = 32  # bytes of memory that come together
MOST_HELD = 128  # loads of a thread, beyond which registers are spilled
SHARE = 16  # that what is read in pieces has of all bytes, at least: each costs as many sectors

Side = tuple[Axis, ...]  # outermost first


def pointwise_tiles(group: Group, device: Device) -> list[Tile]:
    """Tiles for a group without inner axes, the likeliest best first."""
    group = _by_stride(group)
    pair = _transposed_pair(group)
    if pair is not None:
        return _square_tiles(group, *pair)
    divided, found = sides(group)
    if found is not None:
        return _square_tiles(divided, *found)
    plane = _plane(divided)
    shapes = _plane_shapes(prod(axis.size for axis in plane))
    return _square_tiles(divided, (), plane, shapes) if shapes else _flat_tiles(group, device)


def sides(group: Group) -> tuple[Group, tuple[Side, Side] | None]:
    """The group with axes that are not merged, and the sides of a tile, if it should have two."""
    divided = split_space(group)
    return divided, _sides(divided)


def _by_stride(group: Group) -> Group:
    """Space axes by falling stride of the largest access: flat order then follows memory."""
    largest = max(
        (a for n in group.nests for a in accesses(n)), key=lambda a: hint(a[0].size), default=None
    )
    plain = largest and all(isinstance(atom, Axis) for atom, _ in largest[1].terms)
    if largest is None or not plain or len(group.space) < 2:
        return group
    axes = sizes.make_axes(group.space)
    stride = [abs(hint(sizes.coefficient(largest[1], axis))) or INT32 for axis in axes]
    order = tuple(sorted(range(len(axes)), key=lambda k: (-stride[k], k)))
    space = tuple(group.space[k] for k in order)
    return Group(group.name, space, tuple(permute_space(n, order) for n in group.nests))


# ---- flat


def _flat_tiles(group: Group, device: Device) -> list[Tile]:
    nests = tuple(flatten(nest) for nest in group.nests)
    x = Axis(0, prod(group.space))
    wide = needs_int64(group)
    fair = pow2(hint(x.size) // (device.multiprocessors * 4))
    blocks = [(min(FLAT, max(128, fair)), 4), (2048, 8), (512, 4), (FLAT, 8)]
    if fair >= FLAT and _is_arithmetic(nests):
        blocks = [(FLAT, 1), (2048, 2), *blocks]
    inner: tuple[None, ...] = (None,) * len(nests)
    neighbours = 1 if _reads_windows(nests) else 0
    tiles = [
        Tile((Dim("x", x, min(block, pow2(x.size))),), inner, nests, True, warps, wide)
        for block, warps in blocks
    ]
    return [dataclasses.replace(tile, neighbours=neighbours) for tile in tiles]


def _reads_windows(nests: tuple[Nest, ...]) -> bool:
    """Whether an operand is read at places that lie between those of vectors, as a window that is
    written out is: each lane then reads single elements, which are to lie beside other lanes'."""
    offsets: dict[tuple[Buffer, object, bool], list[Size]] = {}
    for load in {load for nest in nests for load in nest_loads(nest)}:
        known = is_known(load.index.offset)
        offsets.setdefault((load.buffer, load.index.terms, known), []).append(load.index.offset)
    for (buffer, _, known), found in offsets.items():
        vector = VECTOR // buffer.dtype.itemsize
        between = sum(hint(offset - found[0]) % vector != 0 for offset in found)
        if known and len(found) >= LEAST_WINDOW and between * 2 >= len(found):
            return True
    return False


def _is_arithmetic(nests: tuple[Nest, ...]) -> bool:
    """Whether instructions bound the kernel, all of them in a line: many elements a thread then
    hide what each waits for. Two GELUs of 16,384 x 4,096 took 85 µs on an H200 with 8 elements a
    thread, and 73 with 32; one takes 68 with either."""
    stored = [store.buffer.dtype for nest in nests for store in nest.stores]
    costs = [
        (value.name, OPS[value.name].cost)
        for nest in nests
        for value in store_values(nest)
        if isinstance(value, Op)
    ]
    short = all(name in SHORTER for name, cost in costs if cost >= OPS["exp"].cost)
    halves = all(dtype.itemsize == 2 and dtype.is_floating_point for dtype in stored)
    return halves and short and sum(cost for _, cost in costs) >= ARITHMETIC


# ---- planes


def _plane(group: Group) -> Side:
    """The last axes, where windows are read along them, and along them what these are multiplied by
    stays the same: the weights of a channel."""
    loads = {load for nest in group.nests for load in nest_loads(nest)}
    axes, used = sizes.make_axes(group.space), [axes_of(load) for load in loads]
    starts = (
        k for k in range(1, len(axes)) if sum(not own & {*axes[k:]} for own in used) >= LEAST_WINDOW
    )
    start = next(starts, len(axes))
    return axes[start:] if _reads_windows(group.nests) else ()


def _plane_shapes(points: Size) -> list[tuple[int, int, int]]:
    """(1, points a program, warps), of which few are beyond the plane's end."""
    most = [(1, block, max(block // 256, 1)) for block in (FLAT, 512, 256)]
    return [shape for shape in most if points > 1 and -hint(points) % shape[1] * 8 <= hint(points)]


# ---- two sides


def _transposed_pair(group: Group) -> tuple[Side, Side] | None:
    """Two axes that different accesses run along, if a tile over both pays: (outer, innermost)."""
    weight = unit_axes(group.nests)
    longest = [axis for axis, _ in weight.most_common(2) if hint(axis.size) >= LEAST_RUN]
    if len(longest) < 2:
        return None
    y, x = sorted(longest, key=lambda axis: axis.number)
    return (y,), (x,)


def _sides(group: Group) -> tuple[Side, Side] | None:
    """The sides of a tile for what a flat one would read or write in pieces, if that is much: the
    axes along which that lies in memory, and those of the rest."""
    found, flat = runs(group.nests), points_of_end(group, WARP)
    pieces = Counter(
        {run: size for run, size in found.items() if _in_pieces(run, flat)}
    ).most_common(1)
    if not pieces or pieces[0][1] * SHARE < found.total():
        return None
    torn, _ = pieces[0]
    whole = next((run for run, _ in found.most_common() if not _in_pieces(run, flat)), None)
    if whole is None:
        return None
    y = _side(torn, whole.axes[:1], SIDE)
    x = _side(whole, y, max(SIDE, 2 * FLAT // pow2(prod(a.size for a in y))))
    tiled = {axis: hint(axis.size) for axis in (*x, *y)}
    return (y, x) if x and y and run_length(torn, tiled) >= 2 * run_length(torn, flat) else None


def _in_pieces(run: MemoryRun, points: dict[Axis, int]) -> bool:
    """Whether these points of the axes touch few neighbours in memory, and many others."""
    length = run_length(run, points)
    touched = prod(points.get(axis, 1) for axis in run.every)
    return length < LEAST_RUN and touched > length


def _side(run: MemoryRun, taken: Side, least: int) -> Side:
    """The first axes of the run, until they have this many points, without those that are taken."""
    side, length = list[Axis](), 1
    for axis in run.axes:
        if length >= least:
            break
        length *= hint(axis.size)
        if axis not in taken:
            side.append(axis)
    return tuple(reversed(side))


def _square_tiles(
    group: Group, first: Side, last: Side, shapes: Sequence[tuple[int, int, int]] = ()
) -> list[Tile]:
    """Tiles of y by x; every other axis is a scalar z."""
    others = tuple(a for a in sizes.make_axes(group.space) if a not in (*first, *last))
    shape = tuple(prod(axis.size for axis in side) for side in (others, first, last))
    z, y, x = sizes.make_axes(shape)
    where: dict[Axis, Index] = {}
    for flat, side in ((z, others), (y, first), (x, last)):
        where |= zip(side, coordinates(flat, tuple(axis.size for axis in side)), strict=True)
    nests = tuple(rewrite_nest(nest, shape, (), where.__getitem__) for nest in group.nests)  # type: ignore[arg-type]
    inner: tuple[None, ...] = (None,) * len(nests)
    shapes = shapes or _square_shapes(y.size, x.size, *(_is_uneven(nests, k) for k in (1, 2)))
    shapes = [_unspilled(each, _loads(nests)) for each in shapes]
    wide, neighbours = needs_int64(group), 0 if first else 1
    dims = ((Dim("z", z, 1), Dim("y", y, h), Dim("x", x, w)) for h, w, _ in shapes)
    return [
        Tile(sides, inner, nests, True, warps, wide, neighbours=neighbours)
        for sides, (_, _, warps) in zip(dims, shapes, strict=True)
    ]


def _loads(nests: tuple[Nest, ...]) -> int:
    """How many elements of memory a point takes, where it has some of its own."""
    found: list[int] = []
    for nest in nests:
        both = {axis for axis in nest.axes[1:] if axis.size != 1}
        found.append(sum(both <= axes_of(load) for load in {*nest_loads(nest)}))
    return max(found, default=1)


def _unspilled(shape: tuple[int, int, int], loads: int) -> tuple[int, int, int]:
    """Fewer points, where a window is read of each: a thread makes all of its loads at once. With
    16 for each of 64 x 64 points, pooling took 14.4 ms on an H200 where 32 x 64 take 0.6."""
    high, wide, warps = shape
    while high * wide * loads > MOST_HELD * 32 * warps and max(high, wide) > LEAST_RUN:
        high, wide = (high // 2, wide) if high >= wide else (high, wide // 2)
    return high, wide, warps


def _is_uneven(nests: tuple[Nest, ...], number: int) -> bool:
    """Whether an access along this axis begins its rows anywhere in a sector of memory, so that
    each costs one sector more."""
    for nest in nests:
        axis = nest.axes[number]
        for buffer, index in accesses(nest):
            others = [factor for atom, factor in index.terms if atom is not axis]
            along = sizes.coefficient(index, axis) == 1
            if along and any(hint(f) % (SECTOR // buffer.dtype.itemsize) for f in others):
                return True
    return False


def _square_shapes(
    rows: Size, columns: Size, uneven_rows: bool, uneven_columns: bool
) -> list[tuple[int, int, int]]:
    """(points of y, points of x, warps); where one side is short, or the other is uneven, the other
    is longer."""
    high, wide = pow2(rows), pow2(columns)
    if min(high, wide) >= LEAST_RUN:
        shapes = [(64, 64, 8), (32, 64, 8), (32, 32, 4), (16, 64, 4)]
        if uneven_rows != uneven_columns:  # 513 x 513 x 64 on an H200: 1.24 ms, not 1.55
            shapes[0] = (2 * SIDE, SIDE // 2, 8) if uneven_rows else (SIDE // 2, 2 * SIDE, 8)
        return [(min(h, high), min(w, wide), warps) for h, w, warps in shapes]
    counts = [(2048, 8), (1024, 4), (4096, 8), (1024, 8)]
    if hint(min(rows, columns, key=hint)) != min(high, wide):
        counts = [counts[2], *counts[:2]]  # with idle lanes, of which few loads are under way
    if high < wide:
        return [(high, min(n // high, wide), warps) for n, warps in counts]
    return [(min(n // wide, high), wide, warps) for n, warps in counts]
