"""Before scheduling: what nobody reads is dropped, axes are put into canonical form, so that equal
loops compare equal."""

import dataclasses
from collections.abc import Iterable
from typing import Any

import torch

from .axes import canonical
from .ir import Buffer, Nest, nest_loads
from .kernel_graph import ExternCall, Item, Layout, Ref, Symbol, Unit, leaves
from .positions import asked, checks_of

aten = torch.ops.aten
_EMPTY = frozenset(  # what a copy into new memory leaves behind
    (aten.empty_permuted.default, aten.empty_strided.default, aten.new_empty_strided.default)
)


def simplify(unit: Unit) -> Unit:
    layouts = dict(unit.layouts)
    live = drop_dead(unit, layouts)
    items = [canonical(item) if isinstance(item, Nest) else item for item in live]
    return unit.replace(items=tuple(items), layouts=layouts)


def drop_dead(unit: Unit, layouts: dict[Buffer, Layout]) -> list[Item]:
    """Items without nests whose results are never read, but for the positions that these ask for.
    Extern calls stay, for they may have effects, but lose such results; those that only take memory
    go."""
    wanted = {*_names(unit.outputs), *unit.given_buffers()}
    kept: list[Item] = []
    for item in reversed(unit.items):
        if isinstance(item, ExternCall):
            item = dataclasses.replace(item, result=_read(item.result, wanted))
            if item.target in _EMPTY and item.result is None:
                continue
            wanted.update(_names((item.args, item.kwargs)))
        elif isinstance(item, Nest):
            if not any(store.buffer in wanted for store in item.stores):
                checks = checks_of(item, asked(item), layouts)
                wanted.update(load.buffer for nest in checks for load in nest_loads(nest))
                kept += checks
                continue
            wanted.update(load.buffer for load in nest_loads(item))
        kept.append(item)
    kept.reverse()
    return kept


def _names(tree: Any) -> Iterable[Buffer | Symbol]:
    for leaf in leaves(tree):
        if isinstance(leaf, Ref | Symbol):
            yield leaf.buffer if isinstance(leaf, Ref) else leaf


def _read(result: Any, wanted: set[Buffer | Symbol]) -> Any:
    """The results with None for those that nobody reads. An operator may leave them out whatever
    its meta function says: attention without dropout has no random state, and without gradients no
    logsumexp."""
    if isinstance(result, tuple):
        return tuple(_read(item, wanted) for item in result)
    return result if any(name in wanted for name in _names(result)) else None
