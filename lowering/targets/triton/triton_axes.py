"""Loop nests over fewer axes, or over the same in another order; what they read and write in
memory, and along which axes."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from math import prod

from ...loops import sizes
from ...loops.axes import split_common
from ...loops.ir import (
    RUNNING,
    AxisRewriter,
    Buffer,
    Group,
    Load,
    Nest,
    Store,
    atoms,
    nest_loads,
    store_values,
)
from ...loops.polynomials import hint
from ...loops.sizes import Atom, Axis, Index, Mod

VECTOR = 16  # bytes of one load


def rewrite_nest(
    nest: Nest, space: tuple[int, ...], inner: tuple[int, ...], axis: Callable[[Atom], Index]
) -> Nest:
    """The nest over new axes: `axis` gives each old axis as an index of the new ones."""
    rewrite = AxisRewriter(axis)
    stores = tuple(
        Store(s.buffer, sizes.replace(s.index, axis), rewrite(s.value), s.combine)
        for s in nest.stores
    )
    return Nest(space, inner, stores, nest.origins)


def coordinates(flat: Axis, shape: tuple[int, ...]) -> tuple[Index, ...]:
    return (
        sizes.delinear(sizes.atom_index(flat), shape)
        if flat.size != 0
        else (sizes.ZERO,) * len(shape)
    )


def flatten(nest: Nest) -> Nest:
    """One space axis and one inner axis (none where there was none)."""
    x = Axis(0, prod(nest.space))
    r = Axis(1, prod(nest.inner))
    places = coordinates(x, nest.space) + coordinates(r, nest.inner)
    where = dict(zip(nest.axes, places, strict=True))
    inner = (r.size,) if nest.inner else ()

    def place(atom: sizes.Atom) -> sizes.Index:
        return where.get(atom, sizes.ZERO)  # type: ignore[call-overload, no-any-return]

    return rewrite_nest(nest, (x.size,), inner, place)


def permute_space(nest: Nest, order: tuple[int, ...]) -> Nest:
    """The nest with its space axes in another order; points of space are independent, so that any
    order is right."""
    space = tuple(nest.space[k] for k in order)
    new = {nest.axes[k]: sizes.atom_index(Axis(i, nest.space[k])) for i, k in enumerate(order)}
    return rewrite_nest(nest, space, nest.inner, lambda a: new.get(a) or sizes.atom_index(a))  # type: ignore[call-overload]


def split_space(group: Group) -> Group:
    """The group with every axis of its space split where an index divides it exactly: a merged axis
    hides what lies side by side in an operand that was read in another order."""
    nests = split_common(group.nests, len(group.space))
    return Group(group.name, nests[0].space, nests)


def absorb_inner(group: Group) -> Group:
    """A group without reductions over one inner space: its inner axes become parallel axes, if no
    element depends on what another point of inner stored."""
    inner = {nest.inner for nest in group.nests}
    if (
        len(inner) != 1
        or any(nest.is_reduction for nest in group.nests)
        or inner == {()}
        or any(store.combine in RUNNING for nest in group.nests for store in nest.stores)
        or _crosses(group)
    ):
        return group
    space = group.space + inner.pop()
    return Group(
        group.name, space, tuple(Nest(space, (), n.stores, n.origins) for n in group.nests)
    )


def _crosses(group: Group) -> bool:
    """Whether a nest loads what an earlier store of the group wrote at another index (or keeps in a
    local)."""
    stored: dict[Buffer, Index] = {}
    for nest in group.nests:
        for store in nest.stores:
            for value in store_values(Nest(nest.space, nest.inner, (store,))):
                if (
                    isinstance(value, Load)
                    and stored.get(value.buffer, value.index) is not value.index
                ):
                    return True
            stored[store.buffer] = (
                store.index if store.buffer.scope == "global" else sizes.const(-1)
            )
    return False


# ---- memory


def accesses(nest: Nest) -> Iterator[tuple[Buffer, Index]]:
    """Every global load and store of the nest."""
    for load in nest_loads(nest):
        if load.buffer.scope == "global":
            yield load.buffer, load.index
    for store in nest.stores:
        if store.buffer.scope == "global":
            yield store.buffer, store.index


def unit_axes(nests: Iterable[Nest]) -> Counter[Axis]:
    """Bytes of the accesses that run along each axis with stride 1; an access of one axis alone
    asks for no order."""
    weight: Counter[Axis] = Counter()
    for nest in nests:
        for buffer, index in set(accesses(nest)):
            axes = {atom for atom in atoms(index) if isinstance(atom, Axis)}
            for axis in _unit_terms(index):
                if len(axes) > 1:
                    weight[axis] += hint(buffer.size) * buffer.dtype.itemsize
    return weight


def _unit_terms(index: Index) -> Iterator[Axis]:
    for atom, factor in index.terms:
        if factor == 1 and isinstance(atom, Axis):
            yield atom
        elif factor == 1 and isinstance(atom, Mod):
            yield from _unit_terms(atom.base)


@dataclasses.dataclass(frozen=True)
class MemoryRun:
    """Where an access goes in memory: the axes that take it from element to element, innermost
    first, each of which steps over all of those before; and every axis that it depends on."""

    axes: tuple[Axis, ...]
    every: frozenset[Axis]


def runs(nests: Iterable[Nest]) -> Counter[MemoryRun]:
    """The bytes of the accesses in memory, by how they run; no run of their own have those that no
    axis takes to a neighbour, and those of one axis alone."""
    weight: Counter[MemoryRun] = Counter()
    for nest in nests:
        for buffer, index in set(accesses(nest)):
            run = _run(index)
            if run.axes and len(run.every) > 1:
                weight[run] += hint(buffer.size) * buffer.dtype.itemsize
    return weight


def _run(index: Index) -> MemoryRun:
    steps = {abs(hint(factor)): atom for atom, factor in index.terms if isinstance(atom, Axis)}
    axes, step = [], 1
    while (axis := steps.pop(step, None)) is not None:
        axes.append(axis)
        step *= hint(axis.size)
    return MemoryRun(tuple(axes), frozenset(a for a in atoms(index) if isinstance(a, Axis)))


def points_of_end(group: Group, count: int) -> dict[Axis, int]:
    """How many points of each axis of the space `count` points in a row have."""
    points = {}
    for axis in reversed(sizes.make_axes(group.space)):
        points[axis] = min(hint(axis.size), count)
        count = max(count // max(hint(axis.size), 1), 1)
    return points


def run_length(run: MemoryRun, points: dict[Axis, int]) -> int:
    """Neighbours in memory among these points of the axes, one of each that is not named."""
    length = 1
    for axis in run.axes:
        length *= points.get(axis, 1)
        if points.get(axis, 1) < hint(axis.size):
            break
    return length


def reads_vectors(nests: Iterable[Nest]) -> bool:
    """Whether all that changes from turn to turn of a loop comes 16 bytes at a time. What does not
    is slow to load ahead: 20 MB element by element took 176 µs on an H100, and 14 when read where
    it is used."""
    return all(
        _is_vector(load)
        for nest in nests
        for load in nest_loads(nest)
        if load.buffer.scope == "global"
        and any(axis in nest.axes[len(nest.space) :] for axis in atoms(load.index))
    )


def _is_vector(load: Load) -> bool:
    steps = [factor for atom, factor in load.index.terms if factor != 1] + [load.index.offset]
    runs = [atom for atom, factor in load.index.terms if factor == 1]
    size = load.buffer.dtype.itemsize
    wide = all(hint(n) * size % VECTOR == 0 for n in steps)
    return wide and len(runs) == 1 and _is_run(runs[0], size)


def _is_run(atom: Atom, size: int) -> bool:
    """Whether neighbours along it lie side by side, 16 bytes at least."""
    if isinstance(atom, Mod):
        return hint(atom.divisor) * size % VECTOR == 0 and atom.base.terms[0][1] == 1
    return isinstance(atom, Axis)
