"""Positions from memory that may be out of range: eager raises, whatever becomes of what is read
there. A loop that would no longer ask hands its positions on to a loop that does nothing else."""

from collections.abc import Container, Iterable, Iterator, Sequence
from math import prod

import torch

from . import sizes
from .axes import axes_of
from .ir import (
    Buffer,
    Const,
    IndexValue,
    Indirect,
    Load,
    Nest,
    Select,
    Store,
    Value,
    atoms,
    has_positions,
    indices_of,
    rewrite_axes,
)
from .kernel_graph import Layout
from .polynomials import Size, at_least
from .sizes import Axis, Index

Case = tuple[Value, bool]  # a condition, and whether it holds


def asked(nest: Nest) -> tuple[Indirect, ...]:
    """The positions that the nest asks for at every point: not those behind a condition."""
    if not has_positions(nest):
        return ()
    indices = [store.index for store in nest.stores]
    indices += (index for value in unconditional(nest) for index in indices_of(value))
    return tuple(dict.fromkeys(uncertain(indices)))


def uncertain(indices: Iterable[Index]) -> Iterator[Indirect]:
    for atom in (atom for index in indices for atom in atoms(index)):
        if isinstance(atom, Indirect) and atom.may_raise:
            yield atom


def unconditional(nest: Nest, given: Container[Case] = ()) -> Iterator[Value]:
    """The values that the nest computes at every point, or at every one where these cases are
    given, whatever other conditions give, but for loads under a mask."""
    seen, todo = set[Value](), [*nest.roots]
    while todo:
        value = todo.pop()
        if value in seen:
            continue
        seen.add(value)
        if isinstance(value, Select):
            sides = {True: value.then, False: value.orelse}
            todo += [side for case, side in sides.items() if (value.condition, case) in given]
            todo.append(value.condition)
        elif isinstance(value, Load) and value.mask is not None and (value.mask, True) not in given:
            todo.append(value.mask)
        else:
            yield value
            todo += value.below()


def harmful_case(position: Indirect) -> Case | None:
    """The only case in which the position may be out of range, of one that a condition replaces by
    a number: a class to ignore, by the first one."""
    choice, last = position.value, position.bound - 1
    if isinstance(choice, Select):
        for case, number in ((True, choice.orelse), (False, choice.then)):
            value = number.value if isinstance(number, Const) else None
            if isinstance(value, int) and value >= 0 and at_least(last, value):
                return choice.condition, case
    return None


def checks_of(nest: Nest, atoms_: Iterable[Indirect], layouts: dict[Buffer, Layout]) -> list[Nest]:
    """Loops that ask for these positions of the nest, and do nothing else."""
    device = layouts[nest.stores[0].buffer].device
    return [check(atom, nest.origins, device, layouts) for atom in atoms_]


def check(
    atom: Indirect, origins: tuple[str, ...], device: torch.device, layouts: dict[Buffer, Layout]
) -> Nest:
    """A loop that asks for the position at each point of the axes that it depends on."""
    position = IndexValue(sizes.atom_index(atom))
    axes = sorted(axes_of(position), key=lambda axis: axis.number)
    return computed(position, axes, (), origins, device, layouts)[0]


def computed(
    value: Value,
    axes: Sequence[Axis],
    inner: Sequence[Axis],
    origins: tuple[str, ...],
    device: torch.device,
    layouts: dict[Buffer, Layout],
) -> tuple[Nest, Load]:
    """A nest that stores the value, folded over `inner`, at each point of `axes` into a new buffer,
    and a load of it there."""
    shape: tuple[Size, ...] = tuple(axis.size for axis in axes)
    strides = sizes.contiguous_strides(shape)
    buffer = Buffer(f"new{len(layouts)}", value.dtype, prod(shape))
    layouts[buffer] = Layout(shape, strides, device)
    places = {axis: Axis(number, axis.size) for number, axis in enumerate((*axes, *inner))}
    moved = rewrite_axes(value, lambda axis: sizes.atom_index(places[axis]))  # type: ignore[index]
    store = Store(buffer, sizes.linear([places[a] for a in axes], strides), moved)
    nest = Nest(shape, tuple(axis.size for axis in inner), (store,), origins)
    return nest, Load(buffer, sizes.linear(axes, strides))
