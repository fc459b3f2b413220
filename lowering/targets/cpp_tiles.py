"""Pointwise kernels whose accesses run along different axes: blocks of two axes, in which whatever
lies across is first turned into a short array on the stack (`templates/tiles.h`)."""

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from .. import sizes
from ..ir import Buffer, Group, Indirect, Load, Store, atoms, nest_loads
from ..poly import Size, hint
from ..sizes import Axis, FloorDiv, Index, Mod
from .cpp_expr import Lines
from .cpp_ops import element_type

SHORTEST = 8  # elements of an axis below which a block is not worth it
ACROSS = 64  # elements of a block along the axis that is turned
ALONG = 128  # and along the last axis, of 4-byte elements
MOST = 1 << 16  # bytes of the arrays of one kernel


@dataclasses.dataclass(frozen=True)
class Tiles:
    """Blocks over axis `across` and the last axis `along`. loads, stores: with the steps between
    elements that neighbour along the last axis."""

    across: Axis
    along: Axis
    loads: dict[Load, Size]
    stores: dict[Store, Size]

    @property
    def buffers(self) -> list[Buffer]:
        return [*(load.buffer for load in self.loads), *(s.buffer for s in self.stores)]

    @property
    def width(self) -> int:
        """Elements of a block along the last axis: fewer where several arrays share the cache."""
        widest: int = max(buffer.dtype.itemsize for buffer in self.buffers)
        fitting = ALONG * 4 // (max(widest, 4) * (len(self.loads) + len(self.stores)))
        size = hint(self.along.size)
        return min(max(fitting, 32), -(-size // 16) * 16)


def find_tiles(group: Group) -> Tiles | None:
    """What a pointwise group has to turn; None if nothing, or if it does not pay."""
    axes = group.nests[0].axes
    along = axes[-1]
    if len(axes) < 2 or hint(along.size) < SHORTEST:
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
    tiles = Tiles(across, along, loads, stores)
    return tiles if (loads or stores) and _bytes(tiles) <= MOST else None


def _bytes(tiles: Tiles) -> int:
    each = ACROSS * tiles.width
    return sum(each * buffer.dtype.itemsize for buffer in tiles.buffers)


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
    if hint(step) < SHORTEST or along in inside or any(isinstance(a, Indirect) for a in below):
        return []
    return [
        axis
        for axis in axes[:-1]
        if hint(axis.size) >= SHORTEST
        and sizes.coefficient(index, axis) == 1
        and axis not in inside
    ]


class TilePrinter:
    """The loops over blocks, around what `body` prints for one element."""

    def __init__(self, lines: Lines, tiles: Tiles) -> None:
        self.lines, self.tiles = lines, tiles
        accesses = (*tiles.loads, *tiles.stores)
        self.arrays = {x: f"tile{number}" for number, x in enumerate(accesses)}

    def element(self, access: Load | Store) -> str:
        """The access as an element of its array."""
        across, along = self.tiles.across.text, self.tiles.along.text
        place = f"({across} - from_{across}) * {self.tiles.width} + {along} - from_{along}"
        return f"{self.arrays[access]}[{place}]"

    def open(self, axis: Axis) -> None:
        step = self.tiles.width if axis is self.tiles.along else ACROSS
        name = f"from_{axis.text}"
        self.lines.open(f"for (int64_t {name} = 0; {name} < {axis.size}; {name} += {step})")

    def ends(self) -> None:
        for axis, step in ((self.tiles.across, ACROSS), (self.tiles.along, self.tiles.width)):
            start = f"from_{axis.text}"
            end = f"{start} + {step} < {axis.size} ? {start} + {step} : {axis.size}"
            self.lines.add(f"const int64_t to_{axis.text} = {end};")

    def loop(self, axis: Axis) -> None:
        name = axis.text
        self.lines.open(f"for (int64_t {name} = from_{name}; {name} < to_{name}; ++{name})")

    def declare(self) -> None:
        for access, array in self.arrays.items():
            size = ACROSS * self.tiles.width
            aligned = "__attribute__((aligned(64)))"
            buffer = access.buffer  # type: ignore[attr-defined]
            self.lines.add(f"{element_type(buffer)} {array}[{size}] {aligned};")

    def turn_in(self, index: Callable[[Index], str]) -> None:
        self._at_start(self.tiles.loads, index)

    def turn_out(self, index: Callable[[Index], str]) -> None:
        self._at_start(self.tiles.stores, index)

    def _at_start(self, turned: Mapping[Any, Size], index: Callable[[Index], str]) -> None:
        if not turned:
            return
        across, along = self.tiles.across.text, self.tiles.along.text
        self.lines.open("")
        self.lines.add(f"const int64_t {across} = from_{across}, {along} = from_{along};")
        rows, columns = f"to_{along} - {along}", f"to_{across} - {across}"
        for x, step in turned.items():
            kind, array = element_type(x.buffer), (self.arrays[x], str(self.tiles.width))
            memory = (f"{x.buffer.name} + {index(x.index)}", str(step))
            ends = (*array, *memory, rows, columns)
            if isinstance(x, Store):
                ends = (*memory, *array, columns, rows)
            self.lines.add(f"op_transpose<{kind}>({', '.join(ends)});")
        self.lines.close()
