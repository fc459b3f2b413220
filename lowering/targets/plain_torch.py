"""Loops as Python that plain torch runs, as eager would: each axis is an `arange`, each value of a
nest one tensor over all points. What kernels are compared with, and an example of a target: a class
that prints groups, and the kind under which it is registered."""

import itertools
from collections.abc import Container
from typing import Any

import torch

from ...runtime.errors import LoweringError
from ..loops import ir, sizes
from ..loops.ir import Batch, Buffer, Group, Nest, Value
from ..loops.kernel_graph import Unit
from ..loops.sizes import Index
from ..program_steps import Execution, Launch, TargetKind

NAMES = {name: f"bitwise_{name}" for name in ("and", "or", "xor", "not")}
NAMES |= {"shl": "bitwise_left_shift", "shr": "bitwise_right_shift", "max": "amax", "min": "amin"}
TEMPLATES = {
    "floordiv": "torch.div({}, {}, rounding_mode='floor')",
    "truncdiv": "torch.div({}, {}, rounding_mode='trunc')",
    "tf32": "torch.where({0} == {0}, round_to_tf32({0}), {0})",
    "fma": "({}.double() * {} + {}).to({}.dtype)",
}
HELPERS = ("flat", "fold", "load", "position", "round_to_tf32", "store")  # that printed text calls


def flat(tensor: torch.Tensor) -> torch.Tensor:
    """The memory from a tensor's first element on, as one axis."""
    rest = tensor.untyped_storage().nbytes() // tensor.itemsize - tensor.storage_offset()
    return tensor.as_strided((rest,), (1,))


def load(buffer: torch.Tensor, index: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
    return buffer[index] if mask is None else buffer[index * mask].masked_fill(~mask, 0)


def position(value: torch.Tensor, bound: int) -> torch.Tensor:
    if ((value < 0) | (value >= bound)).any():
        raise IndexError("a position is out of range")  # eager serves the call, and raises its own
    return value.long()


def round_to_tf32(value: torch.Tensor) -> torch.Tensor:
    return ((value.view(torch.int32) + 0x1000) & ~0x1FFF).view(torch.float32)


def fold(kind: str, value: torch.Tensor, points: tuple[int, ...], inner: int) -> torch.Tensor:
    """`value` at all points, folded over the last `inner` axes, which stay with size 1."""
    outer = points[: len(points) - inner]
    kind = "sum" if kind in ir.PRODUCTS else kind
    rows = value.expand(points)[..., None].flatten(len(outer))
    own_type = {"dtype": value.dtype} if kind in ("sum", "prod") else {}
    result: torch.Tensor = getattr(rows, NAMES.get(kind, kind))(-1, **own_type)
    return result.view((*outer, *[1] * inner))


def store(
    buffer: torch.Tensor,
    index: torch.Tensor,
    value: torch.Tensor,
    points: tuple[int, ...],
    combine: str | None,
) -> None:
    if combine in ir.RUNNING:  # a scan along the last axis
        scan = getattr(torch, "cum" + ir.RUNNING[combine])
        value, combine = scan(value.expand(points), -1, dtype=value.dtype), None
    both = torch.broadcast_tensors(index, value)  # type: ignore[no-untyped-call]
    places, values = (each.reshape(-1) for each in both)
    if combine == ir.PARTIAL:  # its sums start at 0; a "sum" goes on with what is there
        buffer[places] = 0
    if combine in ("prod", "max", "min"):
        buffer.scatter_reduce_(0, places, values, NAMES.get(combine, combine))
    else:
        buffer.index_put_((places,), values, accumulate=combine is not None)


class Printer:
    """Prints a group as a function of its buffers, and the sizes that only a call knows."""

    def __init__(self, group: Group | Batch) -> None:
        found = [b for nest in group.nests for b in sorted(nest.reads | nest.writes, key=str)]
        self.buffers = tuple(dict.fromkeys(b for b in found if b.scope == "global"))
        names = [b.name for b in self.buffers]
        given = ", ".join([*names, *(size.name for size in ir.group_variables(group))])
        self.name, self.numbers = group.name, itertools.count()
        self.inner, self.points = 0, ""
        self.done: dict[Value, str] = {}
        self.lines = [f"def {group.name}({given}):", *(f"{n} = flat({n})" for n in names)]
        for nest in group.nests:
            self.nest(nest)

    @property
    def source(self) -> str:
        return "\n    ".join(self.lines)

    def nest(self, nest: Nest) -> None:
        add, self.inner, self.done = self.lines.append, len(nest.inner), {}
        self.points = f"({''.join(f'{size}, ' for size in nest.space + nest.inner)})"
        self.lines += [f"# {origin}" for origin in nest.origins]
        for axis in nest.axes:
            shape = ["-1" if other == axis else "1" for other in nest.axes]
            add(f"i{axis.number} = torch.arange({axis.size}).view({', '.join(shape)})")
        for each in nest.stores:
            value, name = self.value(each.value), each.buffer.name
            index = self.index(each.index)
            if each.buffer.scope == "local":  # one value for each point of `space`
                add(f"{name} = {value}[(...,) + (0,) * {self.inner}]")
            else:
                add(f"store({name}, {index}, {value}, {self.points}, {each.combine!r})")

    def value(self, value: Value) -> str:
        """The variable that holds a value: each is computed once a nest."""
        if value not in self.done:
            text = self.text(value)
            self.done[value] = f"v{next(self.numbers)}"
            self.lines.append(f"{self.done[value]} = {text}")
        return self.done[value]

    def text(self, value: Value) -> str:
        of = [self.value(child) for child in value.children()]
        if isinstance(value, ir.Const):
            number = f"float('{value.value}')" if value.dtype.is_floating_point else value.value
            return f"torch.full([1] * len({self.points}), {number}, dtype={value.dtype})"
        if isinstance(value, ir.Load):
            if value.buffer.scope == "local":
                return f"{value.buffer.name}[(...,) + (None,) * {self.inner}]"
            return f"load({value.buffer.name}, {self.index(value.index)}, {(*of, None)[0]})"
        if isinstance(value, ir.IndexValue):
            return self.index(value.index)
        if isinstance(value, ir.Cast):
            return f"{of[0]}.to({value.dtype})"
        if isinstance(value, ir.Reduced):
            return f"fold({value.kind!r}, {of[0]}, {self.points}, {self.inner})"
        kind = value.name if isinstance(value, ir.Op) else "where"  # of a Select
        if kind in TEMPLATES:
            return TEMPLATES[kind].format(*of, of[0])
        name = NAMES.get(kind, kind)
        if not hasattr(torch, name):
            raise LoweringError(f"plain torch cannot do {ir.show(value)}")
        return f"torch.{name}({', '.join(of)})"

    def index(self, index: Index) -> str:
        terms = [f"{factor} * {self.atom(atom)}" for atom, factor in index.terms]
        return f"torch.as_tensor({' + '.join([*terms, str(index.offset)])})"

    def atom(self, atom: Any) -> str:
        if isinstance(atom, sizes.Axis):
            return atom.text
        if isinstance(atom, ir.Indirect):
            return f"position({self.value(atom.value)}, {atom.bound})"
        sign = "//" if isinstance(atom, sizes.FloorDiv) else "%"
        return f"({self.index(atom.base)} {sign} {atom.divisor})"


class PlainTorchTarget:
    """Runs the kernels of a unit as they are printed."""

    arena = False  # kernels take tensors, not addresses

    def build(
        self, unit: Unit, groups: list[Group | Batch], may_meet: Container[Buffer] = ()
    ) -> dict[Group | Batch, Launch]:
        return {group: self._kernel(Printer(group)) for group in groups}

    def _kernel(self, printer: Printer) -> Launch:
        made = dict(globals())
        exec(printer.source, made)
        return made[printer.name], printer.buffers


PLAIN_TORCH = TargetKind("torch", frozenset(), Execution.IN_ORDER, lambda _: PlainTorchTarget())
