"""Loops without divisions in them: what reads a merged axis by its remainder (a bias along rows)
gets two axes again."""

from collections.abc import Sequence

from .. import sizes
from ..ir import Group, Nest, atoms
from ..poly import Size, divided, hint, is_known
from ..sizes import Atom, Axis, FloorDiv, Index, Mod
from ..stages.axes import all_indices, rebuild

SHORTEST = 16  # iterations below which a vector loop is worth less than a division in a longer one


def without_divisions(group: Group) -> Group:
    """The group with the last axis split wherever an index divides it exactly: that of the space if
    all nests are pointwise over it, else the inner one of each pointwise nest."""
    if any(nest.inner or nest.is_reduction for nest in group.nests):
        return Group(group.name, group.space, tuple(map(_inner_split, group.nests)))
    while group.space and all(not nest.inner and not nest.is_reduction for nest in group.nests):
        divisor = _divisor(group.nests)
        if divisor is None:
            return group
        nests = tuple(_split(nest, divisor) for nest in group.nests)
        group = Group(group.name, nests[0].space, nests)
    return group


def _inner_split(nest: Nest) -> Nest:
    while nest.inner and not nest.is_reduction:
        divisor = _divisor((nest,))
        if divisor is None:
            return nest
        nest = _split(nest, divisor)
    return nest


def _divisor(nests: Sequence[Nest]) -> Size | None:
    """The largest number by which some index divides the last axis, which it divides exactly."""
    last = nests[0].axes[-1]
    found = {
        atom.divisor
        for nest in nests
        for index in all_indices(nest)
        for atom in atoms(index)
        if isinstance(atom, FloorDiv | Mod) and atom.base is sizes.atom_index(last)
    }
    usable = [
        d
        for d in found
        if hint(d) >= SHORTEST and d != last.size and divided(last.size, d) is not None
    ]
    return max(usable, key=lambda d: (is_known(d), hint(d)), default=None)


def _split(nest: Nest, divisor: Size) -> Nest:
    *before, last = nest.axes
    steps = divided(last.size, divisor)
    assert steps is not None  # `divisor` is one that divides
    outer = Axis(last.number, steps)
    inner = Axis(last.number + 1, divisor)
    whole = sizes.add(sizes.scale(sizes.atom_index(outer), divisor), sizes.atom_index(inner))

    def rewrite(axis: Atom) -> Index:
        return whole if axis is last else sizes.atom_index(axis)

    spaces = (*(axis.size for axis in before), outer.size, inner.size)
    count = len(nest.space) if nest.inner else len(spaces)
    return rebuild(nest, spaces[:count], spaces[count:], rewrite)
