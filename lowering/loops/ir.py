"""The loop IR. A `Group` becomes one kernel; it runs its `Nest`s in order for every point of their
shared `space`.

    Group(space, nests)
      Nest(space, inner, stores)          for each point of space: for each point of inner: ...
        Store(buffer, index, value)
          value = Const | Load | Op | Cast | Select | IndexValue | Reduced

* Axis numbers count `space` first, then `inner`. Points of `space` are independent of each other
  and may run in any
  order or at once.
* A nest is *pointwise* when its values hold no `Reduced`: each store runs at every point of space x
  inner. It is a
  *reduction* when they do: every `Reduced` folds over all of `inner`, what stands inside a
  `Reduced` is the prologue and runs at every point of inner, what stands outside is the epilogue
  and runs once a point of space, and store indices use space axes alone. Several reductions of one
  nest share one pass.
* Within a point of space, a nest sees what earlier nests of its group stored. A buffer of scope
  "local" lives in a
  register: one value a point of space, stored and loaded with index 0 (which every target ignores),
  gone when the point is done.
* Indices are flat element offsets from the buffer's first element. Views are index maps and cost
  nothing.
* Types are explicit: the operands of an `Op` have its dtype (comparisons: each other's, result
  bool; `where` is
  `Select`), there is no arithmetic in float16 and bfloat16 (`Cast` to float32 before, `Cast` back
  after, which rounds), a store's value has its buffer's dtype.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import torch

from . import polynomials, sizes
from .nodes import Lazy, Node, node
from .polynomials import Size, Var
from .sizes import Atom, Axis, FloorDiv, Index

RUNNING = {"running sum": "sum", "running prod": "prod"}
PARTIAL = "partial sum"
SQUARES, EXPONENTIALS = "squares", "exponentials"
# Sums of products on tensor cores, by how float32 is multiplied there (`tl.dot`'s names): rounded
# to TF32, or as sums of three products of what TF32 holds, which is nearly exact.
PRODUCTS = {"products in tf32": "tf32", "products in tf32x3": "tf32x3"}
# The operation that joins two partial results of a reduction.
JOINED_BY = {
    "sum": "add",
    "prod": "mul",
    "max": "maximum",
    "min": "minimum",
    "any": "or",
    "all": "and",
}
REDUCTIONS = frozenset({*JOINED_BY, "argmax", "argmin"})


@node
class Buffer(Node):
    """`size` elements of `dtype`. Scope "global": memory, passed to the kernel as a pointer;
    "local": one value in a register."""

    name: str
    dtype: torch.dtype
    size: Size
    scope: str = "global"


class Value(Node):
    """An expression of one element."""

    dtype: torch.dtype

    def children(self) -> tuple[Value, ...]:
        return ()

    def below(self) -> tuple[Value, ...]:
        """The values inside indirect indices, and the children."""
        inside = [value for index in indices_of(self) for value in indirect_values(index)]
        return (*inside, *self.children()) if inside else self.children()

    @Lazy
    def leaves(self) -> tuple[Value, ...]:
        """Loads and index values here and below, each once, in the order of `walk`."""
        own: tuple[Value, ...] = (self,) if indices_of(self) else ()
        parts = [part for part in (own, *(v.leaves for v in self.below())) if part]
        if len(parts) < 2:
            return parts[0] if parts else ()
        return tuple(dict.fromkeys(leaf for part in parts for leaf in part))

    @Lazy
    def folds(self) -> bool:
        """Whether there is a `Reduced` here or below."""
        return isinstance(self, Reduced) or any(value.folds for value in self.below())

    @Lazy
    def count(self) -> int:
        """Values here and below, of which those that are shared count each time."""
        return 1 + sum(value.count for value in self.below())


@node
class Const(Value):
    """A Python bool, int or float of `dtype` (floats told apart by their bits: -0.0, NaN)."""

    value: bool | int | float
    dtype: torch.dtype

    def _key(self) -> tuple[object, ...]:
        exact = self.value.hex() if isinstance(self.value, float) else self.value
        return type(self.value), exact, self.dtype


@node
class Load(Value):
    """An element of `buffer`. Where `mask` (a bool value) is false the value is 0 and memory is not
    touched."""

    buffer: Buffer
    index: Index
    mask: Value | None = None

    @property
    def dtype(self) -> torch.dtype:  # type: ignore[override]
        return self.buffer.dtype

    def children(self) -> tuple[Value, ...]:
        return (self.mask,) if self.mask is not None else ()


@node
class Op(Value):
    """A pointwise function; `ops.OPS` lists the names, their arity and result type."""

    name: str
    args: tuple[Value, ...]
    dtype: torch.dtype

    def children(self) -> tuple[Value, ...]:
        return self.args


@node
class Cast(Value):
    """Conversion as `Tensor.to(dtype)`: rounds to float16/bfloat16, truncates float to int, `!= 0`
    to bool."""

    value: Value
    dtype: torch.dtype

    def children(self) -> tuple[Value, ...]:
        return (self.value,)


@node
class Select(Value):
    """`then if condition else orelse`; both sides may be evaluated."""

    condition: Value
    then: Value
    orelse: Value

    @property
    def dtype(self) -> torch.dtype:  # type: ignore[override]
        return self.then.dtype

    def children(self) -> tuple[Value, ...]:
        return self.condition, self.then, self.orelse


@node
class IndexValue(Value):
    """An index as an int64 value (`arange`, masks)."""

    index: Index

    @property
    def dtype(self) -> torch.dtype:  # type: ignore[override]
        return torch.int64


@node
class Reduced(Value):
    """`value` folded over the inner axes. max, min, argmax, argmin propagate NaN; argmax and argmin
    give the first row-major position within `inner` (int64); any and all take and give bool. sum
    and prod fold in `dtype`, the value's own. A target may make `SQUARES`, sum((v - mean(v))^2),
    and `EXPONENTIALS`, sum(exp(v - max(v))), where what equals max(v) counts 1. The value of
    `PRODUCTS` is a product of two float32 values, each from memory by other axes of space: a matrix
    product, for targets that run points at once."""

    kind: str
    value: Value
    dtype: torch.dtype

    def children(self) -> tuple[Value, ...]:
        return (self.value,)


@node
class Indirect(Atom):
    """An integer from memory inside an index. One outside [0, bound) is an error, which the kernel
    reports after it has read position 0 in its place: where eager lets a negative one count from
    the end, the lowering adds `bound` to it."""

    value: Value
    bound: Size
    certain: bool = False  # known to lie in [0, bound): not checked

    @property
    def text(self) -> str:
        return f"[{show(self.value)} < {self.bound}]"

    @property
    def may_raise(self) -> bool:
        return not self.certain

    def bounds(self) -> sizes.Bounds:
        return 0, sizes.last(self.bound)

    def replace(self, rewrite: Callable[[Atom], Index]) -> Index:
        return sizes.atom_index(
            Indirect(rewrite_axes(self.value, rewrite), self.bound, self.certain)
        )


@node
class Store(Node):
    """`combine` None overwrites; "sum", "prod", "max", "min" fold into what is there: points of a
    nest that store at one place do so in the order of the axes. One of `RUNNING` stores the fold of
    the values of all points of the nest's one inner axis up to this one (a scan). A nest that
    combines is a kernel by itself, unless by `PARTIAL`: the index uses the nest's one space axis as
    `axis // height` alone, and what the points of such a part store at one place is summed."""

    buffer: Buffer
    index: Index
    value: Value
    combine: str | None = None


@node
class Nest(Node):
    space: tuple[Size, ...]
    inner: tuple[Size, ...]
    stores: tuple[Store, ...]
    origins: tuple[str, ...] = ()

    @Lazy
    def axes(self) -> tuple[Axis, ...]:
        return sizes.make_axes(self.space + self.inner)

    @Lazy
    def is_reduction(self) -> bool:
        return any(store.value.folds for store in self.stores)

    @Lazy
    def multiplies(self) -> bool:
        """Whether it is a matrix product, which has a kernel without other folds."""
        return any(isinstance(v, Reduced) and v.kind in PRODUCTS for v in self.values)

    @Lazy
    def roots(self) -> tuple[Value, ...]:
        """What is stored, and what store indices need."""
        places = (value for store in self.stores for value in indirect_values(store.index))
        return (*(store.value for store in self.stores), *places)

    @Lazy
    def values(self) -> tuple[Value, ...]:
        """Every value of the nest once, those in store indices included."""
        return tuple(walk(*self.roots))

    @Lazy
    def leaves(self) -> tuple[Value, ...]:
        """Loads and index values of the nest, each once."""
        return tuple(dict.fromkeys(leaf for root in self.roots for leaf in root.leaves))

    @Lazy
    def loads(self) -> tuple[Load, ...]:
        return tuple(value for value in self.leaves if isinstance(value, Load))

    @Lazy
    def reads(self) -> frozenset[Buffer]:
        return frozenset(load.buffer for load in self.loads)

    @Lazy
    def writes(self) -> frozenset[Buffer]:
        return frozenset(store.buffer for store in self.stores)

    @Lazy
    def steps(self) -> frozenset[tuple[Buffer, tuple[Size, ...]]]:
        """What the nest touches at each point of its space: buffers, by how far the space's axes
        move through them."""
        outer = self.axes[: len(self.space)]
        touched = [(load.buffer, load.index) for load in self.loads]
        touched += [(store.buffer, store.index) for store in self.stores]
        steps = {(b, tuple(sizes.coefficient(index, a) for a in outer)) for b, index in touched}
        return frozenset(step for step in steps if any(s != 0 for s in step[1]) or not outer)

    @Lazy
    def height(self) -> Size | None:
        """Points of space in a part, where the nest stores partial sums."""
        indices = (s.index for s in self.stores if s.combine == PARTIAL)
        divisors = (a.divisor for index in indices for a in atoms(index) if isinstance(a, FloorDiv))
        return next(divisors, None)

    @Lazy
    def scatters(self) -> bool:
        return holds_positions(store.index for store in self.stores) or any(
            store.combine not in (None, PARTIAL) for store in self.stores
        )


@node
class Group(Node):
    """One kernel."""

    name: str
    space: tuple[Size, ...]
    nests: tuple[Nest, ...]


@node
class Batch(Node):
    """One kernel that runs groups one after the other, all alike (`batches.like`)."""

    name: str
    groups: tuple[Group, ...]

    @Lazy
    def nests(self) -> tuple[Nest, ...]:
        return tuple(nest for group in self.groups for nest in group.nests)


def indices_of(value: Value) -> tuple[Index, ...]:
    """Indices that the node itself holds."""
    return (value.index,) if isinstance(value, Load | IndexValue) else ()


def walk(*roots: Value) -> Iterator[Value]:
    """Every node below the roots once, values inside indirect indices included, parents first."""
    seen: set[Value] = set()
    stack = list(reversed(roots))
    while stack:
        value = stack.pop()
        if value in seen:
            continue
        seen.add(value)
        yield value
        stack.extend(reversed(value.below()))


def group_variables(group: Group | Batch) -> tuple[Var, ...]:
    """The size variables that the group's loops use, by name: a kernel takes them after its
    buffers."""
    found: set[Size] = set()
    for nest in group.nests:
        found.update(nest.space + nest.inner)
        for index in (
            *(s.index for s in nest.stores),
            *(i for value in store_values(nest) for i in indices_of(value)),
        ):
            found.update(number for part in parts(index) for number in part)
    return tuple(
        sorted(
            {var for size in found for var in polynomials.variables(size)}, key=lambda var: var.name
        )
    )


def parts(index: Index) -> Iterator[tuple[Size, ...]]:
    """The numbers in an index."""
    yield index.offset, *(factor for _, factor in index.terms)
    for atom in atoms(index):
        if isinstance(atom, sizes.FloorDiv | sizes.Mod):
            yield atom.divisor, atom.base.offset, *(factor for _, factor in atom.base.terms)
        elif isinstance(atom, Indirect):
            yield (atom.bound,)


def atoms(index: Index) -> Iterator[Atom]:
    """Every atom below the index, parents first; not those inside the value of an `Indirect`."""
    for atom, _ in index.terms:
        yield atom
        if isinstance(atom, sizes.FloorDiv | sizes.Mod):
            yield from atoms(atom.base)


def indirect_values(index: Index) -> Iterator[Value]:
    return (atom.value for atom in atoms(index) if isinstance(atom, Indirect))


def store_values(nest: Nest) -> Iterator[Value]:
    """Every value of the nest once, those in store indices included."""
    return iter(nest.values)


def nest_loads(nest: Nest) -> Iterator[Load]:
    return iter(nest.loads)


def accesses(nest: Nest) -> Iterator[Load | Store]:
    """Every load and store of the nest."""
    yield from nest_loads(nest)
    yield from nest.stores


def holds_positions(indices: Iterable[Index]) -> bool:
    """Whether one of the indices has a position from memory, which may be out of range."""
    return any(isinstance(atom, Indirect) for index in indices for atom in atoms(index))


def has_positions(nest: Nest) -> bool:
    values = (index for leaf in nest.leaves for index in indices_of(leaf))
    return scatters(nest) or holds_positions(values)


def scatters(nest: Nest) -> bool:
    """Whether points of the nest may store at the same place."""
    return nest.scatters


def part_height(nests: Iterable[Nest]) -> Size | None:
    """Points of space in a part, of nests with partial sums; None if there are none. Such nests of
    one kernel have equal parts."""
    return next((nest.height for nest in nests if nest.height is not None), None)


def rebuild(
    value: Value, visit: Callable[[Value], Value], index: Callable[[Index], Index]
) -> Value:
    """The node with its children replaced by `visit(child)` and its indices by `index(i)`."""
    if isinstance(value, Load):
        return Load(
            value.buffer, index(value.index), None if value.mask is None else visit(value.mask)
        )
    if isinstance(value, IndexValue):
        return IndexValue(index(value.index))
    if isinstance(value, Op):
        return Op(value.name, tuple(visit(arg) for arg in value.args), value.dtype)
    if isinstance(value, Cast):
        return Cast(visit(value.value), value.dtype)
    if isinstance(value, Select):
        return Select(visit(value.condition), visit(value.then), visit(value.orelse))
    if isinstance(value, Reduced):
        return Reduced(value.kind, visit(value.value), value.dtype)
    return value


def map_indirect(index: Index, visit: Callable[[Value], Value]) -> Index:
    """The index with the values inside of it replaced by `visit(value)`."""
    if not any(isinstance(atom, Indirect) for atom in atoms(index)):
        return index
    parts = [sizes.scale(_map_atom(atom, visit), factor) for atom, factor in index.terms]
    return sizes.add(sizes.const(index.offset), *parts)


def _map_atom(atom: Atom, visit: Callable[[Value], Value]) -> Index:
    if isinstance(atom, Indirect):
        return sizes.atom_index(Indirect(visit(atom.value), atom.bound, atom.certain))
    if isinstance(atom, sizes.FloorDiv):
        return sizes.floordiv(map_indirect(atom.base, visit), atom.divisor)
    if isinstance(atom, sizes.Mod):
        return sizes.mod(map_indirect(atom.base, visit), atom.divisor)
    return sizes.atom_index(atom)


class ValueRewriter:
    """Rewrites values bottom-up, each shared node once. Subclasses override `leave` and `index`."""

    def __init__(self) -> None:
        self._done: dict[Value, Value] = {}

    def __call__(self, value: Value) -> Value:
        if value not in self._done:
            self._done[value] = self.leave(rebuild(value, self, self.index))
        return self._done[value]

    def index(self, index: Index) -> Index:
        return map_indirect(index, self)

    def leave(self, value: Value) -> Value:
        return value


class AxisRewriter(ValueRewriter):
    def __init__(self, rewrite: Callable[[Atom], Index]) -> None:
        super().__init__()
        self.rewrite = rewrite

    def index(self, index: Index) -> Index:
        return sizes.replace(index, self.rewrite)


def rewrite_axes(value: Value, rewrite: Callable[[Atom], Index]) -> Value:
    return AxisRewriter(rewrite)(value)


def show(value: Value) -> str:
    """One value as text."""
    if isinstance(value, Const):
        return repr(value.value)
    if isinstance(value, Load):
        mask = f" if {show(value.mask)}" if value.mask is not None else ""
        return f"{value.buffer.name}[{value.index.text}{mask}]"
    if isinstance(value, IndexValue):
        return f"({value.index.text})"
    if isinstance(value, Cast):
        return f"{dtype_name(value.dtype)}({show(value.value)})"
    name = (
        value.name
        if isinstance(value, Op)
        else value.kind
        if isinstance(value, Reduced)
        else "where"
    )
    brackets = "<>" if isinstance(value, Reduced) else "()"
    return f"{name}{brackets[0]}{', '.join(show(child) for child in value.children())}{brackets[1]}"


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
