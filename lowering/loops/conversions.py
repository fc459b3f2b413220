"""Loops that make one value of another, element by element, such as conversions of weights and of
their gradients, stand next to each other: `batches` makes one kernel of those that are alike.

Those of inputs alone come before what needs the first of them, those that only results are made of
after the last, as many at a time as leave the peak of memory where it was.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import accumulate

from .batches import like
from .ir import Group, Nest, has_positions
from .kernel_graph import Item, Unit
from .polynomials import hint
from .storage import bytes_of, lifetimes, touched, written

MIN_BYTES_TO_SPLIT = 1 << 23  # bytes from which on a launch is little beside what a loop does
# Bytes of a run at most. What gradients are made of has died before; when inputs die is not known.
BEFORE, AFTER = (1 << 62, 1 << 24, 1 << 22), (1 << 24, 1 << 22)


def gather_conversions(unit: Unit) -> Unit:
    unit = _gathered(unit, _of_inputs(unit), BEFORE, first=True)
    return _gathered(unit, _of_results(unit), AFTER, first=False)


def _gathered(unit: Unit, found: list[int], limits: Sequence[int], *, first: bool) -> Unit:
    places = _alike(unit, found)
    most = _peak(unit, [1] * len(unit.items)) if len(places) > 1 else 0
    for limit in limits if most else ():
        runs = list(_runs(unit, places, limit))
        parts = _moved(unit.items, runs, first)
        made = unit.replace(items=tuple(item for part in parts for item in part))
        if _peak(made, list(map(len, parts))) <= most:
            return made
    return unit


def _runs(unit: Unit, places: Sequence[int], limit: int) -> Iterator[list[int]]:
    """The places in runs that touch so many bytes at most."""
    run: list[int] = []
    for place in places:
        if run and sum(_bytes(unit.items[k]) for k in (*run, place)) > limit:
            yield run
            run = []
        run.append(place)
    yield run


def _bytes(item: Item) -> int:
    return sum(hint(bytes_of(buffer)) for buffer in touched(item))


def _moved(
    items: Sequence[Item], runs: Sequence[Sequence[int]], first: bool
) -> list[Sequence[Item]]:
    """Each item by itself, but each run together, where its first, or its last, stood."""
    at = {run[0 if first else -1]: run for run in runs}
    gone = {place for run in runs for place in run}
    made: list[Sequence[Item]] = []
    for place, item in enumerate(items):
        if place in at:
            made.append([items[k] for k in at[place]])
        elif place not in gone:
            made.append([item])
    return made


def _of_inputs(unit: Unit) -> list[int]:
    """Places of conversions of inputs that nothing writes, and that no other loop over inputs
    reads: it would follow, and what it makes would be held."""
    writers = Counter(buffer for item in unit.items for buffer in written(item))
    ready = unit.given_buffers() - writers.keys()
    nests = [item for item in unit.items if isinstance(item, Nest) and item.reads <= ready]
    readers = Counter(buffer for nest in nests for buffer in nest.reads)
    return [
        place
        for place, nest in _conversions(unit)
        if nest.reads <= ready
        and all(readers[buffer] == 1 for buffer in nest.reads)
        and all(writers[buffer] == 1 for buffer in nest.writes)
    ]


def _of_results(unit: Unit) -> list[int]:
    """Places of conversions into results that nothing else reads or writes; not those of inputs,
    which would be held."""
    users = Counter(buffer for item in unit.items for buffer in touched(item))
    last_written = {b: place for place, item in enumerate(unit.items) for b in written(item)}
    given = unit.given_buffers()
    results = unit.outputs_buffers() - given
    return [
        place
        for place, nest in _conversions(unit)
        if nest.writes <= results
        and nest.reads.isdisjoint(given)
        and all(users[buffer] == 1 for buffer in nest.writes)
        and all(last_written.get(buffer, -1) < place for buffer in nest.reads)
    ]


def _conversions(unit: Unit) -> list[tuple[int, Nest]]:
    return [
        (place, item)
        for place, item in enumerate(unit.items)
        if isinstance(item, Nest)
        and len(item.stores) == len(item.reads) == 1
        and not item.inner
        and not item.is_reduction
        and not has_positions(item)
        and item.reads.isdisjoint(item.writes)
        and _bytes(item) < MIN_BYTES_TO_SPLIT
    ]


def _alike(unit: Unit, places: Sequence[int]) -> list[int]:
    """Those of a kind of which there are several."""
    kinds = {place: _kind(unit.items[place]) for place in places}
    count = Counter(kinds.values())
    return [place for place in places if count[kinds[place]] > 1]


def _kind(item: Item) -> Group:
    assert isinstance(item, Nest)
    return like(Group("", item.space, (item,)))


def _peak(unit: Unit, counts: Sequence[int]) -> int:
    """Bytes that are live at once at most, if so many items after each other are one. Inputs count
    where they may die."""
    begin, end = lifetimes(unit)
    part = [number for number, count in enumerate(counts) for _ in range(count)]
    part.append(len(counts))
    given, outputs = unit.given_buffers(), unit.outputs_buffers()
    change = [0] * (len(counts) + 2)
    for buffer in begin.keys() - (unit.constants.keys() if unit.consumes else given):
        size = hint(bytes_of(buffer))
        change[0 if buffer in given else part[begin[buffer]]] += size
        if buffer not in outputs:
            change[part[end[buffer]] + 1] -= size
    return max(accumulate(change))
