"""Kernels that are alike but for their buffers and, where they are flat loops, their length: those
between two library calls become one, which runs them one after the other. An optimizer's step has
one such kernel for each parameter.
"""

from collections.abc import Iterable

from . import sizes
from .ir import (
    Batch,
    Buffer,
    Group,
    IndexValue,
    Load,
    Nest,
    Store,
    Value,
    ValueRewriter,
    accesses,
    has_positions,
)
from .kernel_graph import Item, Unit
from .polynomials import Size, Var, is_known, variable
from .sizes import Atom, Axis, Index
from .storage import touched, written

MAX_KERNELS_PER_BATCH = 1024  # kernels of one batch
LONG = 1 << 20  # what a kernel for any length is made for


def batch(unit: Unit) -> Unit:
    items: list[Item] = []
    run: list[Group] = []
    for item in unit.items:
        if isinstance(item, Group):
            run.append(item)
        else:
            items.extend((*_batched(run, unit), item))
            run = []
    return unit.replace(items=(*items, *_batched(run, unit)))


def _batched(run: list[Group], unit: Unit) -> list[Item]:
    """The groups with alike ones together: a group moves up to the last of its kind if it needs
    nothing of what stands in between, and changes nothing of it. What overwrites an input stays
    behind what may raise."""
    if len(run) < 2:
        return list(run)
    places: list[list[Group]] = []
    kinds: dict[object, int] = {}
    given, raising = unit.given_buffers(), -1
    last_use: dict[Buffer, int] = {}
    last_write: dict[Buffer, int] = {}
    for group in run:
        kind = like(group), *{unit.layouts[buffer].device for buffer in touched(group)}
        uses, writes = touched(group), written(group)
        earliest = max((last_write.get(buffer, 0) for buffer in uses), default=0)
        earliest = max((earliest, *(last_use.get(buffer, 0) for buffer in writes)))
        if not given.isdisjoint(writes):
            earliest = max(earliest, raising + 1)
        where, may_raise = kinds.get(kind, -1), any(map(has_positions, group.nests))
        if may_raise or where < earliest or len(places[where]) == MAX_KERNELS_PER_BATCH:
            where = len(places)
            places.append([])
            raising = where if may_raise else raising
        kinds[kind] = where
        places[where].append(group)
        last_use.update((buffer, max(where, last_use.get(buffer, 0))) for buffer in uses)
        last_write.update((buffer, where) for buffer in writes)
    return [_item(place) for place in places]


def _item(groups: list[Group]) -> Group | Batch:
    return groups[0] if len(groups) == 1 else Batch(groups[0].name, tuple(groups))


def like(group: Group) -> Group:
    """The group with names by order of appearance, and a variable for its length where its loops
    have one axis: the same for groups that are alike."""
    renamed = {
        b: Buffer(f"memory{k}", b.dtype, b.size, b.scope) for k, b in enumerate(_buffers(group))
    }
    length = length_of(group)
    if length is None:
        return _changed(group, renamed, {})
    var = variable(Var("length", LONG, 1))
    renamed = {
        old: Buffer(new.name, new.dtype, var if new.size == length else new.size, new.scope)
        for old, new in renamed.items()
    }
    return _changed(group, renamed, {Axis(0, length): Axis(0, var)})


def global_buffers(groups: Iterable[Group]) -> list[tuple[Buffer, ...]]:
    """For each group its buffers in memory, in the order of their names in `like`."""
    return [tuple(b for b in _buffers(group) if b.scope == "global") for group in groups]


def _buffers(group: Group) -> tuple[Buffer, ...]:
    return tuple(dict.fromkeys(x.buffer for nest in group.nests for x in accesses(nest)))


def length_of(group: Group) -> Size | None:
    """The size of the one axis of all loops, if all accesses use it as it is, or not at all."""
    (length, *others) = {*group.space, *(n for nest in group.nests for n in nest.inner)} or {0}
    depth = max(len(nest.axes) for nest in group.nests)
    if others or depth != 1 or not is_known(length) or length < 2:
        return None
    flat = sizes.atom_index(Axis(0, length))
    indices = [x.index for nest in group.nests for x in accesses(nest)]
    plain = all(index is flat or not index.terms for index in indices)
    values = [value for nest in group.nests for value in nest.values]
    if not plain or any(isinstance(value, IndexValue) for value in values):
        return None
    return length


def _changed(group: Group, renamed: dict[Buffer, Buffer], axes: dict[Axis, Axis]) -> Group:
    sizes_of = {old.size: new.size for old, new in axes.items()}
    rewriter = _Renamer(renamed, axes)

    def changed(shape: tuple[Size, ...]) -> tuple[Size, ...]:
        return tuple(sizes_of.get(size, size) for size in shape)

    nests = []
    for nest in group.nests:
        stores = tuple(
            Store(renamed[s.buffer], rewriter.index(s.index), rewriter(s.value), s.combine)
            for s in nest.stores
        )
        nests.append(Nest(changed(nest.space), changed(nest.inner), stores))
    return Group("like", changed(group.space), tuple(nests))


class _Renamer(ValueRewriter):
    def __init__(self, renamed: dict[Buffer, Buffer], axes: dict[Axis, Axis]) -> None:
        super().__init__()
        self.renamed, self.axes = renamed, axes

    def _axis(self, atom: Atom) -> Index:
        return sizes.atom_index(self.axes.get(atom, atom))  # type: ignore[call-overload]

    def index(self, index: Index) -> Index:
        return super().index(sizes.replace(index, self._axis) if self.axes else index)

    def leave(self, value: Value) -> Value:
        if not isinstance(value, Load):
            return value
        return Load(self.renamed[value.buffer], value.index, value.mask)
