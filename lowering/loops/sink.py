"""Parts that are stored side by side, then copied as a whole into another order, are stored in that
order at once: the gradients of a split, of which each part has a nest of its own, so that inlining
cannot do it."""

import itertools
from collections import Counter

from . import sizes
from .axes import canonical, rebuild
from .fuse_passes import is_disjoint
from .inline import stored_at
from .ir import RUNNING, Buffer, Load, Nest, Store, atoms, nest_loads
from .kernel_graph import ExternCall, Item, Ref, Unit, leaves
from .polynomials import divided, hint, is_known
from .sizes import Atom, Axis, FloorDiv, Index, Mod, Size


def sink(unit: Unit, scans: bool = False) -> Unit:
    """Every whole copy of a buffer that nothing else reads left out, where its writers can store
    into the copy. scans: those, too, of what a scan stores, such as backwards."""
    nests = [item for item in unit.items if isinstance(item, Nest)]
    copies = {nest: _forwards(nest) if scans else nest for nest in nests}
    copies = {nest: copy for nest, copy in copies.items() if is_copy(copy)}
    if not copies:
        return unit
    stores = _Stores(unit, scans)
    for nest, copy in copies.items():
        stores.sink(nest, copy)
    return unit.replace(items=stores.items())


def _forwards(nest: Nest) -> Nest:
    """The nest over axes that take its one load forwards through memory."""
    value = nest.stores[0].value
    if not isinstance(value, Load):
        return nest
    steps = {axis: sizes.coefficient(value.index, axis) for axis in nest.axes}
    back = {axis for axis, step in steps.items() if is_known(step) and step < 0}

    def rewrite(atom: Atom) -> Index:
        if not isinstance(atom, Axis) or atom not in back:
            return sizes.atom_index(atom)
        return sizes.add(sizes.const(atom.size - 1), sizes.atom_index(atom, -1))

    return rebuild(nest, nest.space, nest.inner, rewrite) if back else nest


def is_copy(nest: Nest) -> bool:
    """Whether the nest copies each element of one buffer once."""
    value = nest.stores[0].value
    if (
        len(nest.stores) != 1
        or nest.inner
        or nest.stores[0].combine is not None
        or not isinstance(value, Load)
    ):
        return False
    plain = (
        value.mask is None
        and value.index.offset == 0
        and all(isinstance(a, Axis) for a, _ in value.index.terms)
    )
    return (
        plain and is_known(value.buffer.size) and _fills(value.index, nest.axes, value.buffer.size)
    )


def _fills(index: Index, axes: tuple[Axis, ...], size: Size) -> bool:
    """Whether the index takes every number below `size` once."""
    expected: Size = 1
    for axis in sorted((a for a in axes if a.size != 1), key=lambda a: sizes.coefficient(index, a)):
        if not is_known(axis.size) or sizes.coefficient(index, axis) != expected:
            return False
        expected *= axis.size
    return expected == size


class _Stores:
    """The nests of a unit by what they store, while copies are left out."""

    def __init__(self, unit: Unit, scans: bool) -> None:
        nests = [item for item in unit.items if isinstance(item, Nest)]
        self._unit, self._scans = unit, scans
        self._now: dict[Nest, Nest | None] = dict(zip(nests, nests, strict=True))  # None: left out
        self._readers = Counter(b for nest in nests for b in {x.buffer for x in nest_loads(nest)})
        self._given = {getattr(ref, "buffer", None) for ref in unit.inputs} | set(unit.constants)
        self._pinned = unit.outputs_buffers() | unit.extern_buffers() | self._given
        self._writers: dict[Buffer, list[Nest]] = {}  # as they were
        for nest in self._now:
            for buffer in {store.buffer for store in nest.stores}:
                self._writers.setdefault(buffer, []).append(nest)

    def items(self) -> tuple[Item, ...]:
        now = (self._now[i] if isinstance(i, Nest) else i for i in self._unit.items)
        return tuple(item for item in now if item is not None)

    def sink(self, nest: Nest, copy: Nest) -> None:
        """Leave the nest, which is this copy, out, if those that store what it reads can store
        where it does."""
        load, target = copy.stores[0].value, copy.stores[0].buffer
        assert isinstance(load, Load)
        source, writers = load.buffer, self._writers.get(load.buffer, [])
        pinned = source in self._pinned or target in self._given
        if (
            self._readers[source] != 1
            or pinned
            or not writers
            or not self._is_elsewhere(nest, copy)
        ):
            return
        now = ((writer, self._now[writer]) for writer in writers)
        moved = {nest: one and _moved(one, copy, source, self._scans) for nest, one in now}
        if None in moved.values():
            return
        self._now.update(moved)
        self._now[nest] = None
        self._readers[source] = 0
        self._writers[target] = [*self._writers.get(target, []), *self._writers.pop(source)]

    def _is_elsewhere(self, nest: Nest, copy: Nest) -> bool:
        """Whether what else is stored beside the copy, as the parts of a concatenation, lies
        elsewhere, and nothing reads it before: the copy may then be made at another time."""
        (mine,) = copy.stores
        for item in itertools.takewhile(lambda each: each is not nest, self._unit.items):
            if mine.buffer in _read(item):
                return False
        now = (self._now[nest] for nest in self._writers[mine.buffer])
        stores = [store for nest in now if nest is not None for store in nest.stores]
        beside = [store for store in stores if store.buffer is mine.buffer]
        return sum(not is_disjoint(store, mine) for store in beside) == 1  # itself


def _read(item: Item) -> set[Buffer]:
    """What an item reads; of a call of the library, all that it is given."""
    if isinstance(item, Nest):
        return {load.buffer for load in nest_loads(item)}
    calls = leaves((item.args, item.kwargs)) if isinstance(item, ExternCall) else ()
    return {leaf.buffer for leaf in calls if isinstance(leaf, Ref)}


def _moved(nest: Nest, copy: Nest, source: Buffer, scans: bool) -> Nest | None:
    """The nest with its one store going where the copy puts the element; None if that takes
    divisions."""
    store, place, load = nest.stores[0], copy.stores[0], copy.stores[0].value
    scan = scans and store.combine in RUNNING
    plain = store.combine is None and not nest.inner
    if len(nest.stores) != 1 or nest.is_reduction or not (plain or scan):
        return None
    assert isinstance(load, Load)
    places = stored_at(Store(source, load.index, load), copy.axes, store.index)
    index = sizes.substitute(place.index, places)
    moved = Store(place.buffer, index, store.value, store.combine)
    made = Nest(nest.space, nest.inner, (moved,), nest.origins)
    made = made if scan else _without_divisions(made)
    return None if _divisions(made) or _steps(made) != _steps(nest) else canonical(made)


def _steps(nest: Nest) -> list[Size]:
    """How far apart a scan stores what it finds, in either direction."""
    inner, index = nest.axes[len(nest.space) :], nest.stores[0].index
    return [max(step, -step, key=hint) for step in (sizes.coefficient(index, a) for a in inner)]


def _divisions(nest: Nest) -> list[FloorDiv | Mod]:
    found = (atom for atom, _ in nest.stores[0].index.terms)
    return [atom for atom in found if isinstance(atom, FloorDiv | Mod)]


def _without_divisions(nest: Nest) -> Nest:
    """Axes that the store's index divides, split."""
    while True:
        cuts = [(axis, d) for atom in _divisions(nest) for axis, d in _cuts(nest, atom)]
        if not cuts:
            return nest
        axis, divisor = max(cuts, key=lambda cut: cut[1])
        nest = _split(nest, axis, divisor)


def _cuts(nest: Nest, division: FloorDiv | Mod) -> list[tuple[Axis, int]]:
    """Where an axis would have to be cut for the division to go away."""
    inside = [division, *(a for a in atoms(division.base) if isinstance(a, FloorDiv | Mod))]
    return [
        (axis, atom.divisor)
        for atom in inside
        for axis in nest.axes
        if atom.base is sizes.atom_index(axis)
        and isinstance(atom.divisor, int)
        and atom.divisor < axis.size
        if divided(axis.size, atom.divisor) is not None
    ]


def _split(nest: Nest, axis: Axis, divisor: int) -> Nest:
    spaces = [a.size for a in nest.axes]
    outer, inner = Axis(axis.number, divided(axis.size, divisor)), Axis(axis.number + 1, divisor)  # type: ignore[arg-type]
    whole = sizes.add(sizes.scale(sizes.atom_index(outer), divisor), sizes.atom_index(inner))

    def rewrite(old: Atom) -> Index:
        assert isinstance(old, Axis)
        later = old.number > axis.number
        return whole if old is axis else sizes.atom_index(Axis(old.number + later, old.size))

    return rebuild(
        nest,
        [*spaces[: axis.number], outer.size, inner.size, *spaces[axis.number + 1 :]],
        (),
        rewrite,
    )
