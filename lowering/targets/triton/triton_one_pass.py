"""Two reductions over a row, of which the second uses the result of the first, as one that reads
the row once: sums of squares around the mean, sums of exponentials below the maximum.

Each becomes a kind of reduction by itself, which the printer folds with two accumulators a lane:

* `SQUARES` of v: sum((v - mean(v))^2), by Welford's steps and Chan's formula for what they give
  (https://doi.org/10.2307/2683386).
* `EXPONENTIALS` of v: sum(exp(v - max(v))), rescaled when the maximum rises
  (https://arxiv.org/abs/1805.02867).
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod

import torch

from ...loops.ir import (
    EXPONENTIALS,
    SQUARES,
    Buffer,
    Const,
    Group,
    Load,
    Nest,
    Op,
    Reduced,
    Store,
    Value,
    ValueRewriter,
    walk,
)

BASES = {SQUARES: "sum", EXPONENTIALS: "max"}  # the reduction that each comes with


def base_of(value: Reduced) -> Reduced:
    """The sum, or the maximum, that a reduction of one of these kinds finds as well."""
    return Reduced(BASES[value.kind], value.value, value.dtype)


def one_pass(group: Group, kinds: tuple[str, ...]) -> Group:
    """The group with such pairs joined, of the `kinds` that are wanted."""
    nests: list[Nest] = []
    for nest in group.nests:
        joined = _joined(nests[-1], nest, kinds) if nests else None
        if joined is None:
            nests.append(nest)
        else:
            nests[-1] = joined
    return Group(group.name, group.space, tuple(nests))


def _joined(first: Nest, second: Nest, kinds: tuple[str, ...]) -> Nest | None:
    if not (first.is_reduction and second.is_reduction and first.axes == second.axes):
        return None
    rewriter = _Independent({store.buffer: store for store in first.stores}, first, kinds)
    stores = tuple(Store(s.buffer, s.index, rewriter(s.value), s.combine) for s in second.stores)
    made = Nest(second.space, second.inner, stores, second.origins)
    inside = walk(*(v.value for v in made.values if isinstance(v, Reduced)))
    if any(isinstance(v, Load) and v.buffer in rewriter.stored for v in inside):
        return None
    origins = tuple(dict.fromkeys(first.origins + second.origins))
    return Nest(first.space, first.inner, first.stores + stores, origins)


class _Independent(ValueRewriter):
    """Reductions around a result of `first` by those that need none."""

    def __init__(self, stored: dict[Buffer, Store], first: Nest, kinds: tuple[str, ...]) -> None:
        super().__init__()
        self.stored, self.kinds = stored, kinds
        self.count = prod(first.inner)

    def leave(self, value: Value) -> Value:
        if not isinstance(value, Reduced) or value.kind != "sum" or value.dtype != torch.float32:
            return value
        for rule in (self._exponentials, self._squares, self._differences):
            made = rule(value)
            if made is not None:
                return made
        return value

    def _exponentials(self, value: Reduced) -> Value | None:
        if not _is(value.value, "exp"):
            return None
        base = self._below(value.value.args[0], self._is_maximum)  # type: ignore[attr-defined]
        made = self._made(EXPONENTIALS, base)
        return None if made is None else _times(made, base_of(made))

    def _squares(self, value: Reduced) -> Value | None:
        if not _is(value.value, "mul") or value.value.args[0] is not value.value.args[1]:  # type: ignore[attr-defined]
            return None
        base = self._below(value.value.args[0], self._is_mean)  # type: ignore[attr-defined]
        return self._made(SQUARES, base)

    def _differences(self, value: Reduced) -> Value | None:
        """They sum up to what rounding leaves of 0."""
        base = self._below(value.value, self._is_mean)
        return None if base is None or SQUARES not in self.kinds else Const(0.0, value.dtype)

    def _made(self, kind: str, base: Value | None) -> Reduced | None:
        if base is None or kind not in self.kinds:
            return None
        return Reduced(kind, base, torch.float32)

    def _below(self, value: Value, is_base: Callable[[Value, Value], bool]) -> Value | None:
        """v, if the value is v minus what the first nest stored, which is the wanted fold of v."""
        if not _is(value, "sub") or value.dtype != torch.float32:
            return None
        one, two = value.args  # type: ignore[attr-defined]
        store = self.stored.get(two.buffer) if isinstance(two, Load) else None
        if store is None or two.mask is not None or store.combine is not None:
            return None
        same = store.buffer.scope == "local" or two.index is store.index
        return one if same and is_base(store.value, one) else None

    def _is_maximum(self, fold: Value, value: Value) -> bool:
        return isinstance(fold, Reduced) and fold.kind == "max" and fold.value is value

    def _is_mean(self, fold: Value, value: Value) -> bool:
        if not _is(fold, "div"):
            return False
        total, count = fold.args  # type: ignore[attr-defined]
        summed = isinstance(total, Reduced) and total.kind == "sum" and total.value is value
        return summed and isinstance(count, Const) and count.value == self.count


def _times(total: Value, top: Value) -> Value:
    """The total, NaN where the maximum is infinite, as inf - inf is."""
    none = Op("sub", (top, top), total.dtype)
    return Op("mul", (total, Op("exp", (none,), total.dtype)), total.dtype)


def _is(value: Value, name: str) -> bool:
    return isinstance(value, Op) and value.name == name
