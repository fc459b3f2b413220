"""Nests of a kernel that run over the same axes, in one pass: what several of them read is read
once."""

from collections.abc import Iterable, Sequence

from ..ir import Buffer, Nest, nest_loads, scatters

MOST_STORES = 8  # of one loop
MOST_VALUES = 120


def share_passes(nests: Sequence[Nest]) -> tuple[Nest, ...]:
    """The nests, each joined to the earliest one that it can run with."""
    made: list[Nest] = []
    for nest in nests:
        where = _partner(made, nest)
        if where is None:
            made.append(nest)
        else:
            made[where] = _joined(made[where], nest)
    return tuple(made)


def _partner(made: Sequence[Nest], nest: Nest) -> int | None:
    """The place of the nest that takes this one in: none between them may depend on it."""
    if not nest.inner or scatters(nest):
        return None
    found = None
    for where in range(len(made) - 1, -1, -1):
        if _fit(made[where], nest) and _reads(made[where]) & _reads(nest):
            found = where
        if _depend(made[where], nest):
            break
    return found


def _fit(one: Nest, two: Nest) -> bool:
    return (
        one.axes == two.axes
        and one.is_reduction == two.is_reduction
        and not scatters(one)
        and not _depend(one, two)
        and len(one.stores) + len(two.stores) <= MOST_STORES
        and len(one.values) + len(two.values) <= MOST_VALUES
    )


def _depend(one: Nest, two: Nest) -> bool:
    written, writes = _writes((one,)), _writes((two,))
    return bool(written & (_reads(two) | writes) or writes & _reads(one))


def _reads(nest: Nest) -> set[Buffer]:
    return {load.buffer for load in nest_loads(nest)}


def _writes(nests: Iterable[Nest]) -> set[Buffer]:
    return {store.buffer for nest in nests for store in nest.stores}


def _joined(one: Nest, two: Nest) -> Nest:
    origins = tuple(dict.fromkeys(one.origins + two.origins))
    return Nest(one.space, one.inner, one.stores + two.stores, origins)
