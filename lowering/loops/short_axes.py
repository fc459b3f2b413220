"""Axes of a few points, written out: a fold over them becomes an expression, which joins what reads
it; a loop over them becomes several stores, so that vectors run along the axis before."""

import operator
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import product
from math import prod

import torch

from ..lowerings.value_builders import const, op
from . import sizes
from .axes import LEAST_VECTOR, axes_of, divisor_of, split_axis
from .fuse_passes import without_locals
from .inline import cost
from .ir import (
    JOINED_BY,
    AxisRewriter,
    Const,
    Group,
    IndexValue,
    Load,
    Nest,
    Op,
    Reduced,
    Select,
    Store,
    Value,
    ValueRewriter,
    atoms,
    has_positions,
    indirect_values,
)
from .kernel_graph import Unit
from .polynomials import hint, is_known
from .sizes import Atom, Axis, FloorDiv, Index, Mod

_ROW = 8  # elements that are worth a vector of their own
FEW, SEVERAL = 9, 16  # points that are written out: of anything, and of what is costly
COSTLY_INSTRUCTIONS = 12
INTERLEAVED = (1, 2, 3, 4, 8)  # elements of rows that GCC loads for vectors across the rows
FEWEST_ROWS = 32  # that are turned: vectors take one element of each
MOST_VALUES = 256  # of what is written out
MOST_OF_GROUP = 6 * MOST_VALUES  # the compiler takes a second for as many
MOST_BEFORE = 4 * MOST_VALUES  # with those that masks of its places do away with
_COMPARED = {name: getattr(operator, name) for name in ("eq", "ne", "lt", "le", "gt", "ge")}


def write_out_folds(unit: Unit) -> Unit:
    """Folds over few points as expressions; of longer ones a few that lie side by side."""
    items = [_folded(item) if isinstance(item, Nest) else item for item in unit.items]
    return unit.replace(items=tuple(items))


def _folded(nest: Nest) -> Nest:
    if not nest.is_reduction or has_positions(nest):
        return nest
    if any(v.kind not in JOINED_BY for v in nest.values if isinstance(v, Reduced)):
        return nest
    if _is_short(nest):
        return _with_expressions(nest, len(nest.inner), _Expressions)
    divided = _short_inside(nest)
    return nest if divided is None else _with_expressions(divided, 1, _PartlyExpressions)


def _with_expressions(nest: Nest, count: int, writer: type["_Expressions"]) -> Nest:
    """The nest without its last `count` axes."""
    write = writer(nest.axes[len(nest.axes) - count :])
    stores = (Store(s.buffer, s.index, write(s.value), s.combine) for s in nest.stores)
    return Nest(nest.space, nest.inner[: len(nest.inner) - count], tuple(stores), nest.origins)


def _short_inside(nest: Nest) -> Nest | None:
    """The fold with few points of its last axis as an axis of their own, where an index divides
    that axis by their number: for what reads such a group as one."""
    last = nest.axes[-1]
    divisor = divisor_of((nest,), last, least=2) if nest.inner else None
    if not isinstance(divisor, int) or divisor > FEW or divisor * len(nest.values) > MOST_VALUES:
        return None
    return split_axis(nest, last, divisor)


def _is_short(nest: Nest) -> bool:
    """Whether the inner axes have few points, and not many values at each."""
    if not all(map(is_known, nest.inner)):
        return False
    costly, in_rows = cost(nest) >= COSTLY_INSTRUCTIONS, _lies_in_rows(nest)
    count, most = hint(prod(nest.inner)), SEVERAL if costly and not in_rows else FEW
    narrow = any(load.dtype.itemsize < 4 for load in nest.loads)
    if in_rows and count not in INTERLEAVED and (costly or narrow or _is_turned(nest)):
        return False
    beside = max(Counter(store.buffer for store in nest.stores).values())  # stored in one turn
    if not 0 < count <= max(FEW, most // beside) or count * len(nest.values) > MOST_BEFORE:
        return False
    if count * len(nest.values) <= MOST_VALUES:
        return True
    plain = not nest.is_reduction
    return plain and len(_written_out(nest, _inner_points(nest)).values) <= MOST_VALUES


def _lies_in_rows(nest: Nest) -> bool:
    """Whether what is folded lies element beside element, one row behind the other: rows are
    vectors, or turned into them."""
    if not nest.is_reduction or not nest.inner:
        return False
    last = nest.axes[-1]
    along = [x.index for x in nest.loads if sizes.coefficient(x.index, last) != 0]
    return bool(along) and all(_is_row(index, last) for index in along)


def _is_turned(nest: Nest) -> bool:
    """Whether what is folded is turned in the cache, in any case if the rows are all alike."""
    return len(nest.inner) == 1 and hint(prod(nest.space[-1:])) >= FEWEST_ROWS


def _is_row(index: Index, last: Axis) -> bool:
    behind = (step for atom, step in index.terms if atom is not last)
    apart = all(is_known(step) and step >= last.size for step in behind)
    return apart and sizes.coefficient(index, last) == 1


def _inner_points(nest: Nest) -> Iterator[dict[Atom, Index]]:
    return _points(nest.axes[len(nest.space) :])


def _points(axes: Sequence[Axis]) -> Iterator[dict[Atom, Index]]:
    for point in product(*(range(axis.size) for axis in axes)):
        yield dict(zip(axes, map(sizes.const, point), strict=True))


def _at(value: Value, point: dict[Atom, Index]) -> Value:
    return _AtPoint(lambda axis: point.get(axis, sizes.atom_index(axis)))(value)


class _AtPoint(AxisRewriter):
    """Values where some axes are numbers, without the masks that these decide."""

    def leave(self, value: Value) -> Value:
        if isinstance(value, Select) and isinstance(value.condition, Const):
            return value.then if value.condition.value else value.orelse
        if isinstance(value, Load) and isinstance(value.mask, Const):
            return Load(value.buffer, value.index) if value.mask.value else const(0, value.dtype)
        return _decided(value) if isinstance(value, Op) and value.dtype == torch.bool else value


def _decided(value: Op) -> Value:
    """A truth of numbers, or of truths of which some are known."""
    numbers = [_number(arg) for arg in value.args]
    if value.name in _COMPARED and None not in numbers:
        return Const(bool(_COMPARED[value.name](*numbers)), torch.bool)
    if value.name in ("and", "or"):
        for one, other in (value.args, value.args[::-1]):
            if isinstance(one, Const):
                return other if bool(one.value) == (value.name == "and") else one
    if value.name == "not" and isinstance(value.args[0], Const):
        return Const(not value.args[0].value, torch.bool)
    return value


def _number(value: Value) -> int | None:
    """The whole number that the value is in any case."""
    if isinstance(value, IndexValue) and not value.index.terms:
        return value.index.offset if is_known(value.index.offset) else None
    whole = isinstance(value, Const) and value.dtype in (torch.int64, torch.int32)
    return int(value.value) if whole else None  # type: ignore[attr-defined]


class _Expressions(ValueRewriter):
    """Every fold over the axes as an expression of its points, in their order."""

    def __init__(self, axes: Sequence[Axis]) -> None:
        super().__init__()
        self.axes = axes

    def leave(self, value: Value) -> Value:
        if not isinstance(value, Reduced):
            return value
        made, *rest = (_at(value.value, point) for point in _points(self.axes))
        for other in rest:
            made = op(JOINED_BY[value.kind], made, other)
        if value.kind == "sum" and value.dtype.is_floating_point:
            made = op("add", made, Const(0.0, value.dtype))  # sums of -0.0 are 0.0
        return made


class _PartlyExpressions(_Expressions):
    """The same, of which the rest of the axes is folded."""

    def leave(self, value: Value) -> Value:
        made = super().leave(value)
        return Reduced(value.kind, made, value.dtype) if isinstance(value, Reduced) else made


def without_short_axes(group: Group) -> Group:
    """The group with its innermost axes written out where all of them are short, and its last axis
    of the space where nothing is inside of it."""
    nests = group.nests
    from_space = all(not nest.inner and not nest.is_reduction for nest in nests)
    if from_space:
        nests = tuple(last_inside(nest) for nest in _split_places(nests))
    space = nests[0].space
    if not space or hint(space[-1]) < LEAST_VECTOR or not all(map(_pays, nests)):
        return group
    if from_space and any(map(is_picked_in_rows, nests)):
        return group
    if from_space:  # a local value is one for each point: all nests at one, then at the next
        points = [[point] for point in _points(nests[0].axes[len(space) :])]
        made = tuple(_written_out(nest, point) for point in points for nest in nests)
    elif any(nest.inner for nest in nests):
        made = tuple(_written_out(nest, _inner_points(nest)) for nest in nests)
    else:
        return group
    if sum(len(nest.values) for nest in made) > MOST_OF_GROUP:
        return group
    joined = without_locals(made)
    return Group(group.name, space, joined if joined and len(joined) == 1 else made)


def _split_places(nests: tuple[Nest, ...]) -> tuple[Nest, ...]:
    """The nests with the places of a short axis apart that is part of the last one, where masks
    leave each of them little of what is computed: the gradients of what is made of single
    elements."""
    space = nests[0].space
    divisor = divisor_of(nests, nests[0].axes[len(space) - 1], least=2) if space else None
    if not isinstance(divisor, int) or divisor > FEW:
        return nests
    apart = tuple(split_axis(nest, nest.axes[len(space) - 1], divisor) for nest in nests)
    for nest in apart:
        inside = last_inside(nest)
        before = divisor * len(nest.values)
        if before > MOST_BEFORE or not _pays(inside):
            return nests
        if 2 * len(_written_out(inside, _inner_points(inside)).values) > before:
            return nests
    return apart


def last_inside(nest: Nest) -> Nest:
    return Nest(nest.space[:-1], nest.space[-1:], nest.stores, nest.origins)


def _pays(nest: Nest) -> bool:
    plain = all(store.combine is None for store in nest.stores) and not nest.is_reduction
    return plain and not nest.scatters and _is_short(nest) and not _mixes_masks(nest)


def is_picked_in_rows(nest: Nest) -> bool:
    """Whether elements lie side by side along the last axis, and rows of them are picked at
    positions that are computed, or left out: vectors along the axis before would be gathered."""
    last = nest.axes[-1]
    indices = [*(x.index for x in nest.loads), *(x.index for x in nest.stores)]
    aside = all(sizes.coefficient(index, last) in (0, 1) for index in indices)
    picked = [value for index in indices for value in indirect_values(index)]
    divided = [a for index in indices for a in atoms(index) if isinstance(a, FloorDiv | Mod)]
    masks = [load.mask for load in nest.loads if load.mask is not None]
    alike = all(last not in axes_of(value) for value in [*picked, *masks])
    alike = alike and all(last not in atoms(atom.base) for atom in divided)
    return bool(picked or divided or masks) and alike and aside and hint(last.size) >= _ROW


def _mixes_masks(nest: Nest) -> bool:
    """Whether elements are loaded under masks, for stores of 3, 5, 6 or 7 at a time: GCC 12 makes
    vectors of these that take a lane's mask for another's."""
    count = hint(prod(nest.inner))
    if count & (count - 1) == 0 or not any(map(_is_masked, nest.values)):
        return False
    return any(map(_is_masked, _written_out(nest, _inner_points(nest)).values))


def _is_masked(value: Value) -> bool:
    return isinstance(value, Load) and value.mask is not None


def runs_across(group: Group) -> bool:
    """Whether the last axis of a pointwise group is too short for vectors of what is costly, and
    the one before is not."""
    *_, before, last = 1, *group.space
    short, long = hint(last) < LEAST_VECTOR, hint(before) >= LEAST_VECTOR
    costly = short and long and sum(map(cost, group.nests)) >= COSTLY_INSTRUCTIONS
    return costly and not any(map(is_picked_in_rows, group.nests))


def _written_out(nest: Nest, points: Iterable[dict[Atom, Index]]) -> Nest:
    stores = tuple(
        Store(store.buffer, sizes.substitute(store.index, point), _at(store.value, point))
        for point in points
        for store in nest.stores
    )
    return Nest(nest.space, (), stores, nest.origins)
