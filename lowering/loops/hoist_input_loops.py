"""Small loops over inputs alone come first, where they are next to each other: `batches` then makes
one kernel of those that are alike, as the factors of all normalisations are. Not those that large
loops over inputs would follow, by reading the same ones: what these make would be held for long."""

from collections import Counter

from .axes import points
from .ir import Buffer, Nest, has_positions
from .kernel_graph import Item, Unit
from .polynomials import hint
from .storage import written

SMALL = 1 << 13  # points of a loop


def early(unit: Unit) -> Unit:
    writers = Counter(buffer for item in unit.items for buffer in written(item))
    ready = unit.given_buffers() - writers.keys()
    barred = {*unit.outputs_buffers(), *unit.given_buffers()}
    barred |= {buffer for buffer, count in writers.items() if count > 1}
    followed = _read_by_large(unit, ready)
    first: list[Item] = []
    rest: list[Item] = []
    for item in unit.items:
        if isinstance(item, Nest) and _may_move(item, ready, barred, followed):
            ready |= item.writes
            first.append(item)
        else:
            rest.append(item)
    return unit.replace(items=(*first, *rest)) if len(first) > 1 else unit


def _read_by_large(unit: Unit, ready: set[Buffer]) -> set[Buffer]:
    """What large loops over inputs, and over what loops make of inputs, read; but for numbers."""
    made, found = set(ready), set[Buffer]()
    for item in unit.items:
        if isinstance(item, Nest) and item.reads <= made:
            made |= item.writes
            if hint(points(item)) > SMALL:
                found |= {buffer for buffer in item.reads if hint(buffer.size) > 1}
    return found


def _may_move(nest: Nest, ready: set[Buffer], barred: set[Buffer], followed: set[Buffer]) -> bool:
    """Whether the nest is small, raises nothing and reads nothing that the graph makes."""
    small = hint(points(nest)) <= SMALL and not has_positions(nest)
    free = nest.reads <= ready and not nest.writes & barred
    free = free and not (nest.reads | nest.writes) & followed
    return small and bool(nest.reads) and free
