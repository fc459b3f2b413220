"""Graph inputs written where they lie.

AOTAutograd ends a graph with copies of new values into the inputs that it overwrites, and the
lowering makes a nest of each. This stage has nests store into the input what they change of it,
directly, where nothing reads the old content later, and puts the writes where a call that fails can
be done again in eager: after everything that may raise, unless doing them twice gives the same.
"""

import dataclasses
from collections import Counter
from collections.abc import Iterable
from math import prod

from . import sizes
from .axes import axes_of, canonical
from .ir import (
    Buffer,
    IndexValue,
    Indirect,
    Load,
    Nest,
    Store,
    Value,
    ValueRewriter,
    atoms,
    has_positions,
    holds_positions,
    indices_of,
    map_indirect,
    nest_loads,
    walk,
)
from .kernel_graph import ExternCall, Item, Unit
from .positions import computed
from .regions import changed, folded
from .sizes import Axis
from .storage import given_buffers, written


def in_place(unit: Unit) -> Unit:
    """The unit with its writes to inputs last, or where their new content is first needed."""
    given = given_buffers(unit)
    writes = any(isinstance(item, Nest) and written(item) & given for item in unit.items)
    return _Writes(unit, given).run() if writes else unit


def reads(item: Item) -> set[Buffer]:
    if isinstance(item, ExternCall):
        return set(item.reads())
    assert isinstance(item, Nest)
    return {load.buffer for load in nest_loads(item)}


def picks(value: Value) -> bool:
    """Whether the value is loaded from a position that may be out of range."""
    return any(holds_positions(indices_of(below)) for below in walk(value))


def may_raise(item: Item) -> bool:
    return not isinstance(item, Nest) or has_positions(item)


@dataclasses.dataclass(frozen=True)
class _Update:
    """`copy` writes the whole of `result`, which `makers` fill, to the input `target`."""

    copy: Nest
    target: Buffer
    result: Buffer
    makers: tuple[Nest, ...]


class _Writes:
    def __init__(self, unit: Unit, given: set[Buffer]) -> None:
        self.unit, self.given = unit, given
        self.layouts = dict(unit.layouts)
        copies, self.calls, self.items = list[Nest](), list[ExternCall](), list[Item]()
        for item in unit.items:
            if not written(item) & given:
                self.items.append(item)
            elif isinstance(item, ExternCall):
                self.calls.append(item)
            else:
                assert isinstance(item, Nest)
                copies.append(item)
        self.tail: list[Item] = []  # of the items: those after everything that may raise
        self.again: set[Buffer] = set()  # inputs that are written before something that may raise
        self.ends: list[Nest] = []
        known = len(self.items)
        self._order([[copy] if self._update(copy) else self._safe(copy) for copy in copies])
        self._raise_early(known)

    def run(self) -> Unit:
        for copy in list(self.ends):
            update = self._update(copy)
            if update is not None and not self._direct(update):
                place = self.ends.index(copy)
                self.ends[place : place + 1] = self._safe(copy)
        body = [item for item in self.items if item not in self.tail]
        late = [item for item in self.items if item in self.tail]
        items = (*body, *late, *self.ends, *self.calls)
        return self.unit.replace(items=items, layouts=self.layouts)

    def _order(self, waiting: list[list[Nest]]) -> None:
        """Writes that read what another one writes come before it; of a ring, the others read
        first."""
        readers = _readers(waiting)
        while waiting:
            ready = next((u for u in waiting if not _is_read(u, readers)), None)
            if ready is None:
                ready = waiting[0]
                waiting = [u if u is ready else [self._own_write(n) for n in u] for u in waiting]
                readers = _readers(waiting)
            waiting = [update for update in waiting if update is not ready]
            readers.subtract(_read_by(ready))
            self.ends += ready

    # a write by itself

    def _safe(self, nest: Nest) -> list[Nest]:
        """The nest as nests that store what it changes, may not raise and read nothing that they
        have written; what they need is computed by items before them."""
        made = []
        for number, part in enumerate(changed(folded(nest))):
            if picks(part.stores[0].value) or _rereads(part, alone=number == 0):
                part = self._own_write(part)
            if holds_positions([part.stores[0].index]):
                part = self._checked(part)
            made.append(part)
        return made

    def _own_write(self, nest: Nest) -> Nest:
        """The write of a value that an item of its own computes."""
        store = nest.stores[0]
        axes = nest.axes[: len(nest.space)] if nest.is_reduction else nest.axes
        value = self._computed(store.value, axes, nest)
        stores = (Store(store.buffer, store.index, value, store.combine),)
        return Nest(tuple(axis.size for axis in axes), (), stores, nest.origins)

    def _checked(self, nest: Nest) -> Nest:
        """The write with the positions of its store checked before."""
        store = nest.stores[0]
        checked: dict[Value, Value] = {}
        for atom in atoms(store.index):
            if isinstance(atom, Indirect):
                position = IndexValue(sizes.atom_index(atom))
                axes = tuple(axis for axis in nest.axes if axis in axes_of(position))
                checked[atom.value] = self._computed(position, axes, nest)
        index = map_indirect(store.index, lambda value: checked[value])
        stores = (Store(store.buffer, index, store.value, store.combine),)
        return Nest(nest.space, nest.inner, stores, nest.origins)

    def _computed(self, value: Value, axes: tuple[Axis, ...], of: Nest) -> Load:
        """A load of the value at each point of `axes`, from a new buffer that an item fills."""
        inner = of.axes[len(of.space) :] if of.is_reduction else ()
        device = self.layouts[of.stores[0].buffer].device
        made, load = computed(value, axes, inner, of.origins, device, self.layouts)
        self.items.append(canonical(made))
        return load

    def _raise_early(self, known: int) -> None:
        """Put those of the items that come after the `known` ones and may raise where what they
        read is there: eager may raise there before what else the call writes."""
        late, self.items = self.items[known:], self.items[:known]
        for item in late:
            place = len(self.items)
            if may_raise(item):
                needed = reads(item)
                while place and needed.isdisjoint(written(self.items[place - 1])):
                    place -= 1
            self.items.insert(place, item)

    # a result that takes the place of the input

    def _update(self, copy: Nest) -> _Update | None:
        store, load = copy.stores[0], copy.stores[0].value
        if not isinstance(load, Load) or load.mask is not None or load.index is not store.index:
            return None
        result, target = load.buffer, store.buffer
        makers = [item for item in self.items if result in written(item)]
        nests = tuple(item for item in makers if isinstance(item, Nest) and len(item.stores) == 1)
        pinned = result in self.given or result in self.unit.outputs_buffers()
        if pinned or not nests or len(nests) < len(makers) or result.size != target.size:
            return None
        if prod(copy.space) != target.size:  # the rest of the result is not the input's
            return None
        return _Update(copy, target, result, nests)

    def _direct(self, update: _Update) -> bool:
        """Has the makers of the result store into the input, if that is right."""
        after = self._descendants(update)
        late = [item for item in self.ends if item is not update.copy]
        if self._is_aliased(update) or not _reads_itself_only(update):
            return False
        if any(update.target in reads(item) for item in (*after, *late, *self.calls)):
            return False
        repeatable = any(map(may_raise, after))
        if repeatable and not self._is_repeatable(update):
            return False
        moved = [*after, *update.makers]
        if not repeatable and (self._reads_old(moved) or self._is_read_behind(update)):
            return False
        self.ends.remove(update.copy)
        self._store_directly(update, () if repeatable else (*after, *update.makers))
        if repeatable:
            self.again.add(update.target)
        return True

    def _descendants(self, update: _Update) -> list[Item]:
        """Items that need the result, directly or not, or write more to what such an item makes."""
        made, found = {update.result}, list[Item]()
        for item in self.items:
            if item not in update.makers and (reads(item) | written(item)) & made:
                found.append(item)
                made |= written(item)
        return found

    def _is_aliased(self, update: _Update) -> bool:
        calls = [item for item in self.items if isinstance(item, ExternCall) and item.aliases]
        return any({update.result, update.target} & reads(call) for call in calls)

    def _reads_old(self, moved: Iterable[Item]) -> bool:
        """Whether something that moves to the end reads an input that is written before it
        there."""
        fresh = [item for item in moved if item not in self.tail]
        stored = {buffer for item in self.tail for buffer in written(item)} & self.given
        return any(reads(item) & (stored | self.again) for item in fresh)

    def _is_read_behind(self, update: _Update) -> bool:
        """Whether something of the end that comes behind the makers reads what they overwrite."""
        first = min(self.items.index(maker) for maker in update.makers)
        behind = (item for item in self.items[first:] if item not in update.makers)
        return any(item in self.tail and update.target in reads(item) for item in behind)

    def _is_repeatable(self, update: _Update) -> bool:
        """Whether the makers give the same when they run again on what they wrote, and nobody else
        reads the old content, of which nothing would be left for the call in eager."""
        others = [item for item in self.items if item not in update.makers]
        if any(update.target in reads(item) for item in others):
            return False
        if any(maker in self.tail for maker in update.makers):
            return False
        return not (self._sources(update) & (self.again | {update.target}))

    def _sources(self, update: _Update) -> set[Buffer]:
        """Inputs whose content decides what the makers change."""
        wanted: set[Buffer] = set()
        for maker in update.makers:
            for part in changed(folded(_renamed(maker, update.result, update.target))):  # type: ignore[arg-type]
                wanted |= reads(part)
                if part.stores[0].combine is not None:
                    wanted.add(update.target)
        for item in reversed(self.items):
            if written(item) & wanted and item not in update.makers:
                wanted |= reads(item)
        return wanted & self.given

    def _store_directly(self, update: _Update, late: Iterable[Item]) -> None:
        known, late = self.tail, [*late, *self.tail]
        items, self.items, self.tail = self.items, [], []
        for item in items:
            start = len(self.items)
            if item in update.makers:
                assert isinstance(item, Nest)
                renamed = _renamed(item, update.result, update.target)
                assert isinstance(renamed, Nest)
                stores = self._safe(renamed)
                self.tail += self.items[start:] if item in known else []
            else:
                stores = [_renamed(item, update.result, update.target)]  # type: ignore[list-item]
            self.items += stores
            self.tail += stores if item in late else []
        self.ends = [_renamed(nest, update.result, update.target) for nest in self.ends]  # type: ignore[misc]
        self.calls = [_renamed(call, update.result, update.target) for call in self.calls]  # type: ignore[misc]


def _read_by(update: list[Nest]) -> set[Buffer]:
    return {buffer for nest in update for buffer in reads(nest)}


def _readers(updates: list[list[Nest]]) -> Counter[Buffer]:
    """How many of the updates read each buffer."""
    return Counter(buffer for update in updates for buffer in _read_by(update))


def _is_read(update: list[Nest], readers: Counter[Buffer]) -> bool:
    """Whether another one of the updates, of which these are the readers, reads what this one
    writes."""
    own = _read_by(update)
    return any(readers[b] > (b in own) for b in {nest.stores[0].buffer for nest in update})


def _rereads(nest: Nest, alone: bool) -> bool:
    """Whether the nest reads elements of its buffer that it, or one before it, may have written."""
    store = nest.stores[0]
    own = [load for load in nest_loads(nest) if load.buffer is store.buffer]
    return any(not alone or load.index is not store.index for load in own)


def _reads_itself_only(update: _Update) -> bool:
    """Whether the makers read nothing of the result, and of the input's old content the first of
    them only the element that it stores."""
    for number, maker in enumerate(update.makers):
        store = maker.stores[0]
        for load in nest_loads(maker):
            own = number == 0 and load.index is store.index
            if load.buffer is update.result or (load.buffer is update.target and not own):
                return False
    return True


def _renamed(item: Item, old: Buffer, new: Buffer) -> Item:
    if isinstance(item, ExternCall):
        return item.replace(lambda ref: ref.over(new) if ref.buffer is old else ref)
    assert isinstance(item, Nest)
    rewriter = _Renamer(old, new)
    stores = tuple(
        Store(
            new if store.buffer is old else store.buffer,
            rewriter.index(store.index),
            rewriter(store.value),
            store.combine,
        )
        for store in item.stores
    )
    return Nest(item.space, item.inner, stores, item.origins)


class _Renamer(ValueRewriter):
    def __init__(self, old: Buffer, new: Buffer) -> None:
        super().__init__()
        self.old, self.new = old, new

    def leave(self, value: Value) -> Value:
        if isinstance(value, Load) and value.buffer is self.old:
            return Load(self.new, value.index, value.mask)
        return value
