"""Vertical fusion by substitution: a pointwise value is computed where it is read instead of being
stored.

Nothing that is expensive is computed twice as often as before: a producer is inlined when it is
read by one nest at no more points than it has, or when it is cheap. Rounding to float16/bfloat16
stays where the program put it, so the result does not depend on what was inlined.
"""

from collections import Counter

from . import sizes
from .axes import canonical, points
from .ir import (
    Buffer,
    Load,
    Nest,
    Op,
    Rewriter,
    Select,
    Store,
    Value,
    nest_loads,
    rewrite_axes,
    store_values,
)
from .ops import OPS
from .poly import hint
from .sizes import Atom, Axis, Index
from .unit import Item, Unit
from .value_builders import const, op

CHEAP = 6  # a value that costs no more may be computed at every read
TWICE = 40  # and one that costs no more, in two nests
MOST_VALUES = 160  # of one nest: keeps compile time and registers in bounds
MOST_LOADS = 14


def inline(unit: Unit) -> Unit:
    """Every inlinable producer substituted into its readers, in one pass over the items."""
    readers = _readers(unit)
    pinned = unit.outputs_buffers() | unit.extern_buffers() | unit.given_buffers()
    writers = Counter(
        store.buffer for item in unit.items if isinstance(item, Nest) for store in item.stores
    )
    available: dict[Buffer, Nest] = {}
    items: list[Item] = []
    for item in unit.items:
        if not isinstance(item, Nest):
            items.append(item)
            continue
        nest = _inline_into(item, available, items)
        buffer = nest.stores[0].buffer
        if (
            buffer not in pinned
            and writers[buffer] == 1
            and _inlinable(nest, readers.get(buffer, []))
        ):
            available[buffer] = nest
        else:
            items.append(nest)
    return unit.replace(items=tuple(items))


def _readers(unit: Unit) -> dict[Buffer, list[Nest]]:
    readers: dict[Buffer, list[Nest]] = {}
    for item in unit.items:
        if isinstance(item, Nest):
            for buffer in {load.buffer for load in nest_loads(item)}:
                readers.setdefault(buffer, []).append(item)
    return readers


def cost(nest: Nest) -> int:
    """Rough instructions a point."""
    return sum(OPS[value.name].cost for value in store_values(nest) if isinstance(value, Op))


def _inlinable(nest: Nest, readers: list[Nest]) -> bool:
    if (
        nest.is_reduction
        or nest.inner
        or len(nest.stores) != 1
        or nest.stores[0].combine is not None
    ):
        return False
    loads = len(set(nest_loads(nest)))
    evaluations = max((hint(points(reader)) for reader in readers), default=0)
    price = cost(nest)
    if price <= CHEAP and loads <= 2:
        return True
    if evaluations > hint(points(nest)):
        return price <= CHEAP and loads <= 1
    return len(readers) == 1 or (len(readers) == 2 and price <= TWICE and loads <= 3)


def _inline_into(nest: Nest, available: dict[Buffer, Nest], items: list[Item]) -> Nest:
    """The nest with loads of available producers replaced by their values. One that would make it
    too large becomes an item."""
    for buffer in sorted(
        {load.buffer for load in nest_loads(nest)} & set(available), key=lambda b: b.name
    ):
        grown = _substitute(nest, available[buffer])
        if _bearable(grown):
            nest = grown
        else:
            items.append(available.pop(buffer))
    return canonical(nest)


def _bearable(nest: Nest) -> bool:
    values = list(store_values(nest))
    return (
        len(values) <= MOST_VALUES
        and len({v.buffer for v in values if isinstance(v, Load)}) <= MOST_LOADS
    )


def _substitute(nest: Nest, producer: Nest) -> Nest:
    rewriter = _Inliner(producer)
    stores = tuple(
        Store(s.buffer, rewriter.index(s.index), rewriter(s.value), s.combine) for s in nest.stores
    )
    origins = tuple(dict.fromkeys(producer.origins + nest.origins))
    return Nest(nest.space, nest.inner, stores, origins)


class _Inliner(Rewriter):
    """Replaces loads of the producer's buffer by its value at the point where the loaded element
    was stored."""

    def __init__(self, producer: Nest) -> None:
        super().__init__()
        self.store = producer.stores[0]
        self.axes = producer.axes

    def leave(self, value: Value) -> Value:
        if not isinstance(value, Load) or value.buffer is not self.store.buffer:
            return value
        places = stored_at(self.store, self.axes, value.index)
        made = rewrite_axes(self.store.value, lambda axis: places[axis])
        return made if value.mask is None else masked(made, value.mask)


def masked(value: Value, mask: Value) -> Value:
    """`value` where `mask`, else 0, with no load where it is false."""
    return Select(mask, _Masker(mask)(value), const(0, value.dtype))


class _Masker(Rewriter):
    def __init__(self, mask: Value) -> None:
        super().__init__()
        self.mask = mask

    def leave(self, value: Value) -> Value:
        if not isinstance(value, Load):
            return value
        return Load(
            value.buffer,
            value.index,
            self.mask if value.mask is None else op("and", self.mask, value.mask),
        )


def stored_at(store: Store, axes: tuple[Axis, ...], position: Index) -> dict[Atom, Index]:
    """The axis values at which a dense store writes flat `position`."""
    places: dict[Atom, Index] = {}
    span = store.buffer.size
    for axis in sorted(axes, key=lambda a: -hint(sizes.coefficient(store.index, a))):
        stride = sizes.coefficient(store.index, axis)
        quotient = sizes.floordiv(position, stride)
        places[axis] = quotient if stride * axis.size == span else sizes.mod(quotient, axis.size)
    return places
