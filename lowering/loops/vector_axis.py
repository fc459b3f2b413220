"""Which way vectors run in a kernel with folds: along the last inner axis, or across its rows."""

from collections.abc import Iterator, Sequence
from itertools import combinations
from math import prod

from .axes import LEAST_VECTOR, axes_of, in_order, undivided_space
from .inline import LIBRARY
from .ir import Group, Nest, Op, Reduced, Value, indirect_values
from .ops import OPS
from .polynomials import Size, hint, is_known
from .sizes import Axis, Index, coefficient

SHORT = 256  # elements of a row beside which what is made of its fold counts
COSTLY_INSTRUCTIONS_A_ROW = 6  # instructions a row
LEAST_ROWS = 1 << 10  # so that blocks of them can be spread over threads


def prefers_tile(group: Group) -> bool:
    """Whether neighbouring points of the last space axis are neighbours in memory while those of
    the last inner axis are not."""
    if any(map(goes_along, group.nests)):
        return False
    return _across([nest for nest in group.nests if nest.is_reduction]) > 0


def goes_along(nest: Nest) -> bool:
    """Whether a pointwise nest has loops inside that do not jump clearly farther than its last axis
    of space."""
    if not nest.inner or nest.is_reduction:
        return False
    return not nest.space or hint(nest.space[-1]) < LEAST_VECTOR or _score(nest) <= 0.5


def turned_inside(nest: Nest, outer: tuple[Size, ...]) -> Iterator[Nest]:
    """Forms of a pointwise nest with `outer` as its space and its other axes, which stand before
    its last one, inside: what is made for each channel of an image is made for each pixel."""
    if nest.inner or nest.is_reduction or nest.scatters or not outer:
        return
    nest = undivided_space(nest)
    count, last = len(nest.space), len(nest.space) - 1
    for chosen in combinations(range(count), len(outer)):
        if last in chosen and tuple(nest.space[k] for k in chosen) == outer and len(chosen) < count:
            yield in_order(
                nest, [*chosen, *(k for k in range(count) if k not in chosen)], len(outer)
            )


def clearly_across(folds: Sequence[Nest]) -> bool:
    """Whether that saves folds over the same space some jumps."""
    return _across(folds) > 0.5


def goes_both_ways(folds: Sequence[Nest]) -> bool:
    """Whether some folds over the same space jump along their rows, and others across them."""
    if not folds or not folds[0].space or not all(nest.inner for nest in folds):
        return False
    scores = list(map(_score, folds))
    return max(scores) > 0.5 and min(scores) < -0.5


def _across(folds: Sequence[Nest]) -> float:
    if not folds or not folds[0].space or hint(folds[0].space[-1]) < 4:
        return 0.0
    return sum(map(_score, folds)) if all(nest.inner for nest in folds) else 0.0


def _score(nest: Nest) -> float:
    """How many more loads jump from element to element along the last inner axis than along the
    last one of the space; in doubt, how many jump farther, and how many more read neighbours along
    the latter. One that is the same all along does neither."""
    across, along = nest.axes[len(nest.space) - 1], nest.axes[-1]
    score = 0.0
    for index in (load.index for load in nest.loads):
        score += _jumps(index, along) - _jumps(index, across)
        far, near = (abs(hint(coefficient(index, axis))) for axis in (along, across))
        score += 0.1 * ((far > near > 1) - (near > far > 1))
        score += 0.01 * (_is_next(index, across) - _is_next(index, along))
    return score


def _is_next(index: Index, axis: Axis) -> bool:
    return coefficient(index, axis) in (-1, 1)


def _jumps(index: Index, axis: Axis) -> bool:
    positions = (value for value in indirect_values(index) if axis in axes_of(value))
    return coefficient(index, axis) not in (-1, 0, 1) or any(positions)


def finishes_short_rows(group: Group) -> bool:
    """Whether short rows are folded, and what is made of the folds takes long beside them: that is
    better done in vectors, for many rows at once. Where rows are read more than once, as between
    the folds of a `log_softmax`, it takes functions of a library."""
    folds = [nest for nest in group.nests if nest.is_reduction]
    inner = {nest.inner for nest in group.nests if nest.inner}
    if not folds or len(inner) != 1 or not all(nest.inner for nest in folds):
        return False
    (row,) = inner
    if not all(map(is_known, row)) or not 1 < prod(row) <= SHORT:
        return False
    once = sum(1 for nest in group.nests if nest.inner) == 1
    many = hint(group.space[-1]) >= 16 and hint(prod(group.space)) >= LEAST_ROWS
    return many and sum(map(_finish, group.nests)) >= (
        COSTLY_INSTRUCTIONS_A_ROW if once else LIBRARY
    )


def _finish(nest: Nest) -> int:
    """Rough instructions a point that do not belong to its fold, or to a loop inside."""
    if nest.inner and not nest.is_reduction:
        return 0
    stack, seen = list[Value](nest.roots), set[Value]()
    while stack:
        value = stack.pop()
        if value not in seen and not isinstance(value, Reduced):
            seen.add(value)
            stack.extend(value.below())
    return sum(OPS[value.name].cost for value in seen if isinstance(value, Op))
