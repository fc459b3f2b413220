"""From scheduled, stored groups to a program."""

import dataclasses
import enum
from collections.abc import Callable, Container, Iterator
from typing import Any, Protocol

import torch

from ..runtime.options import Options
from ..runtime.programs.arena import ArenaView
from ..runtime.programs.program import (
    Alloc,
    Arena,
    Define,
    Expression,
    Extern,
    Free,
    InArena,
    KernelStep,
    Name,
    Program,
    Return,
    Step,
    View,
)
from .loops.ir import Batch, Buffer, Group, group_variables
from .loops.kernel_graph import ExternCall, Item, Ref, Symbol, Unit, extent
from .loops.polynomials import Var, at_least, variable, variables
from .loops.storage import Storage, given_buffers, written
from .loops.symint import SizeVariable
from .targets.extern import (
    common_layouts,
    convert,
    exact_layouts,
    extern_step,
    number,
    numbers,
    tensor,
)

aten = torch.ops.aten
Launch = tuple[Callable[..., None], tuple[Buffer, ...]]


class Target(Protocol):
    """Builds kernels. arena: whether its kernels take addresses.

    A kernel takes its buffers, then its `group_variables`.
    """

    arena: bool

    def build(
        self, unit: Unit, groups: list[Group | Batch], may_meet: Container[Buffer]
    ) -> dict[Group | Batch, Launch]:
        """For each group a function and the buffers that it takes, in order. may_meet: buffers of
        which one may be stored where another lies that the kernel reads."""


class Execution(enum.Enum):
    """How a kernel of a target runs the points of its space: one after the other in each of a few
    threads, which may hold sums and write to one place in order, or all of them independently."""

    IN_ORDER = "CPU"
    PARALLEL = "GPU"


@dataclasses.dataclass(frozen=True)
class TargetKind:
    """name: as the options name it. devices: types of devices whose graphs it builds unasked."""

    name: str
    devices: frozenset[str]
    execution: Execution
    make: Callable[[Options], Target]


def emit(unit: Unit, storage: Storage, launches: dict[Group | Batch, Launch]) -> Program:
    unit = unit.replace(layouts=common_layouts(unit))
    steps = _Emitter(unit, storage, launches).steps()
    constants = {buffer.name: value for buffer, value in unit.constants.items()}
    inputs = [_input_name(ref, number) for number, ref in enumerate(unit.inputs)]
    return Program(unit.name, inputs, steps, constants)


def _input_name(ref: Any, number: int) -> str:
    return (
        ref.buffer.name
        if isinstance(ref, Ref)
        else ref.name
        if isinstance(ref, Symbol)
        else f"unused{number}"
    )


class _Emitter:
    def __init__(self, unit: Unit, storage: Storage, launches: dict[Group | Batch, Launch]) -> None:
        self.unit, self.storage, self.launches = unit, storage, launches
        self.ready = given_buffers(unit)
        self.kept = set(storage.reuse.values())
        self.exact = exact_layouts(unit)
        self.made: list[Step] = []
        self.taken: dict[Buffer | None, Buffer] = {}
        self.placed: dict[ArenaView, str] = {}

    def steps(self) -> list[Step]:
        for item, dies in zip(self.unit.items, self.storage.dies, strict=True):
            self._item(item)
            names = tuple(b.name for b in dies if b not in self.kept)
            if names:
                self.made.append(Free(names))
        self.made.append(Return(tuple(self._results())))
        self.made[:0] = self._reaching()
        if self.storage.arena_size != 0:
            size = number(self.storage.arena_size)
            self.made.insert(0, Arena(size, tuple(self.placed.values()), tuple(self.placed)))
        return [*self._definitions(), *self.made]

    def _results(self) -> Iterator[Any]:
        """The outputs. Of those that the caller gets as tensors, each is an object of its own, as
        `y` and `y.detach()` are, and none is an input, which may be given another shape."""
        given = {_input_name(ref, number) for number, ref in enumerate(self.unit.inputs)}
        for place, value in enumerate(self.unit.outputs):
            result = convert(value, self.variable)
            if isinstance(value, Ref) and isinstance(result, Name) and place < self.unit.returned:
                if result.name in given:
                    result = View(result.name, numbers(value.shape), numbers(value.strides), 0)
                given.add(result.name)
            yield result

    def _reaching(self) -> Iterator[Step]:
        """Where inputs are written: views that the caller gets of what may lie behind an input in
        its memory, made once ahead of the writes. The memory may end before."""
        given = given_buffers(self.unit)
        if not any(written(item) & given for item in self.unit.items):
            return
        for value in dict.fromkeys(each for each in self.unit.outputs if isinstance(each, Ref)):
            end = value.offset + extent(value.shape, value.strides)
            if value.buffer in given and not at_least(value.buffer.size, end):
                view = View(
                    value.buffer.name,
                    numbers(value.shape),
                    numbers(value.strides),
                    number(value.offset),
                )
                yield Extern(aten.alias.default, (view,), {}, None, large=False)

    def _definitions(self) -> list[Step]:
        """The size variables that the steps use."""
        used = set(_names(self.made))
        steps: list[Step] = []
        for given in reversed((*self.unit.variables, *self.storage.variables)):
            var = given if isinstance(given, Var) else given.var
            if var.name not in used:
                continue
            if isinstance(given, SizeVariable):
                steps.append(Define(var.name, Expression(given.text, given.uses)))
                used.update(given.uses)
            else:
                below = (
                    tuple(v.name for operand in given.formula[1] for v in variables(operand))
                    if given.formula
                    else ()
                )
                steps.append(Define(var.name, Expression(given.definition, below)))
                used.update(below)
        return steps[::-1]

    def variable(self, ref: Ref) -> Name | View:
        """The tensor's variable: one of the arena's, or its own or a view of it."""
        start = self.storage.arena.get(ref.buffer)
        if start is None:
            return tensor(ref, self.unit.layouts[ref.buffer])
        offset: Any = start + ref.offset * ref.dtype.itemsize
        view = ArenaView(offset, ref.shape, ref.strides, ref.dtype)
        return Name(self.placed.setdefault(view, f"placed{len(self.placed)}"))

    def _item(self, item: Item) -> None:
        if isinstance(item, ExternCall):
            ahead = [b for b in item.writes() if b in self.storage.ahead]
            for buffer in ahead:
                self._allocate(buffer)
            placed = [*ahead, *(b for b in item.writes() if b in self.storage.arena)]
            self.made.append(extern_step(item, self.variable, self.exact, placed))
            self.ready.update(item.writes())
            return
        assert isinstance(item, Group | Batch)
        for buffer in sorted(
            written(item) - self.ready - set(self.storage.arena), key=lambda b: b.name
        ):
            self._allocate(buffer)
        launch, buffers = self.launches[item]
        origins = tuple(dict.fromkeys(origin for nest in item.nests for origin in nest.origins))
        self.taken = {self.storage.reuse.get(buffer): buffer for buffer in written(item)}
        arguments = [
            *map(self._argument, buffers),
            *(number(variable(var)) for var in group_variables(item)),
        ]
        self.made.append(KernelStep(item.name, launch, tuple(arguments), origins))  # type: ignore[arg-type]

    def _allocate(self, buffer: Buffer) -> None:
        layout = self.unit.layouts[buffer]
        old = self.storage.reuse.get(buffer) or self.storage.asks.get(buffer)
        asks = buffer in self.storage.asks
        shape, strides = numbers(layout.shape), numbers(layout.strides)
        self.made.append(
            Alloc(
                buffer.name,
                shape,
                strides,
                buffer.dtype,
                layout.device,
                old.name if old else None,
                asks,
            )
        )
        self.ready.add(buffer)

    def _argument(self, buffer: Buffer) -> Name | InArena:
        offset = self.storage.arena.get(buffer)
        buffer = self.taken.get(buffer, buffer)  # what is stored in its place
        return Name(buffer.name) if offset is None else InArena(number(offset))


def _names(tree: Any) -> Iterator[str]:
    """Variables in the expressions of steps and of what they hold."""
    if isinstance(tree, Expression):
        yield from tree.names
    elif isinstance(tree, list | tuple):
        for item in tree:
            yield from _names(item)
    elif isinstance(tree, dict):
        yield from _names(list(tree.values()))
    elif isinstance(tree, slice):
        yield from _names((tree.start, tree.stop, tree.step))
    elif dataclasses.is_dataclass(tree):
        yield from _names([getattr(tree, field.name) for field in dataclasses.fields(tree)])
