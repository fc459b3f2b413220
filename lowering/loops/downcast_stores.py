"""A buffer that holds what something smaller was converted to holds the smaller, and its readers
convert: the sum of two bfloat16 gradients, say, that a norm's backward reads as float32."""

import torch

from .ir import Buffer, Cast, Load, Nest, Store, Value, ValueRewriter
from .kernel_graph import Unit


def narrow_stores(unit: Unit) -> Unit:
    """The unit with such buffers, its own inputs and results and those of library calls aside, in
    the smaller type. Float16 stays: to convert it at every read costs a processor more than the
    bytes do."""
    on_gpu = any(layout.device.type == "cuda" for layout in unit.layouts.values())
    kept = (torch.float16,) if not on_gpu else ()
    pinned = unit.outputs_buffers() | unit.extern_buffers() | unit.given_buffers()
    kinds: dict[Buffer, set[torch.dtype]] = {}
    for nest in (item for item in unit.items if isinstance(item, Nest)):
        for store in nest.stores:
            kinds.setdefault(store.buffer, set()).add(_needed(store))
    changed = dict[Buffer, Buffer]()
    for buffer in kinds.keys() - pinned:
        (dtype, *others) = kinds[buffer]
        if not others and dtype not in (buffer.dtype, *kept):
            changed[buffer] = Buffer(buffer.name, dtype, buffer.size, buffer.scope)
    if not changed:
        return unit
    change = _Narrower(changed)
    items = tuple(change.nest(item) if isinstance(item, Nest) else item for item in unit.items)
    layouts = {changed.get(buffer, buffer): layout for buffer, layout in unit.layouts.items()}
    return unit.replace(items=items, layouts=layouts)


def _needed(store: Store) -> torch.dtype:
    """The smallest type from which what is stored can be made."""
    value, dtype = store.value, store.buffer.dtype
    if store.combine is None and isinstance(value, Cast) and value.dtype is dtype:
        narrow = value.value.dtype
        return narrow if narrow.itemsize < dtype.itemsize else dtype
    return dtype


class _Narrower(ValueRewriter):
    def __init__(self, changed: dict[Buffer, Buffer]) -> None:
        super().__init__()
        self.changed = changed

    def nest(self, nest: Nest) -> Nest:
        if (nest.reads | nest.writes).isdisjoint(self.changed):
            return nest
        return Nest(nest.space, nest.inner, tuple(map(self.store, nest.stores)), nest.origins)

    def store(self, store: Store) -> Store:
        value, index = self(store.value), self.index(store.index)
        if store.buffer not in self.changed:
            return Store(store.buffer, index, value, store.combine)
        assert isinstance(value, Cast)
        return Store(self.changed[store.buffer], index, value.value)

    def leave(self, value: Value) -> Value:
        if not isinstance(value, Load) or value.buffer not in self.changed:
            return value
        return Cast(Load(self.changed[value.buffer], value.index, value.mask), value.dtype)
