"""Loop nests over fewer axes, or over the same in another order."""

from __future__ import annotations

from collections.abc import Callable
from math import prod

from .. import sizes
from ..ir import RUNNING, AxisRewriter, Buffer, Group, Load, Nest, Store, store_values
from ..sizes import Atom, Axis, Index
from ..stages.axes import split_common


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
