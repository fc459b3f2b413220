"""Legality of the loop IR, checked after every stage. Each rule yields one sentence for each
offence."""

from collections.abc import Iterable, Iterator, Mapping

import torch

from ...runtime.errors import LoweringError
from . import sizes
from .dump import dump
from .ir import (
    EXPONENTIALS,
    PARTIAL,
    PRODUCTS,
    REDUCTIONS,
    RUNNING,
    SQUARES,
    Buffer,
    Group,
    Indirect,
    Load,
    Nest,
    Op,
    Reduced,
    Select,
    Store,
    Value,
    atoms,
    group_variables,
    indices_of,
    nest_loads,
    part_height,
    scatters,
    show,
    store_values,
    walk,
)
from .ops import OPS
from .polynomials import Size, Var, hint, hints
from .sizes import Atom, Axis, Index
from .symint import SizeVariable

COMBINES = (None, "sum", "prod", "max", "min", PARTIAL, *RUNNING)
HALVES = frozenset({torch.float16, torch.bfloat16})


def check(groups: Iterable[Group], stage: str) -> None:
    """Raise LoweringError, naming the stage, the offences and the kernel, if a group is not
    legal."""
    for group in groups:
        problems = list(group_problems(group))
        if problems:
            raise LoweringError(
                f"illegal loop IR after {stage}: {'; '.join(problems[:5])}\n{dump(group)}"
            )


def group_problems(group: Group) -> Iterator[str]:
    if len(group.nests) > 1 and any(map(scatters, group.nests)):
        yield "a nest whose points may store at one place shares a kernel"
    heights = {nest: part_height((nest,)) for nest in group.nests}
    if len({*heights.values()} - {None}) > 1:
        yield "partial sums of unequal parts share a kernel"
    if len(group.space) != 1 and any(height is not None for height in heights.values()):
        yield "partial sums along no axis of space"
    stored: set[Buffer] = set()
    for nest in group.nests:
        if nest.space != group.space:
            yield f"nest space {nest.space} differs from the group's {group.space}"
        yield from nest_problems(nest)
        for load in nest_loads(nest):
            if load.buffer.scope == "local" and load.buffer not in stored:
                yield f"local buffer {load.buffer.name} is loaded before it is stored"
        stored.update(store.buffer for store in nest.stores)
    yield from _name_clashes(group)


def _name_clashes(group: Group) -> Iterator[str]:
    buffers = {load.buffer for nest in group.nests for load in nest_loads(nest)}
    buffers |= {store.buffer for nest in group.nests for store in nest.stores}
    names = [buffer.name for buffer in buffers]
    yield from (
        f"two buffers are named {name}" for name in {n for n in names if names.count(n) > 1}
    )


def nest_problems(nest: Nest) -> Iterator[str]:
    for store in nest.stores:
        yield from _store_problems(nest, store)
    for value in store_values(nest):
        yield from _type_problems(value)
        yield from _index_problems(nest, value)
    yield from _placement_problems(nest)


def _store_problems(nest: Nest, store: Store) -> Iterator[str]:
    if store.value.dtype != store.buffer.dtype:
        yield f"{store.buffer.name} of {store.buffer.dtype} is given {store.value.dtype}"
    if store.combine == PARTIAL and nest.height is None:
        yield f"partial sums of no part in {store.buffer.name}"
    if store.combine not in COMBINES:
        yield f"unknown combine {store.combine!r}"
    if store.buffer.scope == "global":
        yield from _bound_problems(store.buffer, store.index, nest)
    yield from _axis_problems(nest, store.index)


def _bound_problems(buffer: Buffer, index: Index, nest: Nest) -> Iterator[str]:
    if 0 in nest.space + nest.inner or (
        sizes.nonnegative(index) and sizes.within(index, buffer.size)
    ):
        return
    if 0 in hints(nest.space + nest.inner):
        return
    low, high = sizes.bounds(
        at_hints(index)
    )  # what cannot be proven for every call has to hold in the recorded one
    if not (low >= 0 and high < hint(buffer.size)):
        yield f"index {index.text} of {buffer.name} runs from {low} to {high}, size {buffer.size}"


def _axis_problems(nest: Nest, index: Index) -> Iterator[str]:
    axes = nest.axes
    for atom in atoms(index):
        if isinstance(atom, Axis) and atom not in axes:
            yield f"axis {atom.text} of size {atom.size} is not one of the nest's"


def _index_problems(nest: Nest, value: Value) -> Iterator[str]:
    for index in indices_of(value):
        yield from _axis_problems(nest, index)
    if isinstance(value, Load) and value.buffer.scope == "global" and value.mask is None:
        yield from _bound_problems(value.buffer, value.index, nest)


def _type_problems(value: Value) -> Iterator[str]:
    if isinstance(value, Op):
        yield from _op_problems(value)
    elif isinstance(value, Select):
        if value.condition.dtype != torch.bool or value.then.dtype != value.orelse.dtype:
            yield f"where of {[child.dtype for child in value.children()]}"
    elif isinstance(value, Load) and value.mask is not None and value.mask.dtype != torch.bool:
        yield f"mask of {value.mask.dtype}"
    elif isinstance(value, Reduced):
        yield from _reduced_problems(value)


def _op_problems(value: Op) -> Iterator[str]:
    signature = OPS.get(value.name)
    if signature is None or len(value.args) != signature.arity:
        yield f"no operation {value.name} of {len(value.args)} arguments"
        return
    types = {arg.dtype for arg in value.args}
    if len(types) != 1 or not types <= signature.operands:
        yield f"{value.name} of {sorted(map(str, types))}"
    elif value.dtype != (signature.result or value.args[0].dtype):
        yield f"{value.name} gives {value.dtype}"


def _reduced_problems(value: Reduced) -> Iterator[str]:
    if value.kind not in (*REDUCTIONS, *PRODUCTS, SQUARES, EXPONENTIALS):
        yield f"unknown reduction {value.kind}"
    expected = torch.int64 if value.kind.startswith("arg") else value.value.dtype
    if value.dtype != expected or value.value.dtype in HALVES:
        yield f"{value.kind} of {value.value.dtype} gives {value.dtype}"
    if value.kind in ("any", "all") and value.dtype != torch.bool:
        yield f"{value.kind} of {value.dtype}"


def _placement_problems(nest: Nest) -> Iterator[str]:
    """In a reduction nest only what is inside a `Reduced` may use inner axes, and a `Reduced` holds
    no other."""
    if not nest.is_reduction:
        return
    inner = set(nest.axes[len(nest.space) :])
    for store in nest.stores:
        if _uses(store.index, inner):
            yield f"{store.buffer.name} is stored at an inner axis in a reduction"
        for value in _outside(store.value):
            if any(_uses(index, inner) for index in indices_of(value)):
                yield f"{show(value)} uses an inner axis outside the reduction"
    for value in store_values(nest):
        if isinstance(value, Reduced) and any(
            isinstance(below, Reduced) for below in walk(value.value)
        ):
            yield f"{value.kind} inside of a reduction"


def undefined_variables(known: Iterable[SizeVariable | Var], groups: Iterable[Group]) -> list[str]:
    """Size variables of the groups that are not among the known ones, by name."""
    names = {given.name if isinstance(given, Var) else given.var.name for given in known}
    return sorted({var.name for group in groups for var in group_variables(group)} - names)


def _outside(root: Value) -> Iterator[Value]:
    yield root
    if not isinstance(root, Reduced):
        for child in root.children():
            yield from _outside(child)


def _uses(index: Index, axes: set[Axis]) -> bool:
    return any(isinstance(atom, Axis) and atom in axes for atom in atoms(index))


def coverage_problems(nests: Iterable[Nest], needed: Mapping[Buffer, Size]) -> Iterator[str]:
    """Every element must be stored, of which `needed` has the count by buffer: counts the points of
    all overwriting stores (exact when stores are one-to-one)."""
    points: dict[Buffer, Size] = {}
    for nest in nests:
        for store in nest.stores:
            points[store.buffer] = points.get(store.buffer, 0) + _points(nest, store)
    for buffer, count in needed.items():
        if hint(points.get(buffer, 0)) < hint(count):
            yield f"{buffer.name} has {count} elements, {points.get(buffer, 0)} are stored"


def _points(nest: Nest, store: Store) -> Size:
    used = {atom for atom in atoms(store.index) if isinstance(atom, Axis)}
    count: Size = 1
    for axis in nest.axes:
        count *= axis.size if axis in used else int(axis.size != 0)
    return count


def at_hints(index: Index) -> Index:
    """The index with the sizes of the recorded call."""
    parts = [sizes.scale(_at_hint(atom), hint(factor)) for atom, factor in index.terms]
    return sizes.add(sizes.const(hint(index.offset)), *parts)


def _at_hint(atom: Atom) -> Index:
    if isinstance(atom, Axis):
        return sizes.atom_index(Axis(atom.number, hint(atom.size)))
    if isinstance(atom, Indirect):
        return sizes.atom_index(Indirect(atom.value, hint(atom.bound), atom.certain))
    if isinstance(atom, sizes.FloorDiv):
        return sizes.floordiv(at_hints(atom.base), hint(atom.divisor))
    assert isinstance(atom, sizes.Mod)
    return sizes.mod(at_hints(atom.base), hint(atom.divisor))
