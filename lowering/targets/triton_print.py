"""Prints one tile of a group as the text of a Triton kernel: one method per node of the loop IR.

Every value becomes one statement. A value's tile shape follows from the axes that it uses: [block,
1] for a value of x alone, [1, block] for one of r alone, so that a weight is loaded once for all
rows of a program. In a looped tile, what does not use r is printed before the loop.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch

from ...runtime.errors import LoweringError
from .. import sizes
from ..ir import (
    Buffer,
    Cast,
    Const,
    IndexValue,
    Indirect,
    Load,
    Nest,
    Op,
    Reduced,
    Select,
    Store,
    Value,
    atoms,
    nest_loads,
    walk,
)
from ..nodes import Node
from ..sizes import Axis, FloorDiv, Index, Mod
from .triton_ops import TYPES, cast, fold, full, identity, literal, step, template
from .triton_tile import INT32, Dim, Tile

INDENT = "    "
Names = frozenset[str]


class KernelPrinter:
    """Text of one kernel called `name`; parameters are called by number, so that equal kernels have
    equal texts.

    private: buffers that no other kernel reads; they are not written where this kernel itself needs
    no memory of them.
    """

    def __init__(self, name: str, tile: Tile, private: frozenset[Buffer] = frozenset()) -> None:
        self.name, self.tile, self.private = name, tile, private
        self.params: dict[Buffer, str] = {}
        self.dead: dict[str, Buffer] = {}  # statements that store private buffers
        self.lines: list[str] = []
        self.body: list[str] | None = None  # the open loop's lines
        self.memo: dict[Node, str] = {}
        self.loop_memo: dict[Node, str] = {}
        self.locals: dict[Buffer, str] = {}
        self.uses: dict[Node, Names] = {}
        self.loaded: set[Buffer] = set()
        self.dirty: set[Buffer] = set()
        self.earlier: set[Buffer] = (
            set()
        )  # buffers that the nests before this one load, and the nests after it
        self.later: set[Buffer] = set()
        self.count = 0
        self.inner: Dim | None = None  # the inner axis of the nest that is being printed
        inner = [dim for dim in tile.inner if dim is not None and dim.block > 1]
        self.rank = [dim.name for dim in tile.dims if dim.block > 1] + ["r"] * bool(inner)
        self.axes: dict[Axis, Dim] = {dim.axis: dim for dim in tile.dims}
        self.tile_axes = {dim.axis for dim in tile.dims if dim.programs > 1}
        self.names: dict[Axis, str] = {dim.axis: dim.name for dim in tile.dims}
        self.fast = all(b.dtype.itemsize == 2 and b.dtype.is_floating_point for b in self._stored())
        self.integer = "tl.int64" if tile.wide else "tl.int32"

    def _stored(self) -> Iterator[Buffer]:
        buffers = (
            s.buffer for nest in self.tile.nests for s in nest.stores if s.buffer.scope == "global"
        )
        return (buffer for buffer in buffers if buffer not in self.private)

    # ---- the whole kernel

    def print(self) -> str:
        self._programs()
        for number, (nest, dim) in enumerate(zip(self.tile.nests, self.tile.inner, strict=True)):
            self.later = {
                load.buffer for other in self.tile.nests[number + 1 :] for load in nest_loads(other)
            }
            self._nest(nest, dim)
            self.earlier |= {load.buffer for load in nest_loads(nest)}
        self._drop_unread()
        head = f"def {self.name}({', '.join(self.params.values())}):"
        return "\n".join(["@triton.jit", head, *(INDENT + line for line in self.lines), ""])

    def _drop_unread(self) -> None:
        """Take out stores of private buffers that were used from registers alone."""
        gone = {line for line, buffer in self.dead.items() if buffer not in self.loaded}
        self.lines = [line for line in self.lines if line.strip() not in gone]
        for buffer in {self.dead[line] for line in gone}:
            del self.params[buffer]

    def param(self, buffer: Buffer) -> str:
        return self.params.setdefault(buffer, f"p{len(self.params)}")

    def _programs(self) -> None:
        """Which point of each parallel axis this program starts from."""
        several = [dim for dim in self.tile.dims if dim.programs > 1]
        if several:
            self.lines.append(f"pid = tl.program_id(0){'.to(tl.int64)' * self.tile.wide}")
        left = "pid"
        for dim in reversed(self.tile.dims):
            if dim.programs == 1:
                self._dim(dim, dim.name, "")
            elif dim is several[0]:
                self._dim(dim, dim.name, left)
            else:
                self._dim(dim, dim.name, f"({left} % {dim.programs})")
                self.lines.append(f"pid_{dim.name} = {left} // {dim.programs}")
                left = f"pid_{dim.name}"

    def _dim(self, dim: Dim, name: str, start: str) -> None:
        lanes = self._lanes(dim) if dim.block > 1 else ""
        first = f"{start} * {dim.block}" if start and lanes else start
        if first or lanes:
            self.lines.append(f"{name} = {' + '.join(part for part in (first, lanes) if part)}")
        if lanes and not dim.exact:
            self.lines.append(f"{name}_in = {name} < {dim.axis.size}")

    def _lanes(self, dim: Dim) -> str:
        text = f"tl.arange(0, {dim.block})"
        if len(self.rank) == 1:
            return text
        return (
            text + "[" + ", ".join(":" if name == dim.name else "None" for name in self.rank) + "]"
        )

    # ---- nests

    def _nest(self, nest: Nest, dim: Dim | None) -> None:
        self.lines += [f"# {origin}" for origin in nest.origins]
        self._barrier(nest)
        self.inner = dim
        if dim is not None:
            self._inner_axis(dim)
        loops = dim is not None and not self.tile.persistent
        if dim is not None and dim.axis.size == 0:
            self._nothing(nest)
        elif nest.is_reduction:
            self._reduction(nest, dim, loops)
        elif loops and dim is not None:
            with self._loop(dim):
                self._stores(nest)
        else:
            self._stores(nest)

    def _nothing(self, nest: Nest) -> None:
        """Inner axes without a point: reductions give their identity, and nothing may be loaded."""
        for value in walk(*(s.value for s in nest.stores)):
            if isinstance(value, Reduced):
                self.memo[value] = self._emit(
                    full(identity(value.kind, value.dtype), value.dtype), frozenset()
                )
        if nest.is_reduction:
            self._stores(nest)

    def _barrier(self, nest: Nest) -> None:
        """Other threads of the program read what these threads stored, or overwrite what they
        read."""
        touched = {load.buffer for load in nest_loads(nest) if load not in self.memo} & self.dirty
        if touched or {s.buffer for s in nest.stores if s.buffer.scope == "global"} & self.loaded:
            self.lines.append("tl.debug_barrier()")
            self.dirty.clear()

    def _inner_axis(self, dim: Dim) -> None:
        known = dim.axis in self.names
        self.axes[dim.axis] = dim
        self.names.setdefault(dim.axis, f"r{dim.axis.size}")
        if dim.block > 1 and self.tile.persistent and not known:
            self._dim(dim, self.names[dim.axis], "")

    @contextlib.contextmanager
    def _loop(self, dim: Dim) -> Iterator[None]:
        """Statements that use r, inside `for r in …`; whatever else is printed meanwhile stands
        before the loop."""
        name = self.names[dim.axis]
        self.body, self.loop_memo = [], {}
        yield
        body, self.body, self.loop_memo = self.body, None, {}
        head = [f"{name} = start + {self._lanes(dim)}" if dim.block > 1 else f"{name} = start"]
        if not dim.exact:
            head.append(f"{name}_in = {name} < {dim.axis.size}")
        self.lines.append(f"for start in range(0, {dim.axis.size}, {dim.block}):")
        self.lines += [INDENT + line for line in head + body]

    def _stores(self, nest: Nest) -> None:
        for store in nest.stores:
            self._store(store)

    def _reduction(self, nest: Nest, dim: Dim | None, loops: bool) -> None:
        reduced = [v for v in walk(*(s.value for s in nest.stores)) if isinstance(v, Reduced)]
        if loops and dim is not None:
            with self._loop(dim):
                sums = [self._accumulate(value, dim) for value in reduced]
            for value, accumulator in zip(reduced, sums, strict=True):
                self._fold(value, accumulator)
        else:
            for value in reduced:
                self._fold(value, self._whole(value, dim))
        self._stores(nest)

    # ---- reductions

    def _masked(self, value: Reduced, dim: Dim) -> str:
        """The reduced value over the whole tile; lanes beyond the axis hold the identity."""
        text = self.value(value.value)
        if dim.block > 1 and not dim.exact:
            other = self._identity(value)
            text = f"tl.where({self.names[dim.axis]}_in, {text}, {other})"
        return text

    def _identity(self, value: Reduced) -> str:
        dtype = value.value.dtype
        print_ = full if dtype == torch.bool else literal
        return print_(identity(value.kind, dtype), dtype)

    def _wide(self, text: str, names: Names) -> str:
        whole = frozenset(self.rank)
        return text if names == whole else f"tl.broadcast_to({text}, {self._shape(whole)})"

    def _whole(self, value: Reduced, dim: Dim | None) -> tuple[str, ...]:
        """A persistent row: its values over the full tile (and their positions, for argmax)."""
        if dim is None or dim.block == 1:
            return (self.value(value.value),)
        names = self.used(value.value) | (frozenset() if dim.exact else frozenset({"r"}))
        wide = self._wide(self._masked(value, dim), names)
        if not value.kind.startswith("arg"):
            return (wide,)
        return wide, self._wide(self.names[dim.axis], frozenset({"r"}))

    def _accumulate(self, value: Reduced, dim: Dim) -> tuple[str, ...]:
        """One step of a looped reduction; the accumulators' names."""
        dtype, shape = value.value.dtype, self._shape(frozenset(self.rank))
        text = self._masked(value, dim)
        names = [self._fresh("a")]
        self.lines.append(f"{names[0]} = {full(identity(value.kind, dtype), dtype, shape)}")
        assert self.body is not None
        if not value.kind.startswith("arg"):
            self.body.append(f"{names[0]} = {step(value.kind, dtype).format(names[0], text)}")
            return tuple(names)
        names.append(self._fresh("a"))
        self.lines.append(
            f"{names[1]} = tl.full({shape}, {2**63 - 1 if self.tile.wide else INT32},"
            f" {self.integer})"
        )
        both = ", ".join(names)
        self.body.append(
            f"{both} = m.arg_{value.kind[3:]}_step({both}, {text}, {self.names[dim.axis]})"
        )
        return tuple(names)

    def _fold(self, value: Reduced, parts: tuple[str, ...]) -> None:
        name = self._fresh("t")
        self.memo[value] = name
        if self.inner is None or self.inner.block == 1:
            text = "tl.full([], 0, tl.int64)" if value.kind.startswith("arg") else parts[0]
            self.lines.append(f"{name} = {text}")
            return
        axis = self.rank.index("r")
        column = "[:, None]" * (len(self.rank) == 2)
        if value.kind.startswith("arg"):
            self.lines.append(
                f"{name}_value, {name} = m.{value.kind}({parts[0]}, {parts[1]}, {axis})"
            )
            self.lines.append(f"{name} = {name}{column}.to(tl.int64)")
            return
        narrow = value.kind == "sum" and value.dtype in (torch.int8, torch.int16, torch.uint8)
        text = fold(value.kind, value.value.dtype).format(parts[0], axis) + column
        self.lines.append(f"{name} = {text}{f'.to({TYPES[value.dtype]})' if narrow else ''}")

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
        lines = self.body if self.body is not None and "r" in names else self.lines
        lines.append(f"{name} = {text}")
        return name

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
        return cast(self.value(value.value), value.value.dtype, value.dtype)

    def _indexvalue(self, value: IndexValue) -> str:
        if not value.index.terms:
            return full(value.index.offset, torch.int64)
        return f"({self.index(value.index)}).to(tl.int64)"

    def _select(self, value: Select) -> str:
        return f"tl.where({', '.join(self._operands(value.children(), literals=False))})"

    def _op(self, value: Op) -> str:
        if self._narrow(value):
            texts = [self._narrow_text(arg) for arg in value.args]
            return template(value.name, torch.int32, False).format(*texts)
        text = template(value.name, value.args[0].dtype, self.fast)
        return text.format(*self._operands(value.args, literals="(" not in text))

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
        ends: list[int] = []
        for arg in value.args:
            if isinstance(arg, IndexValue):
                ends += sizes.bounds(arg.index)
            elif isinstance(arg, Const) and arg.dtype == torch.int64:
                ends.append(int(arg.value))
            else:
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
        self.loaded.add(value.buffer)
        names = self.index_uses(value.index)
        place, masks = self.index(value.index), self._inside(names)
        if value.mask is not None:
            masks.append(self.value(value.mask))
            place = self._widen(value.index, place, names, names | self.used(value.mask))
            masks = self._inside(names | self.used(value.mask)) + masks[-1:]
        text = f"{self.param(value.buffer)} + {place}"
        policy = self._eviction(value, names)
        if not masks:
            return f"tl.load({text}{policy})"
        other = "0.0" if value.dtype.is_floating_point else "0"
        return f"tl.load({text}, mask={' & '.join(masks)}, other={other}{policy})"

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
        dims = (*self.tile.dims, self.inner)
        held = [
            dim
            for dim in dims
            if dim is not None and dim.name in names and dim.block > 1 and not dim.exact
        ]
        return [f"{self.names[dim.axis]}_in" for dim in held]

    # ---- indices

    def index(self, index: Index) -> str:
        parts = [
            self.atom(atom) if factor == 1 else f"{self.atom(atom)} * {factor}"
            for atom, factor in index.terms
        ]
        return " + ".join(parts + [str(index.offset)] * (index.offset != 0 or not parts))

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
        if sizes.bounds(atom.base)[0] < 0:
            helper = "m.div_floor_int" if isinstance(atom, FloorDiv) else "m.remainder_int"
            return f"{helper}({base}, {atom.divisor})"
        return f"({base}) {'//' if isinstance(atom, FloorDiv) else '%'} {atom.divisor}"

    def _indirect(self, atom: Indirect) -> str:
        value = self.value(atom.value)
        return f"tl.minimum(tl.maximum({value}, 0), {max(atom.bound - 1, 0)}).to({self.integer})"

    # ---- stores

    def _store(self, store: Store) -> None:
        value = self.value(store.value)
        if store.buffer.scope == "local":
            self._forget(store.buffer)
            self.locals[store.buffer] = value
            return
        place, names, wanted = (
            self.index(store.index),
            self.index_uses(store.index),
            self.used(store.value),
        )
        if store.combine is None and not wanted <= names:
            raise LoweringError(
                f"{store.buffer.name} is stored at one index by several points of the loop"
            )
        if store.combine is not None:
            names = self._atomic_names(wanted | names)
            place = self._widen(store.index, place, self.index_uses(store.index), names)
            value = (
                f"tl.broadcast_to({value}, {self._shape(names)})"
                if names != wanted and names
                else value
            )
        self._write(store, place, value, names)
        self._forget(store.buffer)
        if store.combine is None:
            self._remember(Load(store.buffer, store.index), value, names)

    def _atomic_names(self, names: Names) -> Names:
        """Every point adds once: the nest's own axes, whether the index uses them or not."""
        inner = self.inner is not None and self.inner.block > 1
        return names | self._space_names() | (frozenset({"r"}) if inner else frozenset())

    def _write(self, store: Store, place: str, value: str, names: Names) -> None:
        masks = self._inside(names)
        mask = f", mask={' & '.join(masks)}" if masks else ""
        function = "tl.store" if store.combine is None else "tl.atomic_add"
        relaxed = "" if store.combine is None else ', sem="relaxed"'
        lines = self.body if self.body is not None and "r" in names else self.lines
        lines.append(f"{function}({self.param(store.buffer)} + {place}, {value}{mask}{relaxed})")
        if store.buffer in self.private and store.combine is None:
            self.dead[lines[-1]] = store.buffer
        self.dirty.add(store.buffer)

    def _forget(self, buffer: Buffer) -> None:
        """What was computed from the buffer's old content no longer stands for a load of it."""
        if buffer in self.loaded or buffer in self.locals:
            for memo in (self.memo, self.loop_memo):
                stale = [
                    k
                    for k in memo
                    if isinstance(k, Value)
                    and any(isinstance(v, Load) and v.buffer is buffer for v in walk(k))
                ]
                for key in stale:
                    del memo[key]
