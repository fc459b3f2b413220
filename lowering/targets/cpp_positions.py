"""Positions that a kernel computes from its axes alone (an upsampling, a stride, a padding):
evaluated here, once, so that loops read neighbours where they can.

A position that is a linear function of its axis becomes one; any other is certain to be in range
and is not checked. Where the last axis has positions of period d (`i // 2`), the loop takes d
elements a turn, for then each position is linear; a few elements at the ends may be left to lines
of their own (the clamped ones of a bilinear upsampling).
"""

import dataclasses
from collections.abc import Callable, Iterator, Sequence

import torch
from torch.utils._python_dispatch import _disable_current_modes

from .. import sizes
from ..ir import (
    Cast,
    Const,
    Group,
    IndexValue,
    Indirect,
    Nest,
    Op,
    Rewriter,
    Select,
    Store,
    Value,
    accesses,
    atoms,
    indices_of,
)
from ..poly import is_known
from ..sizes import Atom, Axis, FloorDiv, Index, Mod
from ..stages.axes import all_indices, rebuild

LONGEST = 1 << 14  # positions evaluated
PERIODS = (1, 2, 3, 4, 8)
LEAST_TURNS = 8  # of an unrolled loop
MOST_ENDS = 8  # elements with lines of their own

_OPS: dict[str, Callable[..., torch.Tensor]] = {
    "add": torch.add,
    "sub": torch.sub,
    "mul": torch.mul,
    "div": torch.div,
    "neg": torch.neg,
    "maximum": torch.maximum,
    "minimum": torch.minimum,
    "floor": torch.floor,
    "ceil": torch.ceil,
    "trunc": torch.trunc,
    "round": torch.round,
    "eq": torch.eq,
    "ne": torch.ne,
    "lt": torch.lt,
    "le": torch.le,
    "gt": torch.gt,
    "ge": torch.ge,
    "and": torch.bitwise_and,
    "or": torch.bitwise_or,
    "not": lambda a: torch.logical_not(a) if a.dtype == torch.bool else torch.bitwise_not(a),
}


class _Unknown(Exception):
    """The position depends on more than one axis, on memory, or on an operation not listed."""


class Positions:
    """Values as functions of one axis: int64 or other tensors with an element for each position."""

    def __init__(self, axis: Axis | None) -> None:
        self.axis = axis
        self.count = 1 if axis is None else axis.size
        self._known: dict[Value, torch.Tensor] = {}

    def value(self, value: Value) -> torch.Tensor:
        if value not in self._known:
            self._known[value] = self._compute(value)
        return self._known[value]

    def _compute(self, value: Value) -> torch.Tensor:
        if isinstance(value, Const):
            return torch.full((self.count,), value.value, dtype=value.dtype)
        if isinstance(value, IndexValue):
            return self.index(value.index)
        if isinstance(value, Cast):
            return self.value(value.value).to(value.dtype)
        if isinstance(value, Select):
            condition, then, orelse = (self.value(child) for child in value.children())
            return torch.where(condition, then, orelse)
        if isinstance(value, Op) and value.name in _OPS:
            return _OPS[value.name](*(self.value(arg) for arg in value.args))
        raise _Unknown

    def index(self, index: Index) -> torch.Tensor:
        total = torch.full((self.count,), _number(index.offset))
        for atom, factor in index.terms:
            total = total + self.atom(atom) * _number(factor)
        return total

    def atom(self, atom: Atom) -> torch.Tensor:
        if atom is self.axis:
            return torch.arange(self.count)
        if isinstance(atom, FloorDiv):
            base = self.index(atom.base)
            return torch.div(base, _number(atom.divisor), rounding_mode="floor")
        if isinstance(atom, Mod):
            return torch.remainder(self.index(atom.base), _number(atom.divisor))
        if isinstance(atom, Indirect):
            return self.value(atom.value)
        raise _Unknown


def _number(size: object) -> int:
    if not isinstance(size, int):
        raise _Unknown
    return size


def _axes_below(atom: Atom) -> set[Axis]:
    if isinstance(atom, Axis):
        return {atom}
    if isinstance(atom, FloorDiv | Mod):
        return {axis for below, _ in atom.base.terms for axis in _axes_below(below)}
    assert isinstance(atom, Indirect)
    return _axes_of(atom.value)


def _axes_of(value: Value) -> set[Axis]:
    from_indices = {a for i in indices_of(value) for atom, _ in i.terms for a in _axes_below(atom)}
    return from_indices.union(*(_axes_of(child) for child in value.children()))


def _table(atom: Atom) -> tuple[Axis | None, torch.Tensor] | None:
    """The axis that the atom depends on and its value at each position of it."""
    axes = _axes_below(atom)
    axis = next(iter(axes), None)
    known = axis is None or (is_known(axis.size) and 0 < axis.size <= LONGEST)
    if len(axes) > 1 or not known:
        return None
    try:
        return axis, Positions(axis).atom(atom)
    except _Unknown:
        return None


class _Settler(Rewriter):
    """Indirect positions that depend on one axis, as linear functions or as certain ones."""

    def index(self, index: Index) -> Index:
        if not any(isinstance(atom, Indirect) for atom in atoms(index)):
            return index
        made = [sizes.scale(self._settled(atom), factor) for atom, factor in index.terms]
        return sizes.add(sizes.const(index.offset), *made)

    def _settled(self, atom: Atom) -> Index:
        found = _table(atom) if isinstance(atom, Indirect) else None
        if found is None or not isinstance(atom, Indirect):
            return sizes.atom_index(atom)
        axis, table = found
        low, high = int(table.min()), int(table.max())
        if low < 0 or not is_known(atom.bound) or high >= atom.bound:
            return sizes.atom_index(atom)
        step = int(table[1] - table[0]) if len(table) > 1 else 0
        if torch.equal(table, table[0] + step * torch.arange(len(table))):
            linear = sizes.ZERO if axis is None else sizes.atom_index(axis, step)
            return sizes.add(linear, sizes.const(int(table[0])))
        return sizes.atom_index(Indirect(atom.value, atom.bound, True))


def settled(nest: Nest) -> Nest:
    settler = _Settler()
    stores = tuple(
        Store(s.buffer, settler.index(s.index), settler(s.value), s.combine) for s in nest.stores
    )
    made = Nest(nest.space, nest.inner, stores, nest.origins)
    meet = any(sizes.coefficient(s.index, axis) == 0 for s in stores for axis in nest.axes)
    return nest if nest.scatters and not made.scatters and meet else made


@dataclasses.dataclass(frozen=True)
class _Turns:
    """Positions `start + period * j + r` for j below `count` and r below `period`."""

    start: int
    period: int
    count: int

    @property
    def end(self) -> int:
        return self.start + self.period * self.count


def with_positions(group: Group) -> Group:
    """The group with its positions evaluated, and the last axis unrolled where that makes those of
    its loops linear; groups of pointwise nests alone are unrolled, whose points meet nowhere."""
    with _disable_current_modes():  # compilation runs under AOTAutograd's fake tensors
        return _with_positions(group)


def _with_positions(group: Group) -> Group:
    group = Group(group.name, group.space, tuple(map(settled, group.nests)))
    whole = any(nest.inner or nest.is_reduction or nest.scatters for nest in group.nests)
    if whole or len(group.space) < 2:
        return group
    last = group.nests[0].axes[-1]
    buffers = (access.buffer for nest in group.nests for access in accesses(nest))
    if not is_known(last.size) or any(buffer.scope == "local" for buffer in buffers):
        return group
    tables = list(_tables(group, last))
    turns = _turns(tables, last.size) if tables else None
    if turns is None or (turns.period == 1 == len(tables) and turns.count == last.size):
        return group
    space = group.space[:-1]
    pieces = [(i, 1, 1) for i in range(turns.start)]
    pieces.append((turns.start, turns.period, turns.count))
    pieces.extend((i, 1, 1) for i in range(turns.end, last.size))
    nests = [_piece(nest, last, *piece) for nest in group.nests for piece in pieces]
    return Group(group.name, space, tuple(map(settled, nests)))


def _tables(group: Group, last: Axis) -> Iterator[torch.Tensor]:
    """Positions that are no linear function of the last axis, which they alone depend on."""
    seen: set[Atom] = set()
    for index in (index for nest in group.nests for index in all_indices(nest)):
        for atom, _ in index.terms:
            if isinstance(atom, Axis) or atom in seen or last not in _axes_below(atom):
                continue
            seen.add(atom)
            found = _table(atom)
            if found is not None:
                yield found[1]


def _turns(tables: Sequence[torch.Tensor], size: int) -> _Turns | None:
    """The smallest period at which almost all positions of every table go on linearly."""
    for period in PERIODS:
        regular = torch.ones(max(size - period, 0), dtype=torch.bool)
        for table in tables:
            step = table[period:] - table[:-period]
            regular &= step == (step.mode().values if len(step) else 0)
        start, length = _longest_run(regular)
        count = (length + period) // period
        if count >= LEAST_TURNS and size - period * count <= MOST_ENDS:
            return _Turns(start, period, count)
    return None


def _longest_run(regular: torch.Tensor) -> tuple[int, int]:
    best, start = (0, 0), 0
    for place, good in enumerate([*regular.tolist(), False]):
        if not good:
            if place - start > best[1]:
                best = (start, place - start)
            start = place + 1
    return best


def _piece(nest: Nest, last: Axis, start: int, period: int, count: int) -> Nest:
    """The nest at some positions of its last axis, which becomes an inner one: all elements of a
    period are stored in one turn."""
    turn = sizes.atom_index(Axis(last.number, count), period)
    stores: list[Store] = []
    for phase in range(period):
        place = sizes.add(turn, sizes.const(start + phase))

        def rewrite(axis: Atom, place: Index = place) -> Index:
            return place if axis is last else sizes.atom_index(axis)

        stores.extend(rebuild(nest, nest.space[:-1], (count,), rewrite).stores)
    return Nest(nest.space[:-1], (count,), tuple(stores), nest.origins)
