"""Matrix products inside of a kernel: tiles with one side for each factor, and `tl.dot` in the loop
over what is summed. What makes the factors is computed as they are read, and what reads the result
has it in registers."""

from __future__ import annotations

from math import prod

from ...loops import sizes
from ...loops.axes import axes_of
from ...loops.ir import PRODUCTS, Cast, Group, Load, Nest, Op, Reduced, Value
from ...loops.polynomials import Size, hint, is_known
from ...loops.sizes import Atom, Axis, Index
from .triton_axes import coordinates, rewrite_nest
from .triton_print import INDENT, KernelPrinter
from .triton_tile import Dim, Tile, needs_int64, pow2

LEAST_SIDE = 16  # what a product on tensor cores has of each axis, at least
Shape = tuple[int, int, int, int, int]
# (points of the first factor, of the second, summed at once, warps, stages), the likeliest best
# first. Found on an H200: factors whose summed elements lie side by side come by asynchronous
# copies; others, and those that are split in three, by registers.
COPIED: tuple[Shape, ...] = (
    (128, 128, 32, 8, 3),
    (128, 128, 32, 4, 3),
    (128, 64, 32, 4, 3),
    (64, 64, 32, 4, 3),
)
GATHERED: tuple[Shape, ...] = (
    (128, 64, 32, 4, 1),
    (64, 64, 32, 4, 1),
    (128, 64, 32, 8, 1),
    (256, 64, 16, 8, 1),
)
NARROW: tuple[Shape, ...] = ((128, 64, 32, 4, 2), (128, 64, 32, 4, 3), (64, 64, 32, 4, 3))


def product_tiles(group: Group) -> list[Tile]:
    """Tiles for a group with a matrix product."""
    product = next(nest for nest in group.nests if nest.multiplies)
    axes = sizes.make_axes(group.space)
    first, second = (axes_of(factor) for factor in factors_of(_fold(product)))
    sides = (
        tuple(axis for axis in axes if (axis in first) == (axis in second)),
        tuple(axis for axis in axes if axis in first and axis not in second),
        tuple(axis for axis in axes if axis in second and axis not in first),
    )
    shape = tuple(prod(axis.size for axis in side) for side in sides)
    flat = sizes.make_axes(shape)
    where: dict[Axis, Index] = {}
    for axis, side in zip(flat, sides, strict=True):
        where |= zip(side, coordinates(axis, tuple(each.size for each in side)), strict=True)
    nests = tuple(_over(nest, shape, where) for nest in group.nests)
    wide = needs_int64(group)
    tiles = (_tile(flat, nests, each, wide) for each in _shapes(product))
    return list(dict.fromkeys(tiles))


def _over(nest: Nest, shape: tuple[int, ...], where: dict[Axis, Index]) -> Nest:
    r = Axis(len(shape), prod(nest.inner))
    inner = zip(nest.axes[len(nest.space) :], coordinates(r, nest.inner), strict=True)
    places: dict[Atom, Index] = dict((*where.items(), *inner))
    return rewrite_nest(nest, shape, (r.size,) if nest.inner else (), places.__getitem__)


def _tile(flat: tuple[Axis, ...], nests: tuple[Nest, ...], shape: Shape, wide: bool) -> Tile:
    z, y, x = flat
    first, second, summed, warps, stages = shape
    dims = (
        Dim("z", z, 1),
        Dim("y", y, min(first, max(pow2(y.size), LEAST_SIDE))),
        Dim("x", x, min(second, max(pow2(x.size), LEAST_SIDE))),
    )
    inner = tuple(
        Dim("r", Axis(len(flat), nest.inner[0]), min(summed, max(pow2(nest.inner[0]), LEAST_SIDE)))
        if nest.inner
        else None
        for nest in nests
    )
    return Tile(dims, inner, nests, False, warps, wide, stages=stages)


def _shapes(product: Nest) -> tuple[Shape, ...]:
    fold = _fold(product)
    first, second = factors_of(fold)
    last = product.axes[-1]
    loads = [leaf for leaf in first.leaves if isinstance(leaf, Load)]
    beside = all(sizes.coefficient(load.index, last) in (0, 1) for load in loads)
    if beside and hint(last.size) >= LEAST_SIDE and PRODUCTS[fold.kind] == "tf32":
        columns = prod(a.size for a in axes_of(second) - axes_of(first))
        return COPIED if hint(columns) > 64 else NARROW
    return GATHERED


def _fold(nest: Nest) -> Reduced:
    folds = (v for v in nest.values if isinstance(v, Reduced) and v.kind in PRODUCTS)
    return next(folds)


def factors_of(fold: Reduced) -> tuple[Value, Value]:
    """The two values that are multiplied."""
    product = fold.value
    assert isinstance(product, Op) and product.name == "mul"
    first, second = product.args
    return first, second


class ProductPrinter(KernelPrinter):
    """A tile has axes y and x. In the loop, the first factor has y and r, the second one r and x:
    r stands for two names."""

    def __init__(self, *given: object) -> None:
        super().__init__(*given)  # type: ignore[arg-type]
        self.rank = ["y", "x"]

    def index(self, index: Index) -> str:
        """What varies along one side stands together: it is computed once for the other side."""
        uses: dict[frozenset[str], list[tuple[Atom, Size]]] = {}
        for atom, factor in index.terms:
            uses.setdefault(self.used(atom), []).append((atom, factor))
        if len(uses) < 2:
            return super().index(index)
        parts = (super(ProductPrinter, self).index(Index(tuple(t), 0)) for t in uses.values())
        text = " + ".join(f"({part})" for part in parts)
        return text if index.offset == 0 else f"{text} + {index.offset}"

    def _reduction(self, nest: Nest, dim: Dim | None, loops: bool) -> None:
        assert dim is not None
        for value in nest.values:
            if isinstance(value, Reduced):
                self.memo[value] = self._product(value, dim)
        self._stores(nest)

    def _product(self, value: Reduced, dim: Dim) -> str:
        """The loop over r; the name of the sum."""
        total, name = self._fresh("a"), self.names[dim.axis]
        precision = PRODUCTS[value.kind]
        self.lines.append(f"{total} = tl.zeros({self._shape(frozenset(self.rank))}, tl.float32)")
        self.starts[dim.name] = "start"
        first, second = factors_of(value)
        body = [f"{name} = start + tl.arange(0, {dim.block})"]
        self.body = body
        texts = (
            self._factor(first, ["y", "r"], dim),
            self._factor(second, ["r", "x"], dim),
        )
        self.body, self.loop_memo, self.rank = None, {}, ["y", "x"]
        self.names[dim.axis] = name
        body.append(
            f'{total} = tl.dot({texts[0]}, {texts[1]}, {total}, input_precision="{precision}")'
        )
        self.lines.append(f"for start in {self._turns(dim)}:")
        self.lines += [INDENT + line for line in body]
        return total

    def _turns(self, dim: Dim) -> str:
        """The loop's range; a single turn stands alone, since all places are constants then."""
        ends = f"0, {dim.axis.size}, {dim.block}"
        if is_known(dim.axis.size) and dim.programs == 1:
            return f"tl.static_range({ends})"
        return f"tl.range({ends}, num_stages={self.tile.stages})"

    def _factor(self, value: Value, rank: list[str], dim: Dim) -> str:
        """The name of one factor's tile."""
        assert self.body is not None
        places = ", ".join(":" if each == "r" else "None" for each in rank)
        name = self.names[dim.axis].partition("_")[0]
        self.rank, self.loop_memo = rank, {}
        self.names[dim.axis] = own = f"{name}_{'first' if rank[1] == 'r' else 'second'}"
        self.body.append(f"{own} = {name}[{places}]")
        if not dim.exact:
            self.body.append(f"{own}_in = {own} < {dim.axis.size}")
        known = dim.exact or _is_load(value)
        text, whole = self.value(value), frozenset(rank)
        if not known:
            text = f"tl.where({own}_in, {text}, 0.0)"
        if self.used(value) != whole:
            text = f"tl.broadcast_to({text}, {self._shape(whole)})"
        return self._emit(text, whole)


def _is_load(value: Value) -> bool:
    """Whether the value is an element from memory, which is 0 beyond an axis."""
    while isinstance(value, Cast) and value.dtype.is_floating_point:
        value = value.value
    return isinstance(value, Load) and value.dtype.is_floating_point
