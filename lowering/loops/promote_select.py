"""Choices between 16-bit floats, in the wide type that their readers compute in: a loop then has
vectors of one kind, and what is exact in either (`-x`, `x.abs()`, zeros) is not rounded between."""

from collections.abc import Sequence

import torch

from ..lowerings.value_builders import HALVES, cast
from .ir import Cast, Const, Nest, Op, Select, Store, Value, ValueRewriter
from .kernel_graph import Item, Unit

_EXACT = frozenset({"neg", "abs", "maximum", "minimum"})


def widen_choices(unit: Unit) -> Unit:
    return unit.replace(items=tuple(_widened(item) for item in unit.items))


def _widened(item: Item) -> Item:
    if not isinstance(item, Nest) or not any(isinstance(v, Select) for v in item.values):
        return item
    widener = _Widener()
    stores = tuple(Store(s.buffer, s.index, widener(s.value), s.combine) for s in item.stores)
    return Nest(item.space, item.inner, stores, item.origins)


class _Widener(ValueRewriter):
    def leave(self, value: Value) -> Value:
        if isinstance(value, Select):
            return _chosen(value.condition, value.then, value.orelse)
        if isinstance(value, Cast) and value.dtype == torch.float32:
            return _wide(value.value) if value.value.dtype in HALVES else value
        return value


def _chosen(condition: Value, then: Value, orelse: Value) -> Value:
    """The choice, without others by the same condition inside of it."""
    if isinstance(then, Select) and then.condition is condition:
        then = then.then
    if isinstance(orelse, Select) and orelse.condition is condition:
        orelse = orelse.orelse
    return Select(condition, then, orelse)


def _wide(value: Value) -> Value:
    """The 16-bit float in float32."""
    if isinstance(value, Select):
        return _chosen(value.condition, _wide(value.then), _wide(value.orelse))
    if isinstance(value, Cast) and _is_exact((value.value,), value.dtype):
        return value.value
    return cast(value, torch.float32)


def _is_exact(values: Sequence[Value], half: torch.dtype) -> bool:
    """Whether these float32 values are numbers of the 16-bit type."""
    return all(
        (isinstance(value, Cast) and value.value.dtype == half and value.dtype == torch.float32)
        or (isinstance(value, Const) and value.value == 0 and value.dtype == torch.float32)
        or (isinstance(value, Op) and value.name in _EXACT and _is_exact(value.args, half))
        or (isinstance(value, Select) and _is_exact((value.then, value.orelse), half))
        for value in values
    )
