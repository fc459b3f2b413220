"""Positions that a kernel computes from its axes alone (an upsampling, a stride, a padding):
evaluated here, once, so that loops read neighbours where they can.

A position that is a linear function of its axis becomes one; any other is certain to be in range
and is not checked. The last axis is cut where its positions take another step or a condition on
it changes (the sides of a padding, the parts of a join); where its positions have a period d
(`i // 2`) a loop takes d elements a turn. In each piece every position is linear and no condition
is left. Where the last axis has none, the one before it is cut at its conditions. Positions that
follow no such rule are read from a table.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch.utils._python_dispatch import _disable_current_modes

from ...loops import sizes
from ...loops.axes import all_indices, rebuild
from ...loops.fuse_passes import without_locals
from ...loops.ir import (
    Cast,
    Const,
    Group,
    IndexValue,
    Indirect,
    Load,
    Nest,
    Op,
    Select,
    Store,
    Value,
    ValueRewriter,
    accesses,
    atoms,
    indices_of,
    nest_loads,
    store_values,
)
from ...loops.polynomials import Size, hint, is_known
from ...loops.sizes import Atom, Axis, FloorDiv, Index, Mod
from ...lowerings.value_builders import const
from .cpp_tiles import find_tiles

LONGEST = 1 << 14  # positions evaluated
PERIODS = (1, 2, 3, 4, 8)
LEAST_TURNS = 8  # of a loop that is worth vectorising
MOST_ENDS = 8  # elements, or a part of `1 / MOST_ENDS` of them, in pieces shorter than that
MOST_PIECES = 9
MOST_ROWS = 32  # each of which is a piece
MOST_VALUES, MOST_SETTLED = 1000, 8000  # of all pieces, after and before conditions are decided
LONGEST_TABLE = 1 << 12  # positions that stand in a kernel

_OPS: dict[str, Callable[..., torch.Tensor]] = {
    "add": torch.add,
    "sub": torch.sub,
    "mul": torch.mul,
    "div": torch.div,
    "neg": torch.neg,
    "abs": torch.abs,
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
    """Values as functions of one atom (an axis; what a division leaves of one): int64 or other
    tensors with an element for each of its values from 0 on."""

    def __init__(self, variable: Atom | None, count: int) -> None:
        self.variable, self.count = variable, count
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
        if atom is self.variable:
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
    return {axis for below in _atoms_of(atom.value) for axis in _axes_below(below)}


def _atoms_of(value: Value) -> set[Atom]:
    """The terms of the indices in the value."""
    return {a for leaf in value.leaves for i in indices_of(leaf) for a, _ in i.terms}


Table = tuple[Atom | None, torch.Tensor]


def _table(found: Atom | Value) -> Table | None:
    """What the atom or value depends on, an axis or the one division that stands for longer ones,
    and its value at each value of that."""
    if isinstance(found, Value):
        below = _atoms_of(found)
    else:
        below = _atoms_of(found.value) if isinstance(found, Indirect) else {found}
    axes = {axis for atom in below for axis in _axes_below(atom)}
    for variables in (axes, below):
        variable = next(iter(variables), None)
        count = 1 if variable is None else _values(variable)
        if len(variables) <= 1 and 0 < count <= LONGEST:
            positions = Positions(variable, count)
            try:
                if isinstance(found, Value):
                    return variable, positions.value(found)
                return variable, positions.atom(found)
            except _Unknown:
                return None
    return None


def _values(atom: Atom) -> int:
    """How many values from 0 on the atom takes, if that is known; else 0."""
    low, high = atom.bounds()
    return high + 1 if is_known(low) and low == 0 and is_known(high) and high is not None else 0


class _Settler(ValueRewriter):
    """Indirect positions that depend on one axis, as linear functions or as certain ones, and
    conditions on one axis that all of its positions meet, or none."""

    def index(self, index: Index) -> Index:
        if not any(isinstance(atom, Indirect) for atom in atoms(index)):
            return index
        made = [sizes.scale(self._settled(atom), factor) for atom, factor in index.terms]
        return sizes.add(sizes.const(index.offset), *made)

    def _settled(self, atom: Atom) -> Index:
        found = _table(atom) if isinstance(atom, Indirect) else None
        if found is None or not isinstance(atom, Indirect):
            return sizes.atom_index(atom)
        variable, table = found
        low, high = int(table.min()), int(table.max())
        if low < 0 or not is_known(atom.bound) or high >= atom.bound:
            return sizes.atom_index(atom)
        step = int(table[1] - table[0]) if len(table) > 1 else 0
        if torch.equal(table, table[0] + step * torch.arange(len(table))):
            linear = sizes.ZERO if variable is None else sizes.atom_index(variable, step)
            return sizes.add(linear, sizes.const(int(table[0])))
        return sizes.atom_index(Indirect(atom.value, atom.bound, True))

    def leave(self, value: Value) -> Value:
        if isinstance(value, Op) and is_condition(value):
            value = _by_steps(value)
            found = _table(value)
            if found is not None and bool((found[1] == found[1][0]).all()):
                return Const(bool(found[1][0]), torch.bool)
            return _without_constants(value)
        if isinstance(value, Select) and isinstance(value.condition, Const):
            return value.then if value.condition.value else value.orelse
        if isinstance(value, Load) and isinstance(value.mask, Const):
            return Load(value.buffer, value.index) if value.mask.value else const(0, value.dtype)
        return value


def _by_steps(value: Op) -> Op:
    """A comparison of `16 * i + j` and 32, j below 16, as one of `i` and 2: whole rows meet it."""
    if value.name not in ("lt", "ge"):
        return value
    place, limit = value.args
    if not isinstance(place, IndexValue) or not isinstance(limit, Const):
        return value
    distance = sizes.add(place.index, sizes.const(-int(limit.value))).offset
    factors = [factor for _, factor in place.index.terms]
    if not is_known(distance) or not all(is_known(factor) for factor in factors):
        return value
    for step in sorted({abs(factor) for factor in factors} - {0, 1}, reverse=True):
        rows = [(atom, factor) for atom, factor in place.index.terms if factor % step == 0]
        rest = _sum_of(term for term in place.index.terms if term not in rows)
        if distance % step == 0 and sizes.nonnegative(rest) and sizes.within(rest, step):
            made = _sum_of(((atom, factor // step) for atom, factor in rows), distance // step)
            return Op(value.name, (IndexValue(made), Const(0, limit.dtype)), value.dtype)
    return value


def is_condition(value: Op) -> bool:
    """Whether the axes alone decide the value, a bool."""
    return value.dtype == torch.bool and all(
        isinstance(leaf, Const | IndexValue) for leaf in value.leaves
    )


def _without_constants(value: Op) -> Value:
    """A conjunction or disjunction without the sides that are certain."""
    neutral = {"and": True, "or": False}.get(value.name)
    if neutral is None:
        return value
    certain = [arg for arg in value.args if isinstance(arg, Const)]
    rest = [arg for arg in value.args if not isinstance(arg, Const)]
    if any(bool(arg.value) is not neutral for arg in certain):
        return Const(not neutral, torch.bool)
    return rest[0] if len(rest) == 1 and certain else value


def settled(nest: Nest) -> Nest:
    settler = _Settler()
    stores = tuple(
        Store(s.buffer, settler.index(s.index), settler(s.value), s.combine) for s in nest.stores
    )
    made = Nest(nest.space, nest.inner, stores, nest.origins)
    meet = any(sizes.coefficient(s.index, axis) == 0 for s in stores for axis in nest.axes)
    return nest if nest.scatters and not made.scatters and meet else made


def tabulated(group: Group, axis: Axis) -> dict[Index, tuple[list[int], Index]]:
    """Indices of loads whose positions along the axis follow no rule, where one of the group's is
    computed for each element: what the axis adds to them at each of its values, and the rest."""
    found = dict[Index, tuple[list[int], Index]]()
    indices = [load.index for nest in group.nests for load in nest_loads(nest)]
    if not is_known(axis.size) or not 1 < axis.size <= LONGEST_TABLE:
        return found
    own = {index: [t for t in index.terms if _axes_below(t[0]) == {axis}] for index in indices}
    if not any(isinstance(atom, Indirect) for terms in own.values() for atom, _ in terms):
        return found
    with _disable_current_modes():
        for index, terms in own.items():
            rest = [(atom, factor) for atom, factor in index.terms if (atom, factor) not in terms]
            alone = not any(axis in _axes_below(atom) for atom, _ in rest)
            if alone and any(not isinstance(atom, Axis) for atom, _ in terms):
                places = _places(terms, axis)
                if places is not None:
                    found[index] = places, _sum_of(rest, index.offset)
    return found


def _places(terms: Sequence[tuple[Atom, Size]], axis: Axis) -> list[int] | None:
    if any(isinstance(atom, Indirect) and not atom.certain for atom, _ in terms):
        return None
    try:
        places: list[int] = Positions(axis, hint(axis.size)).index(_sum_of(terms)).tolist()
    except _Unknown:
        return None
    return places if max(map(abs, places)) < 2**31 else None


def _sum_of(terms: Iterable[tuple[Atom, Size]], offset: Size = 0) -> Index:
    parts = (sizes.atom_index(atom, factor) for atom, factor in terms)
    return sizes.add(sizes.const(offset), *parts)


class _Piece(NamedTuple):
    """Positions `start + period * j + r` of an axis, with j below `turns` and r below `period`."""

    start: int
    period: int
    turns: int


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
    if not is_known(last.size):
        return group
    buffers = (access.buffer for nest in group.nests for access in accesses(nest))
    has_locals = any(buffer.scope == "local" for buffer in buffers)
    tables = list(_tables(group, last))
    if tables and not has_locals:
        return _cut(group, last, _pieces(tables, last.size))
    nests = without_locals(group.nests) if has_locals else group.nests
    apart = Group(group.name, group.space, nests) if nests else group
    made = _cut_around_rows(apart) if nests else group
    return group if made is apart else made


def _cut(group: Group, axis: Axis, pieces: list[_Piece] | None) -> Group:
    if pieces is None or (len(pieces) == 1 == pieces[0].period):
        return group
    values = sum(len(nest.values) for nest in group.nests)
    if values * sum(piece.period for piece in pieces) > MOST_SETTLED:
        return group
    nests = [settled(_piece(nest, axis, piece)) for nest in group.nests for piece in pieces]
    if sum(len(nest.values) for nest in nests) > MOST_VALUES:
        return group
    return Group(group.name, group.space[: axis.number], tuple(nests))


def _cut_around_rows(group: Group) -> Group:
    """The axis before the last one cut where a condition on it, which whole rows of the last one
    meet (the channels of a pixel beside the edge), changes."""
    *_, axis, _ = group.nests[0].axes
    masks = {load.mask for nest in group.nests for load in nest.loads}
    if len(group.space) < 3 or not is_known(axis.size) or masks == {None}:
        return group
    tables = [table for table in _tables(group, axis) if table.dtype == torch.bool]
    if not tables or find_tiles(group) is not None:
        return group
    pieces: list[_Piece] | None = list(_runs(tables, 1, axis.size))
    if pieces is not None and len(pieces) > MOST_PIECES:  # every other row, or each by itself
        pieces = _pieces(tables, axis.size) or (pieces if len(pieces) <= MOST_ROWS else None)
    return _cut(group, axis, pieces)


def _tables(group: Group, axis: Axis) -> Iterator[torch.Tensor]:
    """Positions that are no linear function of the axis, and conditions, which depend on it
    alone."""
    for found in dict.fromkeys(_candidates(group)):
        table = _table(found)
        if table is not None and table[0] is axis:
            yield table[1]


def _candidates(group: Group) -> Iterator[Atom | Value]:
    for nest in group.nests:
        for index in all_indices(nest):
            yield from (atom for atom, _ in index.terms if not isinstance(atom, Axis))
        for value in store_values(nest):
            if isinstance(value, Op) and is_condition(value):
                yield value


def _pieces(tables: Sequence[torch.Tensor], size: int) -> list[_Piece] | None:
    """The few pieces of the axis in which every table goes on linearly, at the smallest period at
    which there are such."""
    for period in PERIODS:
        if size < period * LEAST_TURNS:
            return None
        pieces = list(_runs(tables, period, size))
        short = sum(p.period * p.turns for p in pieces if p.turns < LEAST_TURNS)
        if len(pieces) <= MOST_PIECES and short <= max(MOST_ENDS, size // MOST_ENDS):
            return pieces
    return None


def _runs(tables: Sequence[torch.Tensor], period: int, size: int) -> Iterator[_Piece]:
    """The longest pieces, each from where the one before ends."""
    steps = [table[period:].long() - table[:-period].long() for table in tables]
    still, equal = torch.ones(2, size - period, dtype=torch.bool).unbind()
    for table, step in zip(tables, steps, strict=True):
        equal[1:] &= step[1:] == step[:-1]
        if table.dtype == torch.bool:
            still &= step == 0
    goes_on, starts = (still & equal).tolist(), still.tolist()
    start = 0
    while start < size:
        end = start
        if start < len(starts) and starts[start]:
            end = start + 1
            while end < len(goes_on) and goes_on[end]:
                end += 1
        turns = 1 + (end - start) // period
        yield _Piece(start, period, turns) if turns > 1 else _Piece(start, 1, 1)
        start += period * turns if turns > 1 else 1


def _piece(nest: Nest, cut: Axis, piece: _Piece) -> Nest:
    """The nest at some positions of an axis, which becomes an inner one with those behind it: all
    elements of a period are stored in one turn."""
    turn = sizes.atom_index(Axis(cut.number, piece.turns), piece.period)
    space, behind = nest.space[: cut.number], nest.space[cut.number + 1 :]
    stores: list[Store] = []
    for phase in range(piece.period):
        place = sizes.add(turn, sizes.const(piece.start + phase))

        def rewrite(axis: Atom, place: Index = place) -> Index:
            return place if axis is cut else sizes.atom_index(axis)

        stores.extend(rebuild(nest, space, (piece.turns, *behind), rewrite).stores)
    return Nest(space, (piece.turns, *behind), tuple(stores), nest.origins)
