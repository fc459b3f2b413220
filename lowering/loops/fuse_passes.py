"""Nests of a kernel that run over the same axes, in one pass: what several of them read is read
once."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import product

from . import sizes
from .ir import Buffer, Load, Nest, Op, Store, Value, ValueRewriter, nest_loads, scatters
from .sizes import Index

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
    if scatters(nest):
        return None
    found = None
    for where in range(len(made) - 1, -1, -1):
        if _fit(made[where], nest) and _share(made[where], nest):
            found = where
        if _depend(made[where], nest):
            break
    return found


def _share(one: Nest, two: Nest) -> bool:
    """Whether they read the same memory, in loops of their own, or compute the same."""
    if two.inner:
        return bool(_reads(one) & _reads(two))
    known = set(one.values)
    return any(isinstance(value, Op) and value in known for value in two.values)


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
    if written & _reads(two) or writes & _reads(one):
        return True
    pairs = product(one.stores, two.stores) if written & writes else ()
    return not all(is_disjoint(store, other) for store, other in pairs)


def _reads(nest: Nest) -> set[Buffer]:
    return {load.buffer for load in nest_loads(nest)}


def _writes(nests: Iterable[Nest]) -> set[Buffer]:
    return {store.buffer for nest in nests for store in nest.stores}


def _joined(one: Nest, two: Nest) -> Nest:
    origins = tuple(dict.fromkeys(one.origins + two.origins))
    return Nest(one.space, one.inner, one.stores + two.stores, origins)


class _Known(ValueRewriter):
    """Values in place of the loads of local buffers that hold them."""

    def __init__(self, known: Mapping[Buffer, Value]) -> None:
        super().__init__()
        self.known = known

    def leave(self, value: Value) -> Value:
        return self.known.get(value.buffer, value) if isinstance(value, Load) else value


def at_once(nests: Sequence[Nest]) -> tuple[Nest, ...]:
    """Pointwise nests over the same axes in one loop, where what one stores and another reads at
    the same point stays in a register: memory that was stored under a mask is long to read back."""
    made: list[Nest] = []
    for nest in nests:
        joined = _after(made[-1], nest) if made else None
        made[-1 if joined else len(made) :] = [joined or nest]
    return tuple(made)


def _after(one: Nest, two: Nest) -> Nest | None:
    """Both in one loop; None where the second reads or overwrites what lies at other points."""
    if one.axes != two.axes or one.inner or two.inner or one.is_reduction or two.is_reduction:
        return None
    if scatters(one) or scatters(two) or any(s.combine for s in one.stores + two.stores):
        return None
    stored = {(store.buffer, store.index): store.value for store in one.stores}
    if not any(
        load.mask is None and (load.buffer, load.index) in stored for load in nest_loads(two)
    ):
        return None
    rewriter = _Stored(stored)
    stores = [Store(s.buffer, s.index, rewriter(s.value), s.combine) for s in two.stores]
    rewritten = Nest(two.space, two.inner, tuple(stores), two.origins)
    if _depend(one, rewritten) or len(one.stores) + len(stores) > MOST_STORES:
        return None
    joined = _joined(one, rewritten)
    return joined if len(joined.values) <= MOST_VALUES else None


class _Stored(ValueRewriter):
    """Values in place of the loads of what was stored there."""

    def __init__(self, stored: Mapping[tuple[Buffer, Index], Value]) -> None:
        super().__init__()
        self.stored = stored

    def leave(self, value: Value) -> Value:
        if isinstance(value, Load) and value.mask is None:
            return self.stored.get((value.buffer, value.index), value)
        return value


def without_locals(nests: Sequence[Nest]) -> tuple[Nest, ...] | None:
    """Pointwise nests that compute what they have in local buffers where they read it, so that each
    may run over its own loops; None if something that this reads is written in between."""
    known, made = dict[Buffer, Value](), list[Nest]()
    for nest in nests:
        rewriter = _Known(dict(known))
        stores = [
            Store(s.buffer, rewriter.index(s.index), rewriter(s.value), s.combine)
            for s in nest.stores
        ]
        known |= {store.buffer: store.value for store in stores if store.buffer.scope == "local"}
        kept = tuple(store for store in stores if store.buffer.scope != "local")
        made += [Nest(nest.space, nest.inner, kept, nest.origins)] if kept else []
    read = {x.buffer for value in known.values() for x in value.leaves if isinstance(x, Load)}
    return None if read & _writes(nests) else share_passes(made)


def is_disjoint(store: Store, other: Store) -> bool:
    """Whether two nests store nowhere in the same place."""
    return store.buffer is not other.buffer or sizes.never_equal(store.index, other.index)
