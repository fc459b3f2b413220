"""A target that prints loops as Python and runs them with plain torch: each axis is an `arange`,
each value of a nest one tensor over all points. `python examples/python_target.py` shows a kernel.
"""

import itertools

import dynfix
import torch
from dynfix.lowering import pipeline
from dynfix.lowering.loops import ir, sizes
from dynfix.lowering.program_steps import Execution, TargetKind
from dynfix.runtime.errors import LoweringError

NAMES = {name: f"bitwise_{name}" for name in ("and", "or", "xor", "not")}
NAMES |= {"shl": "bitwise_left_shift", "shr": "bitwise_right_shift", "max": "amax", "min": "amin"}
TEMPLATES = {
    "floordiv": "torch.div({}, {}, rounding_mode='floor')",
    "truncdiv": "torch.div({}, {}, rounding_mode='trunc')",
    "fma": "({}.double() * {} + {}).to({}.dtype)",
}


def flat(tensor):
    """The memory from a tensor's first element on, as one axis."""
    rest = tensor.untyped_storage().nbytes() // tensor.itemsize - tensor.storage_offset()
    return tensor.as_strided((rest,), (1,))


def load(buffer, index, mask):
    return buffer[index] if mask is None else buffer[index * mask].masked_fill(~mask, 0)


def position(value, bound):
    if ((value < 0) | (value >= bound)).any():
        raise IndexError("a position is out of range")  # eager serves the call, and raises its own
    return value.long()


def fold(kind, value, points, inner):
    """`value` at all points, folded over the last `inner` axes, which stay with size 1."""
    outer = points[: len(points) - inner]
    rows = value.expand(points)[..., None].flatten(len(outer))
    own_type = {"dtype": value.dtype} if kind in ("sum", "prod") else {}
    result = getattr(rows, NAMES.get(kind, kind))(-1, **own_type)
    return result.view((*outer, *[1] * inner))


def store(buffer, index, value, points, combine):
    if combine in ir.RUNNING:  # a scan along the last axis
        scan = getattr(torch, "cum" + ir.RUNNING[combine])
        value, combine = scan(value.expand(points), -1, dtype=value.dtype), None
    places, values = (each.reshape(-1) for each in torch.broadcast_tensors(index, value))
    if combine == ir.PARTIAL:  # its sums start at 0; a "sum" goes on with what is there
        buffer[places] = 0
    if combine in ("prod", "max", "min"):
        buffer.scatter_reduce_(0, places, values, NAMES.get(combine, combine))
    else:
        buffer.index_put_((places,), values, accumulate=combine is not None)


class Printer:
    def __init__(self, group):
        found = [b for nest in group.nests for b in sorted(nest.reads | nest.writes, key=str)]
        self.buffers = tuple(dict.fromkeys(b for b in found if b.scope == "global"))
        names = [b.name for b in self.buffers]
        given = ", ".join([*names, *(size.name for size in ir.group_variables(group))])
        self.name, self.numbers = group.name, itertools.count()
        self.lines = [f"def {group.name}({given}):", *(f"{n} = flat({n})" for n in names)]
        for nest in group.nests:
            self.nest(nest)

    def nest(self, nest):
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

    def value(self, value):
        """The variable that holds a value: each is computed once a nest."""
        if value not in self.done:
            text = self.text(value)
            self.done[value] = f"v{next(self.numbers)}"
            self.lines.append(f"{self.done[value]} = {text}")
        return self.done[value]

    def text(self, value):
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
        if isinstance(value, ir.Op) and value.name in TEMPLATES:
            return TEMPLATES[value.name].format(*of, of[0])
        name = "where" if isinstance(value, ir.Select) else NAMES.get(value.name, value.name)
        if not hasattr(torch, name):
            raise LoweringError(f"the Python target cannot print {ir.show(value)}")
        return f"torch.{name}({', '.join(of)})"

    def index(self, index):
        terms = [f"{factor} * {self.atom(atom)}" for atom, factor in index.terms]
        return f"torch.as_tensor({' + '.join([*terms, str(index.offset)])})"

    def atom(self, atom):
        if isinstance(atom, sizes.Axis):
            return atom.text
        if isinstance(atom, ir.Indirect):
            return f"position({self.value(atom.value)}, {atom.bound})"
        sign = "//" if isinstance(atom, sizes.FloorDiv) else "%"
        return f"({self.index(atom.base)} {sign} {atom.divisor})"


class PythonTarget:
    arena = False  # kernels take tensors, not addresses

    def build(self, unit, groups, may_meet):
        return {group: self.kernel(Printer(group)) for group in groups}

    def kernel(self, printer):
        text, made = "\n    ".join(printer.lines), dict(globals())
        exec(text, made)
        if __name__ == "__main__":
            print(text)
        return made[printer.name], printer.buffers


KIND = TargetKind("python", frozenset(), Execution.IN_ORDER, lambda options: PythonTarget())

if __name__ == "__main__":
    pipeline.register(KIND)
    scale = dynfix.compile(lambda x, w: ((x + 1) * w).sum(-1), options={"target": "python"})
    scale(torch.randn(64, 33), torch.randn(33))
