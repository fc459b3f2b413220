"""What a lowering works with: loads of its operands, and new nests with their buffers."""

from collections.abc import Callable, Sequence
from functools import cache
from math import prod
from typing import Any

import torch

from ..loops import sizes
from ..loops.ir import Buffer, Load, Nest, Store, Value
from ..loops.kernel_graph import Item, Layout, Ref, extent, is_dense, is_distinct
from ..loops.polynomials import Poly, Size, hint
from ..loops.positions import check, uncertain
from ..loops.sizes import Index
from ..loops.symint import GraphSymbols
from .registry import Unsupported
from .value_builders import cast, const

FILLED = 64  # rows from which on a GPU scans them side by side
SHORT = 4096  # and the longest row for which fewer do
Body = Callable[[tuple[Index, ...]], Value]
Places = Callable[[tuple[Index, ...]], tuple[Index, ...]]


@cache
def _example(dtype: torch.dtype, axes: int) -> torch.Tensor:
    return torch.empty((1,) * axes, dtype=dtype, device="meta")


class LoweringContext:
    """Collects the items and buffers of one unit while its graph is lowered."""

    def __init__(self, symbols: GraphSymbols, ordered: bool = True) -> None:
        """ordered: whether the target runs the points of a nest that meet in one place in
        order."""
        self.symbols, self.ordered = symbols, ordered
        self.items: list[Item] = []
        self.layouts: dict[Buffer, Layout] = {}
        self.widened: dict[tuple[Ref, tuple[int, ...]], Ref] = {}  # operands of products
        self.origin = ""
        self._count = 0

    def inner(self) -> "LoweringContext":
        """For a graph inside, whose buffers have other names than those here."""
        made = LoweringContext(self.symbols, self.ordered)
        made.layouts, made._count = dict(self.layouts), self._count
        return made

    def fresh(self, stem: str) -> str:
        self._count += 1
        return f"{stem}{self._count}"

    def buffer(self, stem: str, dtype: torch.dtype, layout: Layout) -> Buffer:
        made = Buffer(self.fresh(stem), dtype, extent(layout.shape, layout.strides))
        self.layouts[made] = layout
        return made

    def result(self, value: torch.Tensor) -> Ref:
        """A new buffer for a dense tensor like `value`."""
        if value.layout != torch.strided or value.dtype.is_complex or value.is_quantized:
            raise Unsupported(f"a {value.dtype} tensor of layout {value.layout}")
        shape, strides = self.symbols.shape(value), self.symbols.strides(value)
        if 0 in shape:
            raise Unsupported("an empty result")
        if not is_dense(shape, strides):
            raise Unsupported(f"a result with strides {strides}")
        return Ref(
            self.buffer("buf", value.dtype, Layout(shape, strides, value.device)), shape, strides
        )

    def gapped_result(self, value: torch.Tensor) -> Ref:
        """As `result`; a tensor that leaves gaps is allocated with them."""
        shape, strides = self.symbols.shape(value), self.symbols.strides(value)
        if 0 in shape or value.dtype.is_complex or not is_distinct(shape, strides):
            return self.result(value)
        layout = Layout(shape, strides, value.device)
        return Ref(self.buffer("buf", value.dtype, layout), shape, strides)

    def compact_result(self, value: torch.Tensor) -> Ref:
        """As `result`; for a tensor that leaves gaps one without, its axes in the same order."""
        shape, strides = self.symbols.shape(value), self.symbols.strides(value)
        if 0 in shape or value.dtype.is_complex or is_dense(shape, strides):
            return self.result(value)
        dense = _dense_strides(shape, strides)
        buffer = self.buffer("buf", value.dtype, Layout(shape, dense, value.device))
        return Ref(buffer, shape, dense)

    def temporary(self, shape: Sequence[Size], dtype: torch.dtype, device: torch.device) -> Ref:
        sizes_ = tuple(shape)
        strides = sizes.contiguous_strides(sizes_)
        return Ref(self.buffer("tmp", dtype, Layout(sizes_, strides, device)), sizes_, strides)

    def like(self, ref: Ref, shape: Sequence[Size], dtype: torch.dtype) -> Ref:
        """A new buffer of `shape` in the order of the axes of `ref`, which has as many."""
        dense = _dense_strides(shape, ref.strides)
        layout = Layout(tuple(shape), dense, self.device_of(ref))
        return Ref(self.buffer("tmp", dtype, layout), tuple(shape), dense)

    @staticmethod
    def value_of(node: Any) -> torch.Tensor:
        value = node.meta["val"]
        if not isinstance(value, torch.Tensor):
            raise Unsupported("a result that is not a tensor")
        return value

    def device_of(self, ref: Ref) -> torch.device:
        return self.layouts[ref.buffer].device

    def example(self, operand: Any) -> Any:
        """A meta tensor or type of number that type promotion treats as it would the operand."""
        if isinstance(operand, Ref):
            return _example(operand.dtype, len(operand.shape))
        if isinstance(operand, Poly):
            return int
        if isinstance(operand, bool | int | float):
            return type(operand)
        raise Unsupported(f"an operand of type {type(operand).__name__}")

    def element(self, operand: Any, at: tuple[Index, ...], dtype: torch.dtype) -> Value:
        """The operand's element for result coordinates `at`; a number becomes a constant of
        `dtype`."""
        if isinstance(operand, Ref):
            return operand.load(at)
        if isinstance(operand, bool | int | float | Poly):
            return const(operand, dtype)
        raise Unsupported(f"an operand of type {type(operand).__name__}")

    def pick(self, x: Ref, at: Sequence[Index]) -> Load:
        """The element at coordinates that may be positions from memory."""
        return Load(x.buffer, self._picked(x, at))

    def _picked(self, x: Ref, at: Sequence[Index]) -> Index:
        """Where the element is. A loop of its own asks for positions that do not matter for that,
        since the tensor is expanded, or has one element there."""
        index, device = x.index(at), self.device_of(x)
        known = set(uncertain([index]))
        for atom in dict.fromkeys(uncertain(at)):
            if atom not in known:
                self.add(check(atom, (self.origin,), device, self.layouts))
        return index

    def add(self, nest: Nest) -> None:
        self.items.append(nest)

    def fill(self, target: Ref, body: Body) -> Ref:
        """A pointwise nest that stores `body(coordinates)` at every element of `target`."""
        at = tuple(sizes.atom_index(axis) for axis in sizes.make_axes(target.shape))
        store = Store(target.buffer, target.index(at), body(at))
        self.add(Nest(target.shape, (), (store,), (self.origin,)))
        return target

    def scatter(
        self,
        target: Ref,
        shape: Sequence[Size],
        body: Body,
        places: Places,
        combine: str | None = None,
    ) -> Ref:
        """A nest over `shape` that stores `body(coordinates)` at `places(coordinates)` of
        `target`."""
        if not self.ordered:
            raise Unsupported("stores at positions from memory")
        if 0 in shape:
            return target
        at = tuple(sizes.atom_index(axis) for axis in sizes.make_axes(tuple(shape)))
        place = self._picked(target, places(at))
        store = Store(target.buffer, place, cast(body(at), target.dtype), combine)
        self.add(Nest(tuple(shape), (), (store,), (self.origin,)))
        return target

    def scan(self, target: Ref, axis: int, body: Body, kind: str) -> Ref:
        """A nest that stores, at each point, the fold of `body` over the points of `axis` up to
        it."""
        shape = target.shape
        outer = [d for d in range(len(shape)) if d != axis]
        if not self.ordered and not _many_rows([shape[d] for d in outer], shape[axis]):
            raise Unsupported("a scan of few rows")
        axes = sizes.make_axes((*(shape[d] for d in outer), shape[axis]))
        places = dict(zip((*outer, axis), map(sizes.atom_index, axes), strict=True))
        at = tuple(places[d] for d in range(len(shape)))
        store = Store(target.buffer, target.index(at), cast(body(at), target.dtype), kind)
        space = tuple(shape[d] for d in outer)
        self.add(Nest(space, (shape[axis],), (store,), (self.origin,)))
        return target

    def pointwise(self, node: Any, body: Body) -> Ref:
        value = self.value_of(node)
        return self.fill(self.result(value), body)

    def reduce(self, target: Ref, inner: Sequence[Size], body: Callable[..., Value]) -> Ref:
        """A reduction nest over `inner` axes; `body(outer, inner)` makes the value to store,
        `Reduced` included."""
        if 0 in inner:
            raise Unsupported("a reduction of nothing")
        outer_axes = sizes.make_axes(target.shape)
        inner_axes = sizes.make_axes(tuple(inner), len(outer_axes))
        outer, within = (
            tuple(sizes.atom_index(axis) for axis in axes) for axes in (outer_axes, inner_axes)
        )
        value = cast(body(outer, within), target.dtype)
        store = Store(target.buffer, target.index(outer), value)
        self.add(Nest(target.shape, tuple(inner), (store,), (self.origin,)))
        return target


def _dense_strides(shape: Sequence[Size], strides: Sequence[Size]) -> tuple[Size, ...]:
    """Strides without gaps, in the order of the given ones."""
    order = sorted(range(len(shape)), key=lambda d: (-hint(strides[d]), d))
    steps = sizes.contiguous_strides([shape[d] for d in order])
    return tuple(steps[order.index(d)] for d in range(len(shape)))


def _many_rows(outer: Sequence[Size], length: Size) -> bool:
    """Whether programs that scan a row each fill a GPU, or have little to do."""
    return hint(prod(outer)) >= FILLED or hint(length) <= SHORT
