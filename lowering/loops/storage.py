"""Where buffers live: which are tensors of their own, which share one arena, and when each dies.

Results and whatever an extern call touches are tensors, but for what library calls read and write
wherever it is (`placeable`), and large buffers, for which memory serves that others let go of.
Everything else is a byte range of one arena, shared by buffers whose lifetimes do not meet. A
result never shares its memory with anything that lives: it outlives the call.
"""

import dataclasses
from bisect import bisect_left, insort
from collections.abc import Callable, Container, Iterable, Iterator
from heapq import merge
from itertools import pairwise
from typing import Any

from .ir import Buffer, Group, Nest, accesses, holds_positions, part_height, walk
from .kernel_graph import ExternCall, Item, Ref, Unit, leaves
from .polynomials import Size, Var, at_least, divided, hint, is_known, variable

ALIGNMENT = 64
MIN_STANDALONE_BYTES = 1 << 20  # bytes from which a buffer is a tensor of its own


@dataclasses.dataclass(frozen=True)
class Storage:
    """`arena` gives byte offsets; `arena_size` its bytes; `reuse` maps a tensor to the dead one
    whose memory it takes over, `asks` to an input that dies, whose memory it takes if nothing else
    holds that; `dies` lists, for each item, the tensors that are not needed after it; `ahead`:
    those that have memory before the library call that fills them."""

    arena: dict[Buffer, Size]
    arena_size: Size
    reuse: dict[Buffer, Buffer]
    dies: tuple[tuple[Buffer, ...], ...]
    variables: tuple[Var, ...] = ()  # of the arena's offsets
    asks: dict[Buffer, Buffer] = dataclasses.field(default_factory=dict)
    ahead: frozenset[Buffer] = frozenset()

    def may_alias(self) -> set[Buffer]:
        """Buffers that a kernel may read and another that it writes there."""
        return {b for pair in (*self.reuse.items(), *self.asks.items()) for b in pair}


def touched(item: Item) -> set[Buffer]:
    """Buffers in memory that the item reads or writes."""
    if isinstance(item, ExternCall):
        return {*item.reads(), *item.writes()}
    nests: tuple[Nest, ...] = (item,) if isinstance(item, Nest) else item.nests
    return {x.buffer for nest in nests for x in accesses(nest) if x.buffer.scope == "global"}


def written(item: Item) -> set[Buffer]:
    if isinstance(item, ExternCall):
        return set(item.writes())
    nests: tuple[Nest, ...] = (item,) if isinstance(item, Nest) else item.nests
    return {
        store.buffer for nest in nests for store in nest.stores if store.buffer.scope == "global"
    }


def plan(
    unit: Unit,
    use_arena: bool,
    placeable: Container[Buffer] = (),
    library: Container[Callable[..., Any]] = (),
) -> Storage:
    """library: extern calls whose results are memory of their own."""
    first, last = lifetimes(unit)
    given = given_buffers(unit)
    outputs, externs = unit.outputs_buffers(), unit.extern_buffers()
    own = {b for b in first if b not in given}
    alone = {
        b for b in own if b in outputs or hint(bytes_of(b)) >= MIN_STANDALONE_BYTES or not use_arena
    }
    shared = {b for b in own - alone if b not in externs or b in placeable}
    wanted = [
        (first[b], last[b], bytes_of(b), b)
        for b in sorted(shared, key=lambda b: (first[b], b.name))
    ]
    arena, size = pack([entry for entry in wanted if is_known(entry[2])])
    more, size, variables = pack_slots([entry for entry in wanted if not is_known(entry[2])], size)
    owned = own - shared
    reuse = taken_over(
        unit, owned if use_arena else owned - outputs, first, last, library, use_arena
    )
    asks = _inputs_taken_over(unit, owned - set(reuse), last) if use_arena else {}
    made_there = {
        b for b in owned & externs if b in placeable and hint(bytes_of(b)) >= MIN_STANDALONE_BYTES
    }
    ahead = frozenset(b for b in made_there if use_arena)
    ends: list[list[Buffer]] = [[] for _ in unit.items]
    for buffer, place in last.items():
        kept = buffer in shared or buffer in outputs or buffer in unit.constants
        if place < len(ends) and not kept:
            ends[place].append(buffer)
    dies = tuple(tuple(sorted(names, key=lambda b: b.name)) for names in ends)
    return Storage(arena | more, size, reuse, dies, variables, asks, ahead)


def given_buffers(unit: Unit) -> set[Buffer]:
    """Inputs and constants: not ours to allocate."""
    return unit.given_buffers()


def lifetimes(unit: Unit) -> tuple[dict[Buffer, int], dict[Buffer, int]]:
    """Places of the first and last item that touch each buffer. What an extern call's result may
    alias lives as long as the result."""
    first: dict[Buffer, int] = {}
    last: dict[Buffer, int] = {}
    for place, item in enumerate(unit.items):
        for buffer in touched(item):
            first.setdefault(buffer, place)
            last[buffer] = place
    for item in reversed(unit.items):
        if isinstance(item, ExternCall) and item.aliases:
            end = max((last[b] for b in item.writes()), default=0)
            results = list(leaves(item.result))
            if any(
                r is not None and (not isinstance(r, Ref) or r.buffer in unit.outputs_buffers())
                for r in results
            ):
                end = len(unit.items)
            for buffer in item.reads():
                last[buffer] = max(last[buffer], end)
    return first, last


def bytes_of(buffer: Buffer) -> Size:
    return buffer.size * buffer.dtype.itemsize


def pack(wanted: Iterable[tuple[int, int, int, Buffer]]) -> tuple[dict[Buffer, int], int]:
    """Offsets for (first, last, bytes, buffer), large ones first, each at the lowest place free
    throughout its life."""
    placed: dict[Buffer, int] = {}
    ends: dict[tuple[int, int, int], int] = {}
    total, lives = 0, _Lives()
    for first, last, size, buffer in sorted(wanted, key=lambda entry: -entry[2]):
        size = -(-max(size, 1) // ALIGNMENT) * ALIGNMENT
        # below the one placed before with this life and size there is no room for another
        offset = ends.get((first, last, size), 0)
        for low, high in lives.meeting(first, last, offset):
            if low - offset >= size:
                break
            offset = max(offset, high)
        ends[first, last, size] = offset + size
        lives.add(first, last, offset, offset + size)
        placed[buffer] = offset
        total = max(total, offset + size)
    return placed, total


class _Lives:
    """Byte ranges with the items between which they are in use, found by `STRETCH` items at once:
    most live for a few. Of those that live throughout a stretch, and for what does, only the union
    counts."""

    STRETCH = 32

    def __init__(self) -> None:
        self._part: dict[int, list[tuple[int, int, int, int]]] = {}  # sorted
        self._throughout: dict[int, list[tuple[int, int]]] = {}  # unions, sorted
        self._ever: dict[int, list[tuple[int, int]]] = {}

    def add(self, first: int, last: int, low: int, high: int) -> None:
        for number, throughout in self._stretches(first, last):
            _unite(self._ever.setdefault(number, []), low, high)
            if throughout:
                _unite(self._throughout.setdefault(number, []), low, high)
            else:
                insort(self._part.setdefault(number, []), (low, high, first, last))

    def meeting(self, first: int, last: int, start: int) -> Iterator[tuple[int, int]]:
        """The ranges, or unions of them, from `start` on that are in use at some time between the
        two, the lowest first."""
        found: list[Iterable[tuple[int, int]]] = []
        for number, throughout in self._stretches(first, last):
            if throughout:
                found.append(_from(self._ever.get(number, []), start))
                continue
            found.append(_from(self._throughout.get(number, []), start))
            part = self._part.get(number, [])
            found.append(
                (low, high)
                for low, high, begin, end in part[bisect_left(part, (start,)) :]
                if begin <= last and first <= end
            )
        return merge(*found)

    def _stretches(self, first: int, last: int) -> Iterator[tuple[int, bool]]:
        """The numbers of the stretches that the life touches, and whether it fills each."""
        for number in range(first // self.STRETCH, last // self.STRETCH + 1):
            begin = number * self.STRETCH
            yield number, first <= begin and begin + self.STRETCH <= last + 1


def _unite(ranges: list[tuple[int, int]], low: int, high: int) -> None:
    """Add a range to a sorted union of ranges that do not touch."""
    start = bisect_left(ranges, (low,))
    if start and ranges[start - 1][1] >= low:
        start -= 1
        low = ranges[start][0]
    end = start
    while end < len(ranges) and ranges[end][0] <= high:
        high = max(high, ranges[end][1])
        end += 1
    ranges[start:end] = [(low, high)]


def _from(ranges: list[tuple[int, int]], start: int) -> list[tuple[int, int]]:
    """Those of a union that do not end before `start`."""
    place = bisect_left(ranges, (start,))
    return ranges[place - 1 if place and ranges[place - 1][1] > start else place :]


@dataclasses.dataclass
class _Slot:
    size: Size
    free_after: int
    buffers: list[Buffer]


def pack_slots(
    wanted: Iterable[tuple[int, int, Size, Buffer]], start: Size
) -> tuple[dict[Buffer, Size], Size, tuple[Var, ...]]:
    """As `pack` for (first, last, bytes, buffer) of sizes that a call knows, from offset `start`
    on: a buffer takes a slot that is certain to be large enough, or one that can grow since it is
    certain to be no larger."""
    slots: list[_Slot] = []
    for first, last, size, buffer in wanted:
        free = [slot for slot in slots if slot.free_after < first]
        slot = next((s for s in free if s.size == size), None)
        slot = slot or next(
            (s for s in free if at_least(s.size, size) or at_least(size, s.size)), None
        )
        if slot is None:
            slot = _Slot(size, last, [])
            slots.append(slot)
        if at_least(size, slot.size):
            slot.size = size
        slot.free_after = last
        slot.buffers.append(buffer)
    places: dict[Buffer, Size] = {}
    variables: list[Var] = []
    for slot in slots:
        places.update(dict.fromkeys(slot.buffers, start))
        start += _aligned(slot.size, variables)
    return places, start, tuple(variables)


def _aligned(size: Size, variables: list[Var]) -> Size:
    """The size rounded up, by a variable where that needs a division."""
    if divided(size, ALIGNMENT) is not None:
        return size
    formula = ("//", (size + (ALIGNMENT - 1), ALIGNMENT))
    known = next((var for var in variables if var.formula == formula), None)
    if known is None:
        known = Var(f"room{len(variables)}", -(-hint(size) // ALIGNMENT), 0, None, formula)
        variables.append(known)
    return variable(known) * ALIGNMENT


def taken_over(
    unit: Unit,
    tensors: set[Buffer],
    first: dict[Buffer, int],
    last: dict[Buffer, int],
    library: Container[Callable[..., Any]],
    in_turn: bool,
) -> dict[Buffer, Buffer]:
    """For a tensor that a kernel makes, one of the same dtype, size and device whose memory it
    takes: one that the kernel reads for the last time, each element where it stores it, or one that
    died when nothing else has been allocated since. To hold memory for longer would keep it from
    what comes in between. in_turn: kernels run their loops one after the other for each row."""
    makers = {b: item for item in unit.items if isinstance(item, ExternCall) for b in item.writes()}
    outputs = unit.outputs_buffers()
    ready = {b for b in tensors if b not in makers or makers[b].target in library}
    places = sorted(set(first.values()))
    ending: dict[int, list[Buffer]] = {}
    for buffer in sorted(ready - outputs, key=lambda b: b.name):
        ending.setdefault(last[buffer], []).append(buffer)
    chosen: dict[Buffer, Buffer] = {}
    seen, gone = _also_known(unit), set[Buffer]()
    for before, place in pairwise((-1, *places)):
        free = [b for k in range(before, place) for b in ending.get(k, ())]
        item = unit.items[place]
        made = (b for b in tensors if first[b] == place and b not in makers)
        for buffer in sorted(made, key=lambda b: b.name):
            known = [b for b in free if _kind(unit, b) == _kind(unit, buffer)]
            read = (b for b in ending.get(place, ()) if _kind(unit, b) == _kind(unit, buffer))
            read = (b for b in read if seen.get(b, set()).isdisjoint(touched(item)))
            known += (b for b in read if overwritable(item, b, buffer, in_turn))
            found = next((b for b in reversed(known) if b not in gone), None)
            if found is not None:
                chosen[buffer] = found
                gone.add(found)
    return chosen


def _also_known(unit: Unit) -> dict[Buffer, set[Buffer]]:
    """For what extern calls read whose results may be the same memory: those results."""
    found: dict[Buffer, set[Buffer]] = {}
    for item in reversed(unit.items):
        if isinstance(item, ExternCall) and item.aliases:
            results = set(item.writes())
            results.update(*(found.get(b, ()) for b in item.writes()))
            for buffer in item.reads():
                found.setdefault(buffer, set()).update(results)
    return found


def _inputs_taken_over(
    unit: Unit, tensors: set[Buffer], last: dict[Buffer, int]
) -> dict[Buffer, Buffer]:
    """For a large tensor that a kernel of a backward makes an input, saved for it, that the kernel
    reads for the last time, each element where it stores it."""
    if not unit.consumes:
        return {}
    given = {ref.buffer for ref in unit.inputs if isinstance(ref, Ref)} - unit.outputs_buffers()
    chosen: dict[Buffer, Buffer] = {}
    seen = _also_known(unit)
    for place, item in enumerate(unit.items):
        if not isinstance(item, Group):
            continue
        ending = {b for b in given if last.get(b) == place} & touched(item)
        ending -= {b for b in ending if not seen.get(b, set()).isdisjoint(touched(item))}
        for buffer in sorted(written(item) & tensors, key=lambda b: b.name):
            fit = (b for b in ending if _kind(unit, b) == _kind(unit, buffer))
            fit = (b for b in fit if hint(bytes_of(b)) >= MIN_STANDALONE_BYTES)
            known = sorted(
                (b for b in fit if overwritable(item, b, buffer, True)), key=lambda b: b.name
            )
            if known:
                chosen[buffer] = known[0]
                given.discard(known[0])
                ending.discard(known[0])
    return chosen


def overwritable(item: Item, old: Buffer, new: Buffer, in_turn: bool) -> bool:
    """Whether a kernel may store `new` where `old` is: one loop stores it, each element made from
    the element of the other, and loops before that, in turn for each row, read no others."""
    if not isinstance(item, Group) or part_height(item.nests) is not None:
        return False
    nests = [n for n in item.nests if old in n.reads | n.writes or new in n.reads | n.writes]
    *readers, nest = nests
    if any(old in n.writes or new in n.reads for n in nests) or nest.is_reduction or nest.scatters:
        return False
    in_turn &= len({n.space for n in nests}) == 1
    if any(new in n.writes for n in readers) or (readers and not in_turn):
        return False
    stores = [store for store in nest.stores if store.buffer is new]
    loads = [load for one in nests for load in one.loads if load.buffer is old]
    if len(stores) != 1 or stores[0].combine is not None:
        return False
    (store,) = stores
    same = all(load.index is store.index and load.mask is None for load in loads)
    last = next((load for load in nest.loads if load.buffer is old), None)
    later = (other.value for other in nest.stores[nest.stores.index(store) + 1 :])
    if last in set(walk(*later)):  # and may have been in no register until then
        return False
    fixed = not holds_positions((store.index,))
    return same and fixed and last is not None and last in set(walk(store.value))


def _kind(unit: Unit, buffer: Buffer) -> tuple[object, ...]:
    return buffer.dtype, buffer.size, unit.layouts[buffer].device


def overlaps(unit: Unit, storage: Storage) -> list[str]:
    """Pairs of live arena buffers that share bytes: there must be none."""
    first, last = lifetimes(unit)
    places = sorted(storage.arena.items(), key=lambda entry: (hint(entry[1]), entry[0].name))
    entries = [(hint(o), hint(o + bytes_of(b)), b) for b, o in places]
    found = []
    for i, (low, high, one) in enumerate(entries):
        for start, _, two in entries[i + 1 :]:
            if start >= high:
                break
            if (
                start < high
                and low <= start
                and first[one] <= last[two]
                and first[two] <= last[one]
                and hint(bytes_of(two))
            ):
                found.append(f"{one.name} and {two.name}")
    return found
