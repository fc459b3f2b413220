"""Changing the axes of a nest: order, merging, and splitting off outer ones."""

from collections.abc import Callable, Iterator, Sequence
from math import prod

from . import sizes
from .ir import (
    AxisRewriter,
    Indirect,
    Nest,
    Reduced,
    Store,
    Value,
    ValueRewriter,
    atoms,
    indices_of,
    nest_loads,
    part_height,
    store_values,
)
from .polynomials import Size, divided, hint, is_known
from .sizes import Atom, Axis, FloorDiv, Index, Mod

LEAST_ROWS = 16  # outer points below which rows are too few to spread over threads
LEAST_VECTOR = 16  # turns below which a vector loop is worth less than a division in a longer one


def rebuild(
    nest: Nest, space: Sequence[Size], inner: Sequence[Size], rewrite: Callable[[Atom], Index]
) -> Nest:
    """The nest over new axes; `rewrite` gives each old axis in terms of them."""
    return _rewritten(nest, space, inner, AxisRewriter(rewrite))


class _Mover(ValueRewriter):
    """Axes replaced by their places."""

    def __init__(self, places: dict[Atom, Index]) -> None:
        super().__init__()
        self.places = tuple(places.items())

    def index(self, index: Index) -> Index:
        return sizes.moved(index, self.places)


def _rewritten(
    nest: Nest, space: Sequence[Size], inner: Sequence[Size], rewriter: ValueRewriter
) -> Nest:
    stores = tuple(
        Store(store.buffer, rewriter.index(store.index), rewriter(store.value), store.combine)
        for store in nest.stores
    )
    return Nest(tuple(space), tuple(inner), stores, nest.origins)


def all_indices(nest: Nest) -> Iterator[Index]:
    """Every index of the nest, those inside divisions included."""
    roots = [store.index for store in nest.stores]
    roots.extend(index for value in nest.leaves for index in indices_of(value))
    for index in roots:
        yield index
        yield from (atom.base for atom in atoms(index) if isinstance(atom, FloorDiv | Mod))


def axes_of(value: Value) -> frozenset[Axis]:
    """Axes that the value depends on, those that a `Reduced` folds over included."""
    indices = [index for leaf in value.leaves for index in indices_of(leaf)]
    return frozenset(a for index in indices for a in atoms(index) if isinstance(a, Axis))


def canonical(nest: Nest) -> Nest:
    """Axes in the order of memory, sizes of one dropped, neighbours merged where every index allows
    it."""
    return merge(order(nest))


def order(nest: Nest) -> Nest:
    """Space axes by falling stride of the first store, inner ones by falling stride of the
    loads."""
    count = len(nest.space)
    axes = nest.axes
    space = sorted(
        (a for a in axes[:count] if a.size != 1),
        key=lambda a: -_store_stride(nest.stores[0].index, a),
    )
    inner = [a for a in axes[count:] if a.size != 1]
    if not _has_positions(nest):
        strides = {a: -_load_stride(nest, a) for a in inner}
        inner.sort(key=lambda a: strides[a])
    numbers = {axis: number for number, axis in enumerate(space + inner)}
    if all(numbers.get(axis) == axis.number for axis in axes):
        return nest
    places: dict[Atom, Index] = {
        a: sizes.atom_index(Axis(numbers[a], a.size)) if a in numbers else sizes.ZERO for a in axes
    }
    return _rewritten(nest, [a.size for a in space], [a.size for a in inner], _Mover(places))


def _store_stride(index: Index, axis: Axis) -> int:
    """How far apart the axis stores, or the axis that its positions from memory are on."""
    direct = abs(hint(sizes.coefficient(index, axis)))
    if direct:
        return direct
    factors = (
        abs(hint(factor))
        for atom, factor in index.terms
        if isinstance(atom, Indirect) and axis in axes_of(atom.value)
    )
    return max(factors, default=0)


def _has_positions(nest: Nest) -> bool:
    return nest.is_reduction and any(
        isinstance(v, Reduced) and v.kind.startswith("arg") for v in store_values(nest)
    )


def _load_stride(nest: Nest, axis: Axis) -> int:
    loads = sorted(nest_loads(nest), key=lambda load: -hint(load.buffer.size))
    return next(
        (abs(hint(c)) for load in loads if (c := sizes.coefficient(load.index, axis)) != 0), 0
    )


def merge(nest: Nest) -> Nest:
    indices = set(all_indices(nest))
    blocks: list[list[Axis]] = []
    for axis in nest.axes:
        start_of_inner = axis.number == len(nest.space)
        if blocks and not start_of_inner and _mergeable(indices, blocks[-1][-1], axis):
            blocks[-1].append(axis)
        else:
            blocks.append([axis])
    if len(blocks) == len(nest.axes):
        return nest
    space = [prod(a.size for a in block) for block in blocks if block[0].number < len(nest.space)]
    inner = [prod(a.size for a in block) for block in blocks if block[0].number >= len(nest.space)]
    places: dict[Atom, Index] = {}
    for number, block in enumerate(blocks):
        whole = sizes.atom_index(Axis(number, prod(a.size for a in block)))
        places.update(zip(block, sizes.delinear(whole, [a.size for a in block]), strict=True))
    return _rewritten(nest, space, inner, _Mover(places))


def _mergeable(indices: set[Index], outer: Axis, inner: Axis) -> bool:
    return all(
        sizes.coefficient(index, outer) == inner.size * sizes.coefficient(index, inner)
        for index in indices
    )


def align(nest: Nest, outer: tuple[Size, ...]) -> Nest | None:
    """The nest with `outer` as its space and the rest as inner axes, or None if it cannot be had
    without divisions of an inner axis.

    A reduction nest keeps its inner axes, so its space must have as many points as `outer`.
    """
    if nest.space == outer:
        return nest
    if part_height((nest,)) is not None:
        return None  # its points of space keep their order
    total, points = prod(nest.space), prod(outer)
    if 0 in nest.space or points == 0 or (nest.is_reduction and total != points):
        return None
    rest = divided(total, points)
    if rest is None:
        return None
    if nest.is_reduction:
        return _resplit(nest, outer, ())
    if nest.space[: len(outer)] == outer:
        return Nest(outer, nest.space[len(outer) :] + nest.inner, nest.stores, nest.origins)
    return _resplit(nest, outer, (rest,) if rest != 1 else ())


def _resplit(nest: Nest, outer: tuple[Size, ...], extra: tuple[Size, ...]) -> Nest | None:
    """Space axes recomputed from the flat position over `outer` and `extra`."""
    if nest.inner and extra:
        return None
    made = sizes.make_axes(outer + (extra or nest.inner))
    flat = sizes.linear(made[: len(outer) + len(extra)], sizes.contiguous_strides(outer + extra))
    old = nest.axes
    places: dict[Atom, Index] = dict(zip(old, sizes.delinear(flat, nest.space), strict=False))
    for axis, new in zip(old[len(nest.space) :], made[len(outer) :], strict=False):
        places[axis] = sizes.atom_index(new)
    aligned = _rewritten(nest, outer, extra or nest.inner, _Mover(places))
    inner = set(aligned.axes[len(outer) :])
    return None if _divides(aligned, inner) and not _divides(nest, set(nest.axes)) else aligned


def following(nest: Nest, first: Sequence[Nest]) -> Nest:
    """A pointwise nest over the space of nests whose result it reads, each element at the point
    where it is stored; itself where it reads none of them so."""
    for other in first:
        for store in other.stores:
            load = next((load for load in nest.loads if load.buffer is store.buffer), None)
            places = None if load is None or nest.inner else _places(load.index, store, nest)
            if places is not None:
                return _rewritten(nest, other.space, (), _Mover(places))
    return nest


def _places(index: Index, store: Store, nest: Nest) -> dict[Atom, Index] | None:
    """Where each axis is while the index gives what was stored, if it counts through all of the
    buffer."""
    steps = sorted(index.terms, key=lambda term: hint(term[1]))
    places: dict[Atom, Index] = {axis: sizes.ZERO for axis in nest.axes if axis.size == 1}
    count: Size = 1
    for atom, factor in steps:
        if not isinstance(atom, Axis) or factor != count:
            return None
        places[atom] = sizes.mod(sizes.floordiv(store.index, count), atom.size)
        count *= atom.size
    whole = index.offset == 0 and count == store.buffer.size and len(places) == len(nest.axes)
    return places if whole else None


def gains_divisions(before: Nest, after: Nest) -> bool:
    return after is not before and _divisions(after) > _divisions(before)


def _divisions(nest: Nest) -> int:
    """Divisions in the indices of the nest."""
    return sum(
        isinstance(atom, FloorDiv | Mod)
        for index in set(all_indices(nest))
        for atom, _ in index.terms
    )


def _divides(nest: Nest, axes: set[Axis]) -> bool:
    """Whether an index divides one of the axes."""
    for index in all_indices(nest):
        for atom, _ in index.terms:
            if isinstance(atom, FloorDiv | Mod) and any(
                below in axes for below in atoms(atom.base)
            ):
                return True
    return False


def points(nest: Nest) -> Size:
    return prod(nest.space) * prod(nest.inner)


def divisor_of(nests: Sequence[Nest], axis: Axis, least: int = LEAST_VECTOR) -> Size | None:
    """The largest number, from `least` on, by which some index divides the axis, which it divides
    exactly."""
    found = {
        atom.divisor
        for nest in nests
        for index in all_indices(nest)
        for atom in atoms(index)
        if isinstance(atom, FloorDiv | Mod) and atom.base is sizes.atom_index(axis)
    }
    usable = [
        d
        for d in found
        if hint(d) >= least and d != axis.size and divided(axis.size, d) is not None
    ]
    return max(usable, key=lambda d: (is_known(d), hint(d)), default=None)


def split_axis(nest: Nest, axis: Axis, divisor: Size) -> Nest:
    """The nest with two axes in place of the axis, of which the inner one has `divisor` points."""
    steps = divided(axis.size, divisor)
    assert steps is not None  # `divisor` is one that divides
    outer, inner = Axis(axis.number, steps), Axis(axis.number + 1, divisor)
    whole = sizes.add(sizes.scale(sizes.atom_index(outer), divisor), sizes.atom_index(inner))

    def rewrite(old: Atom) -> Index:
        if not isinstance(old, Axis) or old.number < axis.number:
            return sizes.atom_index(old)
        return whole if old is axis else sizes.atom_index(Axis(old.number + 1, old.size))

    shape = [a.size for a in nest.axes]
    shape[axis.number : axis.number + 1] = [outer.size, inner.size]
    count = len(nest.space) + (axis.number < len(nest.space))
    return rebuild(nest, shape[:count], shape[count:], rewrite)


def split_where(
    nests: tuple[Nest, ...], find: Callable[[tuple[Nest, ...]], tuple[Axis, Size] | None]
) -> tuple[Nest, ...]:
    """The nests with an axis that they share split for as long as one is found, with what divides
    it exactly."""
    while (found := find(nests)) is not None:
        nests = tuple(split_axis(nest, *found) for nest in nests)
    return nests


def dividing(
    nests: Sequence[Nest], axes: Sequence[Axis], least: int = LEAST_VECTOR
) -> tuple[Axis, Size] | None:
    """The last of these axes that some index divides exactly, and by what."""
    found = ((axis, divisor_of(nests, axis, least)) for axis in reversed(axes))
    return next(((axis, divisor) for axis, divisor in found if divisor is not None), None)


def split_common(nests: tuple[Nest, ...], count: int) -> tuple[Nest, ...]:
    """Nests that share their first `count` axes, which are split wherever an index divides one
    exactly."""
    more = count - len(nests[0].axes)  # how many are not shared, from the end
    return split_where(nests, lambda n: dividing(n, n[0].axes[: len(n[0].axes) + more], least=2))


def undivided_space(nest: Nest) -> Nest:
    """A pointwise nest whose axes are split wherever an index divides one exactly."""
    return split_common((nest,), len(nest.axes))[0]


def in_order(nest: Nest, numbers: Sequence[int], count: int) -> Nest:
    """The nest with its axes in this order, the first `count` of them as its space."""
    axes = [nest.axes[number] for number in numbers]
    places: dict[Atom, Index] = {
        axis: sizes.atom_index(Axis(place, axis.size)) for place, axis in enumerate(axes)
    }
    shape = [axis.size for axis in axes]
    return _rewritten(nest, shape[:count], shape[count:], _Mover(places))


def undivided(nest: Nest) -> Nest:
    """A fold whose inner axes are split wherever an index divides one exactly: what lies side by
    side in memory is read so."""
    if not nest.is_reduction or _has_positions(nest):
        return nest
    count = len(nest.space)
    return split_where((nest,), lambda nests: dividing(nests, nests[0].axes[count:]))[0]
