"""Text of the values and indices of one Triton kernel: every value becomes one statement.

A value's tile shape follows from the axes that it uses: [block, 1] for a value of x alone,
[1, block] for one of r alone, so that a weight is loaded once for all rows of a program. In a
looped tile, what does not use r is printed before the loop.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from ...loops import sizes
from ...loops.ir import (
    Buffer,
    Cast,
    Const,
    IndexValue,
    Indirect,
    Load,
    Op,
    Reduced,
    Select,
    Store,
    Value,
    atoms,
)
from ...loops.nodes import Node
from ...loops.polynomials import Size, divided, is_known
from ...loops.sizes import Axis, FloorDiv, Index, Mod
from ...lowerings.value_builders import HALVES, const
from .triton_ops import cast, full, literal, template
from .triton_tile import INT32, Dim, Tile

Names = frozenset[str]
PAIR = 2  # neighbours of which a load may want one
BEYOND = "0.0"  # what a load of floats gives for lanes beyond an axis


class ValuePrinter:
    """Statements for the values of one kernel; parameters are called by number, so that equal
    kernels have equal texts. private: buffers that no other kernel reads."""

    def __init__(self, tile: Tile, private: frozenset[Buffer] = frozenset()) -> None:
        self.tile, self.private = tile, private
        self.params: dict[Buffer, str] = {}
        self.lines: list[str] = []
        self.body: list[str] | None = None  # the open loop's lines
        self.memo: dict[Node, str] = {}
        self.loop_memo: dict[Node, str] = {}
        self.locals: dict[Buffer, str] = {}
        self.uses: dict[Node, Names] = {}
        self.loaded: set[Buffer] = set()
        # What loads give for lanes beyond an axis; values that were stored give anything there.
        self.beyond: dict[Load, str] = {}
        self.earlier: set[Buffer] = set()  # buffers that the nests before this one load
        self.later: set[Buffer] = set()  # and the nests after it
        self.count = 0
        self.starts: dict[str, str] = {}  # of the tiled axes, by name
        self.origin = ""  # the user's line of the nest that is being printed
        self.checked: set[str] = set()
        self.inner: Dim | None = None  # the inner axis of the nest that is being printed
        inner = ["r"] * any(dim is not None and dim.block > 1 for dim in tile.inner)
        space = [dim.name for dim in tile.dims if dim.block > 1]
        self.rank = inner + space if tile.across else space + inner
        self.axes: dict[Axis, Dim] = {dim.axis: dim for dim in tile.dims}
        self.tile_axes = {dim.axis for dim in tile.dims if dim.several}
        self.names: dict[Axis, str] = {dim.axis: dim.name for dim in tile.dims}
        self.fast = all(b.dtype.itemsize == 2 and b.dtype.is_floating_point for b in self._stored())
        self.integer = "tl.int64" if tile.wide else "tl.int32"

    def _global_stores(self) -> Iterator[Store]:
        stores = (store for nest in self.tile.nests for store in nest.stores)
        return (store for store in stores if store.buffer.scope == "global")

    def _stored(self) -> Iterator[Buffer]:
        return (s.buffer for s in self._global_stores() if s.buffer not in self.private)

    def param(self, buffer: Buffer) -> str:
        return self.params.setdefault(buffer, f"p{len(self.params)}")

    # ---- names, shapes, places

    def _fresh(self, prefix: str) -> str:
        self.count += 1
        return f"{prefix}{self.count}"

    def _shape(self, names: Names) -> str:
        """The tile shape of a value that uses the axes `names`."""
        blocks = {dim.name: dim.block for dim in self.tile.dims}
        blocks["r"] = self.inner.block if self.inner is not None else 1
        return (
            "[" + ", ".join(str(blocks[name]) if name in names else "1" for name in self.rank) + "]"
        )

    def used(self, key: Node) -> Names:
        """Names of the tiled axes that a value or an atom depends on."""
        if key not in self.uses:
            self.uses[key] = self._used(key)
        return self.uses[key]

    def _used(self, key: Node) -> Names:
        if isinstance(key, Axis):
            dim = self.axes[key]
            return frozenset({dim.name} if dim.block > 1 or dim.name == "r" else ())
        if isinstance(key, FloorDiv | Mod):
            return self.index_uses(key.base)
        if isinstance(key, Indirect):
            return self.used(key.value)
        if isinstance(key, Reduced):
            return self.used(key.value) - {"r"} | self._space_names()
        if isinstance(key, Load) and key.buffer.scope == "local":
            return self._space_names()
        assert isinstance(key, Value)
        found: Names = frozenset().union(*(self.used(child) for child in key.children()))
        if isinstance(key, Load | IndexValue):
            found |= self.index_uses(key.index)
        return found

    def _space_names(self) -> Names:
        return frozenset(self.rank) - {"r"}

    def index_uses(self, index: Index) -> Names:
        return frozenset().union(*(self.used(atom) for atom, _ in index.terms))

    def _emit(self, text: str, names: Names, prefix: str = "t") -> str:
        """Assign `text` to a new name, inside the open loop if it uses r."""
        name = self._fresh(prefix)
        self._statement(f"{name} = {text}", names)
        return name

    def _statement(self, line: str, names: Names) -> None:
        lines = self.body if self.body is not None and "r" in names else self.lines
        lines.append(line)

    def _remember(self, key: Node, name: str, names: Names) -> str:
        memo = self.loop_memo if self.body is not None and "r" in names else self.memo
        memo[key] = name
        return name

    # ---- values

    def value(self, value: Value) -> str:
        """The name (or literal) that holds `value`."""
        found = self.loop_memo.get(value) or self.memo.get(value)
        if found is not None:
            return found
        if isinstance(value, Load) and value.buffer.scope == "local":
            return self.locals[value.buffer]
        text: str = getattr(self, "_" + type(value).__name__.lower())(value)
        names = self.used(value)
        return self._remember(value, self._emit(text, names), names)

    def _const(self, value: Const) -> str:
        if value.dtype == torch.bfloat16:
            return cast(full(value.value, torch.float32), torch.float32, torch.bfloat16)
        return full(value.value, value.dtype)

    def _cast(self, value: Cast) -> str:
        of = value.value
        pairs = value.dtype in HALVES and of.dtype == torch.float32 and bool(self.used(value))
        if pairs and not _is_half_arithmetic(of, value.dtype):
            return (
                f"m.to_{'bf16' if value.dtype == torch.bfloat16 else 'f16'}_pairs({self.value(of)})"
            )
        return cast(self.value(of), of.dtype, value.dtype)

    def _indexvalue(self, value: IndexValue) -> str:
        if not value.index.terms:
            known = is_known(value.index.offset)
            return full(value.index.offset, torch.int64) if known else self._number(value.index)
        text = self.index(value.index)
        self._check(value.index, self._inside(self.index_uses(value.index)))
        return f"({text}).to(tl.int64)"

    @staticmethod
    def _number(index: Index) -> str:
        return f"({index.offset} + tl.full([], 0, tl.int64))"

    def _select(self, value: Select) -> str:
        return f"tl.where({', '.join(self._operands(value.children(), literals=False))})"

    def _op(self, value: Op) -> str:
        place = value.args[-1]
        if value.name == "uniform" and isinstance(place, IndexValue):
            return self._uniform(value.args[0], value.args[1], place.index)
        if self._narrow(value):
            texts = [self._narrow_text(arg) for arg in value.args]
            return template(value.name, torch.int32, False).format(*texts)
        shorter = self._shorter(value) if self.fast else None
        if shorter is not None:
            return shorter
        fast = self.fast and not self._is_of_rows(value)
        text = template(value.name, value.args[0].dtype, fast)
        return text.format(*self._operands(value.args, literals="(" not in text))

    def _is_of_rows(self, value: Op) -> bool:
        """Whether it is computed once for many elements, so that it may cost what it likes."""
        names = self.used(value)
        return not names or ("r" in self.rank and "r" not in names)

    def _shorter(self, value: Op) -> str | None:
        """Forms of fewer instructions, for results of 16 bits: erf(x * 0.7), and x * (y + 1) as
        x * y + x."""
        if value.name == "erf" and value.dtype == torch.float32:
            parts = _with_constant("mul", value.args[0])
            if parts is not None and parts[1] > 0:
                return f"m.erf_fast({self.value(parts[0])}, {parts[1]})"
        if value.name == "mul" and value.dtype == torch.float32:
            for one, other in (value.args, value.args[::-1]):
                parts = _with_constant("add", other)
                if parts is not None and parts[1] == 1:
                    factor = self.value(one)
                    return f"{factor} * {self.value(parts[0])} + {factor}"
        return None

    def _uniform(self, seed: Value, stream: Value, place: Index) -> str:
        """Of places in a row that start at a multiple of 4 each call of Philox gives four."""
        number = stream.value if isinstance(stream, Const) else self.value(stream)
        given = f"{self.value(seed)}, {number}"
        dim = self._run(place)
        if dim is None:
            wide = "" if place.terms else " + tl.full([], 0, tl.int32)"
            return f"m.uniform({given}, ({self.index(place)}){wide})"
        name, self.names[dim.axis] = self.names[dim.axis], f"({self.starts[dim.name]})"
        first = self.index(place)
        self.names[dim.axis] = name
        made = f"m.uniform_block({given}, {first}, {dim.block})"
        shape = self._shape(frozenset({dim.name}))
        return made if len(self.rank) == 1 else f"tl.reshape({made}, {shape})"

    def _run(self, index: Index) -> Dim | None:
        """The tiled axis along which the index counts, if by ones, from a multiple of 4."""
        names = self.index_uses(index)
        dim = next((d for d in self._dims() if d.name in names and d.block % 4 == 0), None)
        if dim is None or len(names) > 1 or sizes.coefficient(index, dim.axis) != 1:
            return None
        others = [(atom, factor) for atom, factor in index.terms if atom is not dim.axis]
        apart = not any(dim.name in self.used(atom) for atom, _ in others)
        steps = [factor for _, factor in others] + [index.offset]
        return dim if apart and all(is_known(n) and n % 4 == 0 for n in steps) else None

    def _operands(self, values: tuple[Value, ...], literals: bool) -> list[str]:
        """Names of the operands; numbers stand as literals beside a name of the same type."""
        literals = literals and not all(isinstance(v, Const) for v in values)
        return [
            self._literal(v) if literals and isinstance(v, Const) else self.value(v) for v in values
        ]

    def _literal(self, value: Const) -> str:
        return self.value(value) if value.dtype == torch.bool else literal(value.value, value.dtype)

    def _narrow(self, value: Op) -> bool:
        """A comparison of indices and numbers that int32 holds: no need for int64 arithmetic."""
        if value.name not in ("eq", "ne", "lt", "le", "gt", "ge"):
            return False
        ends: list[Size] = []
        for arg in value.args:
            if isinstance(arg, IndexValue):
                ends += sizes.bounds(arg.index)
            elif isinstance(arg, Const) and arg.dtype == torch.int64:
                ends.append(int(arg.value))
            else:
                return False
        if not all(end is not None and is_known(end) for end in ends):
            return False
        return max(map(abs, ends)) <= INT32 and any(
            isinstance(a, IndexValue) and a.index.terms for a in value.args
        )

    def _narrow_text(self, value: Value) -> str:
        if isinstance(value, IndexValue):
            return f"({self.index(value.index)})"
        assert isinstance(value, Const)
        return self._literal(value)

    def _load(self, value: Load) -> str:
        pair = self._pair(value)
        if pair is not None:
            text = f"m.of_pairs({self.value(pair[0])}, {pair[1]})"
            if value.mask is None:
                return text
            return (
                f"tl.where({self.value(value.mask)}, {text}, {self.value(const(0, value.dtype))})"
            )
        self.loaded.add(value.buffer)
        names = self.index_uses(value.index)
        place, masks = self._place(value.index, names), self._inside(names)
        if value.mask is not None:
            place = self._widen(value.index, place, names, names | self.used(value.mask))
            masks = [*self._inside(names | self.used(value.mask)), self.value(value.mask)]
        self._check(value.index, masks)
        text = f"{self.param(value.buffer)} + {place}"
        policy = self._eviction(value, names)
        if not masks:
            return f"tl.load({text}{policy})"
        other = self.beyond.setdefault(value, BEYOND) if value.dtype.is_floating_point else "0"
        return f"tl.load({text}, mask={' & '.join(masks)}, other={other}{policy})"

    def _pair(self, value: Load) -> tuple[Load, int] | None:
        """The load of whole vectors, which the kernel makes anyway, that brings what this one wants
        of each pair of neighbours, as interleaved parts are read; and whether it is the second."""
        axis, index = self.tile.dims[-1].axis, value.index
        ((half, _),) = sizes.floordiv(sizes.atom_index(axis), PAIR).terms or ((axis, 1),)
        others = (atom for atom, factor in index.terms if (atom, factor) != (half, PAIR))
        if self.rank != ["x"] or sizes.coefficient(index, half) != PAIR:
            return None
        if value.dtype == torch.bool or not all(_stays(atom, axis, PAIR) for atom in others):
            return None
        flat = sizes.add(index, sizes.atom_index(half, -PAIR), sizes.atom_index(axis))
        for second in range(PAIR):
            whole = Load(value.buffer, sizes.add(flat, sizes.const(-second)))
            if any(whole in nest.loads for nest in self.tile.nests):
                return whole, second
        return None

    def _eviction(self, value: Load, names: Names) -> str:
        """In a loop over a row: what a later loop, or every program, reads again stays cached; what
        is read for the last time goes."""
        if self.body is None or "r" not in names:
            return ""
        shared = not any(
            isinstance(atom, Axis) and atom in self.tile_axes for atom in atoms(value.index)
        )
        if value.buffer in self.later or shared:
            return ', eviction_policy="evict_last"'
        return ', eviction_policy="evict_first"' if value.buffer in self.earlier else ""

    def _widen(self, index: Index, place: str, names: Names, wanted: Names) -> str:
        """An index over more axes than it uses, so that its mask fits."""
        if names == wanted or not wanted & set(self.rank):
            return place
        if not index.terms:
            return f"tl.full({self._shape(wanted)}, {place}, {self.integer})"
        return f"tl.broadcast_to({place}, {self._shape(wanted)})"

    def _inside(self, names: Names) -> list[str]:
        """Masks of the axes among `names` whose last block is not full."""
        partial = [dim for dim in self._dims() if dim.block > 1 and not dim.exact]
        return [f"{self.names[dim.axis]}_in" for dim in partial if dim.name in names]

    def _dims(self) -> list[Dim]:
        return [dim for dim in (*self.tile.dims, self.inner) if dim is not None]

    # ---- indices

    def index(self, index: Index) -> str:
        parts = [
            self.atom(atom) if factor == 1 else f"{self.atom(atom)} * {factor}"
            for atom, factor in index.terms
        ]
        return " + ".join(parts + [str(index.offset)] * (index.offset != 0 or not parts))

    def _place(self, index: Index, names: Names) -> str:
        """The index. Of a tile that says so, no more neighbours are said to lie side by side than a
        thread is to take together."""
        place, count = self.index(index), self.tile.neighbours
        if not count or not names or names != frozenset(self.rank):
            return place
        if not are_neighbours(index, self.tile.dims[-1].axis, count):
            return place
        counts = ", ".join(["1"] * (len(self.rank) - 1) + [str(count)])
        return f"tl.max_contiguous({place}, [{counts}])"

    def _check(self, index: Index, masks: list[str]) -> None:
        """Stop the kernel with the user's line where a position from memory is out of range, as
        eager's kernels do."""
        for atom in atoms(index):
            if not isinstance(atom, Indirect):
                continue
            value = self.value(atom.value)
            where = f" | ~({' & '.join(masks)})" if masks else ""
            test = f"({value} >= 0) & ({value} < {atom.bound}){where}"
            names = self.used(atom).union(*(self._of_mask(mask) for mask in masks))
            line = f"tl.device_assert({test}, {_message(self.origin)})"
            if line not in self.checked:
                self.checked.add(line)
                self._statement(line, names)

    def _of_mask(self, mask: str) -> Names:
        """The axes of a mask, which is an axis's or a value's name."""
        own = {f"{self.names[dim.axis]}_in": dim.name for dim in self._dims()}
        values = {name: key for key, name in (*self.memo.items(), *self.loop_memo.items())}
        return frozenset({own[mask]}) if mask in own else self.used(values[mask])

    def atom(self, atom: sizes.Atom) -> str:
        if isinstance(atom, Axis):
            return self.names[atom]
        found = self.loop_memo.get(atom) or self.memo.get(atom)
        if found is not None:
            return found
        if isinstance(atom, Indirect):
            text = self._indirect(atom)
        else:
            assert isinstance(atom, FloorDiv | Mod)
            text = self._division(atom)
        names = self.used(atom)
        return self._remember(atom, self._emit(text, names, "i"), names)

    def _division(self, atom: FloorDiv | Mod) -> str:
        base = self.index(atom.base)
        if not sizes.nonnegative(atom.base):
            if is_known(atom.divisor) and atom.divisor & (atom.divisor - 1) == 0:
                shift = f">> {atom.divisor.bit_length() - 1}"
                return (
                    f"({base}) {shift if isinstance(atom, FloorDiv) else f'& {atom.divisor - 1}'}"
                )
            helper = "m.div_floor_int" if isinstance(atom, FloorDiv) else "m.remainder_int"
            return f"{helper}({base}, {atom.divisor})"
        return f"({base}) {'//' if isinstance(atom, FloorDiv) else '%'} {atom.divisor}"

    def _indirect(self, atom: Indirect) -> str:
        value = self.value(atom.value)
        last = f"{atom.bound} - 1"
        if is_known(atom.bound):
            last = str(max(atom.bound - 1, 0))
        return f"tl.maximum(tl.minimum({value}, {last}), 0).to({self.integer})"


def are_neighbours(index: Index, axis: Axis, count: int) -> bool:
    """Whether places of neighbours along the axis lie side by side, those of each `count` from a
    multiple of that on at least."""
    moving = [(atom, factor) for atom, factor in index.terms if not _stays(atom, axis, count)]
    if count == 1 or len(moving) != 1:
        return count == 1
    ((atom, factor),) = moving
    return factor == 1 and (atom is axis or _divides(atom, Mod, axis, count))


def _stays(atom: sizes.Atom, axis: Axis, count: int) -> bool:
    """Whether such neighbours along the axis have it in common."""
    if isinstance(atom, Axis):
        return atom is not axis
    if not isinstance(atom, FloorDiv | Mod):
        return False
    inside = (below for below, _ in atom.base.terms)
    return _divides(atom, FloorDiv, axis, count) or all(_stays(a, axis, count) for a in inside)


def _divides(atom: sizes.Atom, kind: type[FloorDiv] | type[Mod], axis: Axis, count: int) -> bool:
    """Whether the axis alone is divided, between such neighbours."""
    if not isinstance(atom, kind) or atom.base is not sizes.atom_index(axis):
        return False
    return divided(atom.divisor, count) is not None


def _message(origin: str) -> str:
    """A string literal of plain characters: it goes through several compilers."""
    plain = "".join(
        c if c.isascii() and c.isprintable() and c not in '"\\' else " " for c in origin
    )
    return f'"index out of range: {plain[:120]}"'


def _is_half_arithmetic(value: Value, dtype: torch.dtype) -> bool:
    """Whether the device does it in the narrow type itself, since that gives the same."""
    made = isinstance(value, Op) and value.name in ("add", "sub", "mul")
    return made and all(
        isinstance(arg, Const) or (isinstance(arg, Cast) and arg.value.dtype == dtype)
        for arg in value.children()
    )


def _with_constant(name: str, value: Value) -> tuple[Value, float] | None:
    """The operand and the number of such an operation with a number; None for another value."""
    if not isinstance(value, Op) or value.name != name:
        return None
    for one, other in (value.args, value.args[::-1]):
        if isinstance(other, Const) and not isinstance(one, Const):
            return one, float(other.value)
    return None
