"""What a group reads and writes in memory, and along which of its axes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from ..ir import Buffer, Load, Nest, atoms, nest_loads
from ..poly import hint
from ..sizes import Atom, Axis, Index, Mod

VECTOR = 16  # bytes of one load


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
