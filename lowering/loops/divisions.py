"""Loops without divisions in them: what reads a merged axis by its remainder (a bias along rows)
gets two axes again."""

from collections.abc import Sequence

from .axes import LEAST_VECTOR, axes_of, canonical, dividing, split_where, undivided
from .ir import Buffer, Group, Nest, accesses, part_height
from .kernel_graph import Unit
from .polynomials import Size, hint, is_known
from .short_axes import is_picked_in_rows
from .sizes import Axis, Index, coefficient

LEAST_GATHERED = 8  # turns of a vector loop that are better than single elements


def without_divisions(group: Group) -> Group:
    """The group with the last axis of the space split wherever an index divides it exactly, and the
    inner one of each pointwise nest. Where nothing is inside, the other axes too: they show then
    what lies across the last one."""
    nests = group.nests
    if part_height(nests) is None:
        nests = split_where(nests, _divided)
    return Group(group.name, nests[0].space, tuple(map(_inner_split, nests)))


def _divided(nests: Sequence[Nest]) -> tuple[Axis, Size] | None:
    """The next axis to split, and by what."""
    axes = nests[0].axes[: len(nests[0].space)]
    rows = any(nest.inner or nest.is_reduction for nest in nests)
    short = bool(axes) and hint(axes[-1].size) < LEAST_VECTOR
    if rows or (short and not any(map(is_picked_in_rows, nests))):
        axes = axes[-1:]
    found = (dividing(nests, (axis,), _least(nests, axis)) for axis in reversed(axes))
    return next((each for each in found if each is not None), None)


def _least(nests: Sequence[Nest], axis: Axis) -> int:
    """Points of an axis that is worth a loop: fewer beside elements that vectors gather."""
    loads = (x for nest in nests for x in nest.loads)
    gathered = any(coefficient(x.index, axis) == 0 and axis in axes_of(x) for x in loads)
    return LEAST_GATHERED if gathered else LEAST_VECTOR


def _inner_split(nest: Nest) -> Nest:
    if not nest.inner or nest.is_reduction:
        return nest
    return split_where((nest,), lambda nests: dividing(nests, nests[0].axes[-1:]))[0]


def fold_in_order(unit: Unit) -> Unit:
    """Folds go through what they read as it lies in memory, where a view has hidden that: an image
    with its channels last, of which groups of channels are folded."""
    items = [_in_order(item) if isinstance(item, Nest) else item for item in unit.items]
    return unit.replace(items=tuple(items))


def _in_order(nest: Nest) -> Nest:
    divided = undivided(nest)
    return nest if divided is nest else canonical(divided)


def sparse_steps(nests: Sequence[Nest], axis: Axis) -> list[int]:
    """Steps along the axis between which a kernel touches several elements of a buffer, but not
    most, or a number of them that GCC has no shuffles for: it takes what lies between two turns of
    a loop for one group, and makes vectors of small ones or whole ones alone, unless it does not
    know the step."""
    touched: dict[tuple[Buffer, int], set[Index]] = {}
    for access in (access for nest in nests for access in accesses(nest)):
        step = coefficient(access.index, axis)
        if is_known(step) and abs(step) > 4:
            touched.setdefault((access.buffer, step), set()).add(access.index)
    # there are no vectors of single bytes that lie apart
    narrow = {step for buffer, step in touched if buffer.dtype.itemsize < 4}
    found = {step for (_, step), places in touched.items() if 2 <= len(places) < abs(step) / 2}
    odd = {step for (_, step), places in touched.items() if len(places) > 1 and _is_odd(step)}
    return sorted(found | (odd - narrow))


def _is_odd(step: int) -> bool:
    return abs(step) & (abs(step) - 1) != 0
