"""Loops without divisions in them: what reads a merged axis by its remainder (a bias along rows)
gets two axes again."""

from collections.abc import Sequence

from ..ir import Buffer, Group, Nest, accesses, part_height
from ..poly import Size, hint, is_known
from ..sizes import Axis, Index, coefficient
from .axes import LEAST_VECTOR, axes_of, divisor_of, split_axis
from .short_axes import is_picked_in_rows

LEAST_GATHERED = 8  # turns of a vector loop that are better than single elements


def without_divisions(group: Group) -> Group:
    """The group with the last axis of the space split wherever an index divides it exactly, and the
    inner one of each pointwise nest. Where nothing is inside, the other axes too: they show then
    what lies across the last one."""
    while part_height(group.nests) is None and (found := _divided(group)) is not None:
        nests = tuple(split_axis(nest, *found) for nest in group.nests)
        group = Group(group.name, nests[0].space, nests)
    return Group(group.name, group.space, tuple(map(_inner_split, group.nests)))


def _divided(group: Group) -> tuple[Axis, Size] | None:
    """The next axis to split, and by what."""
    axes = group.nests[0].axes[: len(group.space)]
    rows = any(nest.inner or nest.is_reduction for nest in group.nests)
    short = bool(axes) and hint(axes[-1].size) < LEAST_VECTOR
    if rows or (short and not any(map(is_picked_in_rows, group.nests))):
        axes = axes[-1:]
    for axis in reversed(axes):
        divisor = divisor_of(group.nests, axis, _least(group, axis))
        if divisor is not None:
            return axis, divisor
    return None


def _least(group: Group, axis: Axis) -> int:
    """Points of an axis that is worth a loop: fewer beside elements that vectors gather."""
    loads = (x for nest in group.nests for x in nest.loads)
    gathered = any(coefficient(x.index, axis) == 0 and axis in axes_of(x) for x in loads)
    return LEAST_GATHERED if gathered else LEAST_VECTOR


def _inner_split(nest: Nest) -> Nest:
    while nest.inner and not nest.is_reduction:
        divisor = divisor_of((nest,), nest.axes[-1])
        if divisor is None:
            return nest
        nest = split_axis(nest, nest.axes[-1], divisor)
    return nest


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
