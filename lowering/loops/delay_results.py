"""Products that only results are made of come last where they are larger than what they are made
of, as the gradient of a weight is that few rows meet: what was saved for the backward has died by
then."""

from collections import defaultdict

import torch

from .ir import Buffer, Nest, has_positions, scatters
from .kernel_graph import ExternCall, Unit
from .polynomials import hint
from .storage import bytes_of, given_buffers, touched, written

MIN_DELAYED_BYTES = 1 << 20  # bytes of a result from which on its place in the order matters

_aten = torch.ops.aten
PRODUCTS = (_aten.mm.default, _aten.bmm.default, _aten.addmm.default, _aten.baddbmm.default)


def late(unit: Unit) -> Unit:
    users, last_written = defaultdict[Buffer, list[int]](list), dict[Buffer, int]()
    for place, item in enumerate(unit.items):
        for buffer in touched(item):
            users[buffer].append(place)
        last_written.update(dict.fromkeys(written(item), place))
    results = unit.outputs_buffers() - given_buffers(unit)
    moved: set[int] = set()
    for place, item in enumerate(unit.items):
        if isinstance(item, ExternCall) and item.target in PRODUCTS:
            chain = _chain(unit, users, results, place)
            if chain and _may_wait(unit, chain, last_written) and _is_larger(unit, chain):
                moved.update(chain)
    if not moved:
        return unit
    first = [item for place, item in enumerate(unit.items) if place not in moved]
    return unit.replace(items=(*first, *(unit.items[place] for place in sorted(moved))))


def _chain(
    unit: Unit, users: dict[Buffer, list[int]], results: frozenset[Buffer], product: int
) -> list[int]:
    """The places of the product and of what alone reads it, up to a result that nothing reads; none
    if something else does."""
    chain = [product]
    while True:
        made = written(unit.items[chain[-1]])
        readers = {place for buffer in made for place in users[buffer] if place != chain[-1]}
        if not readers:
            return chain if made <= results else []
        follower = unit.items[max(readers)]
        alone = len(readers) == 1 and max(readers) > chain[-1] and not made & results
        if not alone or not isinstance(follower, Nest):
            return []
        if has_positions(follower) or scatters(follower):
            return []
        chain.append(max(readers))


def _may_wait(unit: Unit, chain: list[int], last_written: dict[Buffer, int]) -> bool:
    """Whether nothing that is read here is written later."""
    read = {(place, buffer) for place in chain for buffer in touched(unit.items[place])}
    return all(last_written.get(buffer, -1) <= place for place, buffer in read)


def _is_larger(unit: Unit, chain: list[int]) -> bool:
    items = [unit.items[place] for place in chain]
    made = {buffer for item in items for buffer in written(item)}
    read = {buffer for item in items for buffer in touched(item)} - made
    results = sum(hint(bytes_of(buffer)) for buffer in written(items[-1]))
    return results >= MIN_DELAYED_BYTES and results > sum(hint(bytes_of(buffer)) for buffer in read)
