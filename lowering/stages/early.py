"""Small loops over inputs alone come first, where they are next to each other: `batches` then makes
one kernel of those that are alike, as the factors of all normalisations are."""

from collections import Counter

from ..ir import Buffer, Nest, has_positions
from ..poly import hint
from ..unit import Item, Unit
from .axes import points
from .storage import written

SMALL = 1 << 13  # points of a loop


def early(unit: Unit) -> Unit:
    writers = Counter(buffer for item in unit.items for buffer in written(item))
    ready = unit.given_buffers() - writers.keys()
    barred = {*unit.outputs_buffers(), *unit.given_buffers()}
    barred |= {buffer for buffer, count in writers.items() if count > 1}
    first: list[Item] = []
    rest: list[Item] = []
    for item in unit.items:
        if isinstance(item, Nest) and _may_move(item, ready, barred):
            ready |= item.writes
            first.append(item)
        else:
            rest.append(item)
    return unit.replace(items=(*first, *rest)) if len(first) > 1 else unit


def _may_move(nest: Nest, ready: set[Buffer], barred: set[Buffer]) -> bool:
    """Whether the nest is small, raises nothing and reads nothing that the graph makes."""
    small = hint(points(nest)) <= SMALL and not has_positions(nest)
    return small and bool(nest.reads) and nest.reads <= ready and not nest.writes & barred
