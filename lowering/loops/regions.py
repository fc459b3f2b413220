"""What a store changes of its buffer: an update of a slice, which a functional graph writes as a
choice at every element, becomes a loop over the slice."""

import dataclasses
from collections.abc import Callable, Iterator

import torch

from . import sizes
from .axes import all_indices, canonical, rebuild
from .ir import Cast, Const, IndexValue, Load, Nest, Op, Select, Store, Value, ValueRewriter, atoms
from .polynomials import Size, at_least, divided, is_known
from .sizes import Atom, Axis, FloorDiv, Index, Mod

TRUE, FALSE = Const(True, torch.bool), Const(False, torch.bool)
Spans = dict[Axis, "Span"]


@dataclasses.dataclass(frozen=True)
class Span:
    """Positions low, low + step, ... below high."""

    low: Size
    high: Size
    step: int = 1

    @property
    def count(self) -> Size | None:
        """How many they are; None where only a call can tell."""
        length = self.high - self.low
        if is_known(length):
            return max(-(-length // self.step), 0)
        return length if self.step == 1 and at_least(length, 0) else None


def changed(nest: Nest) -> tuple[Nest, ...]:
    """Nests that, run in order, store what the nest may change of its buffer's old content; all of
    it where that cannot be told."""
    store = nest.stores[0]
    if nest.inner or nest.is_reduction or store.combine is not None:
        return (nest,)
    split = _split(nest)
    parts = _parts(split, split.stores[0].value)
    return (nest,) if parts is None else tuple(part for _, nests in parts for part in nests)


def _split(nest: Nest) -> Nest:
    """The nest with two axes for each that an index divides."""
    while True:
        cut = next((cut for index in all_indices(nest) for cut in _cuts(nest, index)), None)
        if cut is None:
            return nest
        axis, steps, divisor = cut
        nest = rebuild(nest, *_cut_axis(nest, axis, steps, divisor))


def _cuts(nest: Nest, index: Index) -> Iterator[tuple[Axis, Size, Size]]:
    """Axes that the index divides, with the quotient of their size and the divisor."""
    for atom in atoms(index):
        if isinstance(atom, FloorDiv | Mod) and len(atom.base.terms) == 1:
            (axis, factor), offset = atom.base.terms[0], atom.base.offset
            if isinstance(axis, Axis) and (factor, offset) == (1, 0):
                steps = divided(axis.size, atom.divisor)
                if steps is not None and steps != 1:
                    yield axis, steps, atom.divisor


def _cut_axis(
    nest: Nest, axis: Axis, steps: Size, divisor: Size
) -> tuple[list[Size], tuple[Size, ...], Callable[[Atom], Index]]:
    outer, inner = Axis(axis.number, steps), Axis(axis.number + 1, divisor)
    whole = sizes.add(sizes.scale(sizes.atom_index(outer), divisor), sizes.atom_index(inner))

    def rewrite(old: Atom) -> Index:
        assert isinstance(old, Axis)
        later = old.number > axis.number
        return whole if old is axis else sizes.atom_index(Axis(old.number + later, old.size))

    space = [*nest.space[: axis.number], steps, divisor, *nest.space[axis.number + 1 :]]
    return space, (), rewrite


def _parts(nest: Nest, value: Value) -> list[tuple[Spans, tuple[Nest, ...]]] | None:
    """Regions in the order in which they are stored, without those that a later one covers."""
    store = nest.stores[0]
    if value is Load(store.buffer, store.index):
        return []
    if not isinstance(value, Select):
        return None
    spans = _spans(nest, value.condition)
    below = None if spans is None else _parts(nest, value.orelse)
    if spans is None or below is None:
        return None
    visible = [part for part in below if part[0] != spans]
    return [*visible, (spans, _within(nest, spans, value.then))]


def _within(nest: Nest, spans: Spans, value: Value) -> tuple[Nest, ...]:
    """The nest's store of `value`, at the positions of `spans` alone."""
    counts = [spans[axis].count if axis in spans else axis.size for axis in nest.axes]
    if 0 in counts:
        return ()

    def rewrite(atom: Atom) -> Index:
        assert isinstance(atom, Axis)
        size = counts[atom.number]
        assert size is not None
        moved = sizes.atom_index(Axis(atom.number, size))
        span = spans.get(atom)
        if span is None:
            return moved
        return sizes.add(sizes.scale(moved, span.step), sizes.const(span.low))

    store = nest.stores[0]
    whole = Nest(nest.space, (), (Store(store.buffer, store.index, value),), nest.origins)
    return changed(canonical(folded(rebuild(whole, counts, (), rewrite))))  # type: ignore[arg-type]


def _spans(nest: Nest, condition: Value) -> Spans | None:
    """The positions of each axis for which the condition holds; None if it is of another form."""
    found: Spans = {}
    for term in sorted(_conjuncts(condition), key=lambda op: op.name == "eq"):
        axis, span = _limited(term, found) or (None, None)
        if axis is None or span is None or axis not in nest.axes:
            return None
        found[axis] = span
    return found if all(map(_is_inside, found.items())) else None


def _is_inside(entry: tuple[Axis, Span]) -> bool:
    axis, span = entry
    return at_least(span.low, 0) and at_least(axis.size, span.high) and span.count is not None


def _conjuncts(condition: Value) -> Iterator[Op]:
    if isinstance(condition, Op) and condition.name == "and":
        for arg in condition.args:
            yield from _conjuncts(arg)
    elif isinstance(condition, Op):
        yield condition
    else:
        yield Op("unknown", (), torch.bool)


def _limited(term: Op, found: Spans) -> tuple[Axis, Span] | None:
    """The axis that the comparison limits, and what it leaves of it."""
    distance = difference(term)
    if distance is None or len(distance.terms) != 1:
        return None
    (atom, factor), start = distance.terms[0], -distance.offset
    if factor != 1:
        return None
    if isinstance(atom, Mod):
        return _stepped(term, atom, found) if start == 0 else None
    if not isinstance(atom, Axis):
        return None
    old = found.get(atom, Span(0, atom.size))
    low = {"ge": start, "gt": start + 1, "eq": start}.get(term.name, old.low)
    high = {"lt": start, "le": start + 1, "eq": start + 1}.get(term.name, old.high)
    if term.name not in ("ge", "gt", "lt", "le", "eq") or old.step != 1:
        return None
    span = Span(_larger(low, old.low), _smaller(high, old.high))
    return None if span.low is None or span.high is None else (atom, span)


def _stepped(term: Op, atom: Mod, found: Spans) -> tuple[Axis, Span] | None:
    """`(axis - first) % step == 0`, where `first` is a step from the lowest position."""
    ((axis, factor),) = atom.base.terms if len(atom.base.terms) == 1 else ((None, 0),)
    if term.name != "eq" or factor != 1 or not isinstance(axis, Axis) or not is_known(atom.divisor):
        return None
    old = found.get(axis, Span(0, axis.size))
    exact = divided(old.low + atom.base.offset, atom.divisor) is not None
    return (axis, Span(old.low, old.high, atom.divisor)) if exact and old.step == 1 else None


def _larger(a: Size, b: Size) -> Size:
    return a if at_least(a, b) else b if at_least(b, a) else None  # type: ignore[return-value]


def _smaller(a: Size, b: Size) -> Size:
    return b if at_least(a, b) else a if at_least(b, a) else None  # type: ignore[return-value]


def difference(term: Op) -> Index | None:
    """`a - b` of a comparison of indices; None if it compares something else."""
    sides = [_as_index(arg) for arg in term.args]
    if len(sides) != 2 or sides[0] is None or sides[1] is None:
        return None
    return sizes.add(sides[0], sizes.scale(sides[1], -1))


def _as_index(value: Value) -> Index | None:
    if isinstance(value, IndexValue):
        return value.index
    if isinstance(value, Const) and isinstance(value.value, int) and value.dtype == torch.int64:
        return sizes.const(value.value)
    if isinstance(value, Cast) and value.dtype == torch.int64:
        return _as_index(value.value)
    return None


def folded(nest: Nest) -> Nest:
    """The nest without choices that are the same at every point."""
    rewriter = _Folder()
    stores = tuple(
        Store(s.buffer, rewriter.index(s.index), rewriter(s.value), s.combine) for s in nest.stores
    )
    return Nest(nest.space, nest.inner, stores, nest.origins)


class _Folder(ValueRewriter):
    def leave(self, value: Value) -> Value:
        if isinstance(value, Op):
            return self._op(value)
        if isinstance(value, Select) and value.condition in (TRUE, FALSE):
            return value.then if value.condition is TRUE else value.orelse
        if isinstance(value, Load) and value.mask is TRUE:
            return Load(value.buffer, value.index)
        return value

    def _op(self, value: Op) -> Value:
        if value.name == "and" and FALSE in value.args:
            return FALSE
        if value.name == "and" and TRUE in value.args:
            return next((arg for arg in value.args if arg is not TRUE), TRUE)
        known = _outcome(value)
        return value if known is None else TRUE if known else FALSE


def _outcome(term: Op) -> bool | None:
    """What a comparison of indices gives at every point; None where that is not certain."""
    distance = difference(term) if term.name in ("ge", "gt", "lt", "le", "eq", "ne") else None
    if distance is None:
        return None
    back = sizes.scale(distance, -1)
    ahead = sizes.nonnegative(sizes.add(distance, sizes.const(-1)))  # a > b
    behind = sizes.nonnegative(sizes.add(back, sizes.const(-1)))  # a < b
    not_behind, not_ahead = sizes.nonnegative(distance), sizes.nonnegative(back)
    certain = {
        "ge": (not_behind, behind),
        "gt": (ahead, not_ahead),
        "lt": (behind, not_behind),
        "le": (not_ahead, ahead),
        "eq": (distance is sizes.ZERO, ahead or behind),
        "ne": (ahead or behind, distance is sizes.ZERO),
    }[term.name]
    return True if certain[0] else False if certain[1] else None
