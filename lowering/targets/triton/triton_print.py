"""Prints one tile of a group as the text of a Triton kernel: its programs, loops, reductions and
stores."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Iterator

import torch

from ....runtime.errors import LoweringError
from ....runtime.gpu.triton_kernels import WAIT
from ...loops.ir import (
    EXPONENTIALS,
    PARTIAL,
    RUNNING,
    Buffer,
    Cast,
    Load,
    Nest,
    Reduced,
    Store,
    Value,
    atoms,
    nest_loads,
    walk,
)
from ...loops.polynomials import is_known
from ...loops.sizes import FloorDiv
from ...lowerings.value_builders import HALVES
from .triton_one_pass import BASES, base_of
from .triton_ops import TYPES, cast, fold, full, identity, literal, step
from .triton_tile import MOST_IN_TURN, Dim, Tile
from .triton_values import Names, ValuePrinter

INDENT = "    "
APART = 8  # turns of a loop from which on the last stands apart


class KernelPrinter(ValuePrinter):
    """Text of one kernel called `name`. private: buffers that no other kernel reads; they are not
    written where this kernel itself needs no memory of them."""

    def __init__(self, name: str, tile: Tile, private: frozenset[Buffer] = frozenset()) -> None:
        super().__init__(tile, private)
        self.name = name
        self.dead: dict[str, Buffer] = {}  # statements that store private buffers
        self.dirty: set[Buffer] = set()
        self.parts: dict[Store, str] = {}  # sums over the rows of a program
        self.ends: list[str] = []  # what stands after the last row

    # ---- the whole kernel

    def print(self, numbers: Iterable[str] = ()) -> str:
        """numbers: names of the sizes that each call gives."""
        self._programs()
        for number, (nest, dim) in enumerate(zip(self.tile.nests, self.tile.inner, strict=True)):
            self.later = {
                load.buffer for other in self.tile.nests[number + 1 :] for load in nest_loads(other)
            }
            self._nest(nest, dim)
            self.earlier |= {load.buffer for load in nest_loads(nest)}
        self._drop_unread()
        if self.tile.height:
            self.lines = self._row_by_row(self.lines)
        head = f"def {self.name}({', '.join((*self.params.values(), *numbers))}):"
        lines = [WAIT, *self.lines]
        return "\n".join(["@triton.jit", head, *(INDENT + line for line in lines), ""])

    def _drop_unread(self) -> None:
        """Take out stores of private buffers that were used from registers alone."""
        gone = {line for line, buffer in self.dead.items() if buffer not in self.loaded}
        self.lines = [line for line in self.lines if line.strip() not in gone]
        for buffer in {self.dead[line] for line in gone}:
            del self.params[buffer]

    def _row_by_row(self, body: list[str]) -> list[str]:
        """The lines, for each row of this program's part; what no row changes stands before."""
        (dim,), height = self.tile.dims, self.tile.height
        stored = {self.params[s.buffer] for s in self._global_stores() if s.buffer in self.params}
        before, body = hoisted(body, {dim.name, f"{dim.name}_in"}, stored)
        whole = dim.axis.size % height == 0
        count = str(height) if whole else f"tl.minimum({height}, {dim.axis.size} - first)"
        head = [f"part = tl.program_id(0){'.to(tl.int64)' * self.tile.wide}"]
        head += [f"first = part * {height}", *before]
        head += [f"{name} = {self._zeros()}" for name in self.parts.values()]
        turns = self._range(count if dim.block == 1 else f"{count}, {dim.block}")
        head += [f"for row in {turns}:", *(INDENT + line for line in self._rows(dim))]
        return [*head, *(INDENT + line for line in body), *self.ends]

    def _rows(self, dim: Dim) -> Iterator[str]:
        """The rows of one turn, all of one part."""
        lanes = f" + {self._lanes(dim)}" if dim.block > 1 else ""
        yield f"{dim.name} = first + row{lanes}"
        if lanes and not dim.exact:
            yield f"{dim.name}_in = {dim.name} < {dim.axis.size}"

    def _zeros(self) -> str:
        return full(0.0, torch.float32, self._shape(frozenset(self.rank)))

    def _add_part(self, store: Store) -> None:
        """A value of one row, summed over the program's rows and stored after the last."""
        atom = next(a for a in atoms(store.index) if isinstance(a, FloorDiv))
        value, self.memo[atom] = self.value(store.value), "part"
        (dim,), name = self.tile.dims, self.parts.setdefault(store, f"sum{len(self.parts)}")
        masks, total = self._inside(frozenset({dim.name})), name
        self.lines.append(
            f"{name} += " + (f"tl.where({masks[0]}, {value}, 0.0)" if masks else value)
        )
        if dim.block > 1:
            total = f"tl.sum({name}, 0)" + "[None, :]" * (len(self.rank) > 1)
        place = self.index(store.index)
        masks = self._inside(self.index_uses(store.index) - {dim.name})
        mask = f", mask={' & '.join(masks)}" if masks else ""
        self.ends.append(f"tl.store({self.param(store.buffer)} + {place}, {total}{mask})")

    def _programs(self) -> None:
        """Which point of each parallel axis this program starts from."""
        if self.tile.height:
            self.starts[self.tile.dims[0].name] = "first + row"
            return
        several = [dim for dim in self.tile.dims if dim.several]
        if several:
            self.lines.append(f"pid = tl.program_id(0){'.to(tl.int64)' * self.tile.wide}")
        left = "pid"
        for dim in reversed(self.tile.dims):
            if not dim.several:
                self._dim(dim, dim.name, "")
            elif dim is several[0]:
                self._dim(dim, dim.name, left)
            else:
                self._dim(dim, dim.name, f"({left} % {dim.count})")
                self.lines.append(f"pid_{dim.name} = {left} // {dim.count}")
                left = f"pid_{dim.name}"

    def _dim(self, dim: Dim, name: str, start: str) -> None:
        lanes = self._lanes(dim) if dim.block > 1 else ""
        first = f"{start} * {dim.block}" if start and lanes else start
        self.starts[dim.name] = first or "0"
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
        self.origin = nest.origins[0] if nest.origins else self.name
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
            with self._loop(dim, backwards=bool(self.earlier & {v.buffer for v in nest.loads})):
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
        number = dim.axis.size if is_known(dim.axis.size) else f"{dim.axis.number}n"
        self.names.setdefault(dim.axis, f"r{number}")
        if dim.block > 1 and self.tile.persistent and not known:
            self._dim(dim, self.names[dim.axis], "")

    @contextlib.contextmanager
    def _loop(self, dim: Dim, backwards: bool = False) -> Iterator[None]:
        """Statements that use r, inside `for r in …`; whatever else is printed meanwhile stands
        before the loop. backwards: from the end of the axis, which an earlier loop read last."""
        name = self.names[dim.axis]
        last = (dim.programs - 1) * dim.block
        backwards = backwards and last > 0 and is_known(dim.axis.size)
        start = f"({last} - start)" if backwards else "start"
        self.starts[dim.name] = start
        self.body, self.loop_memo = [], {}
        yield
        body, self.body, self.loop_memo = self.body, None, {}
        head = [f"{name} = {start} + {self._lanes(dim)}" if dim.block > 1 else f"{name} = {start}"]
        body, inside, end = head + body, f"{name}_in = {name} < {dim.axis.size}", dim.axis.size
        apart = not dim.exact and not backwards and is_known(end) and dim.programs > APART
        if apart:  # what is beyond the end is asked of the last turn alone
            inside, end = f"{name}_in = tl.full({name}.shape, True, tl.int1)", last
        turns = self._range(f"{end}, {dim.block}")
        if dim.block == 1 and dim.programs <= MOST_IN_TURN and is_known(dim.axis.size):
            turns = f"tl.static_range(0, {dim.axis.size})"
        self.lines.append(f"for start in {turns}:")
        self.lines += [INDENT + line for line in [body[0], *[inside] * (not dim.exact), *body[1:]]]
        if apart:
            tested = [body[0], f"{name}_in = {name} < {dim.axis.size}", *body[1:]]
            self.lines += [re.sub(r"\bstart\b", str(last), line) for line in tested]

    def _range(self, ends: str) -> str:
        if not self.tile.stages:
            return f"range(0, {ends})"
        return f"tl.range(0, {ends}, num_stages={self.tile.stages})"

    def _stores(self, nest: Nest) -> None:
        for store in nest.stores:
            self._store(store)

    def _reduction(self, nest: Nest, dim: Dim | None, loops: bool) -> None:
        every = [v for v in walk(*(s.value for s in nest.stores)) if isinstance(v, Reduced)]
        bases = {base_of(value): value for value in every if value.kind in BASES}
        reduced = [value for value in every if value not in bases]
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
        beyond, other = dim.block > 1 and not dim.exact, self._identity(value)
        loaded = beyond and self._loads_beyond(value.value, other)
        text = self.value(value.value)
        return (
            f"tl.where({self.names[dim.axis]}_in, {text}, {other})"
            if beyond and not loaded
            else text
        )

    def _loads_beyond(self, value: Value, other: str) -> bool:
        """Whether the value is a load, as it is or in a wider type, that gives this number for
        lanes beyond the axis."""
        while isinstance(value, Cast) and value.dtype.is_floating_point:
            value = value.value
        if not isinstance(value, Load) or not value.dtype.is_floating_point:
            return False
        if value.mask is not None or "r" not in self.index_uses(value.index):
            return False
        if value not in self.memo and value not in self.loop_memo:
            self.beyond[value] = other
        return self.beyond.get(value) == other

    def _identity(self, value: Reduced) -> str:
        dtype = value.value.dtype
        print_ = full if dtype == torch.bool else literal
        return print_(identity(value.kind, dtype), dtype)

    def _wide(self, text: str, names: Names) -> str:
        whole = frozenset(self.rank)
        return text if names == whole else f"tl.broadcast_to({text}, {self._shape(whole)})"

    def _whole(self, value: Reduced, dim: Dim | None) -> tuple[str, ...]:
        """A persistent row: its values over the full tile (and their positions, for argmax, or
        what a step would have made of them)."""
        if dim is None or dim.block == 1:
            return (self.value(value.value),)
        names = self.used(value.value) | (frozenset() if dim.exact else frozenset({"r"}))
        wide = self._wide(self._masked(value, dim), names)
        if value.kind in BASES:
            return wide, "1.0" if value.kind == EXPONENTIALS else "0.0"
        if not value.kind.startswith("arg"):
            return (wide,)
        return wide, self._wide(self.names[dim.axis], frozenset({"r"}))

    def _accumulate(self, value: Reduced, dim: Dim) -> tuple[str, ...]:
        """One step of a looped reduction; the accumulators' names."""
        dtype, shape = value.value.dtype, self._shape(frozenset(self.rank))
        if value.kind in BASES:
            return self._accumulate_two(value, dim, shape)
        text = self._masked(value, dim)
        names = [self._fresh("a")]
        self.lines.append(f"{names[0]} = {full(identity(value.kind, dtype), dtype, shape)}")
        assert self.body is not None
        if not value.kind.startswith("arg"):
            self.body.append(f"{names[0]} = {step(value.kind, dtype).format(names[0], text)}")
            return tuple(names)
        names.append(self._fresh("a"))
        first = f"{self._lanes(dim)} + " if dim.block > 1 else ""
        self.lines.append(f"{names[1]} = {first}tl.full({shape}, 0, {self.integer})")
        both = ", ".join(names)
        self.body.append(
            f"{both} = m.arg_{value.kind[3:]}_next({both}, {text}, {self.names[dim.axis]})"
        )
        return tuple(names)

    def _accumulate_two(self, value: Reduced, dim: Dim, shape: str) -> tuple[str, ...]:
        """The fold of what each lane saw so far, and what is summed around it."""
        one, two = self._fresh("a"), self._fresh("a")
        share = self._neighbours(value) if value.kind == EXPONENTIALS else 1
        if share > 1:
            shape = f"[{dim.block // share}]"
        start = full(identity(value.kind, value.dtype), value.dtype, shape)
        self.lines += [f"{one} = {start}", f"{two} = {full(0.0, value.dtype, shape)}"]
        assert self.body is not None
        if value.kind == EXPONENTIALS:
            name = "exponentials_step" if share == 1 else "exponentials_steps"
            step_ = f"m.{name}({one}, {two}, {self._masked(value, dim)})"
        else:
            text = self.value(value.value)
            if not dim.exact:
                text = f"tl.where({self.names[dim.axis]}_in, {text}, {one})"
            step_ = f"m.squares_step({one}, {two}, {text}, start // {dim.block} + 1)"
        self.body.append(f"{one}, {two} = {step_}")
        return one, two

    def _neighbours(self, value: Reduced) -> int:
        """How many elements that a thread loads at once (16 bytes of the widest operand) share a
        maximum."""
        sizes = [v.buffer.dtype.itemsize for v in walk(value.value) if isinstance(v, Load)]
        dim = self.inner
        assert dim is not None
        share = 16 // max(sizes, default=16)
        return share if self.rank == ["r"] and dim.block >= 32 * share else 1

    def _fold_two(self, value: Reduced, name: str, parts: tuple[str, ...]) -> None:
        """The lanes together."""
        dim, axis = self.inner, self.rank.index("r")
        assert dim is not None
        column, (one, two), base = self._column(), parts, self._fresh("t")
        if value.kind == EXPONENTIALS:
            self.memo[base_of(value)] = base
            self.lines.append(f"{base} = m.reduce_max({one}, {axis}){column}")
            apart = f"tl.where({one} == {base}, 0.0, {one} - {base})"
            self.lines.append(f"{name} = tl.sum({two} * m.ext.exp({apart}), {axis}){column}")
            return
        count = f"(({dim.axis.size + dim.block - 1} - {self._lanes(dim)}) // {dim.block})"
        self.lines.append(f"{base} = tl.sum({count} * {one}, {axis}){column} / {dim.axis.size}.0")
        self.memo[base_of(value)] = self._emit(f"{base} * {dim.axis.size}.0", self._space_names())
        apart = f"{two} + {count} * ({one} - {base}) * ({one} - {base})"
        self.lines.append(f"{name} = tl.sum({apart}, {axis}){column}")

    def _column(self) -> str:
        """What gives a fold its place among the axes of the tile."""
        if len(self.rank) < 2:
            return ""
        return f"[{', '.join('None' if name == 'r' else ':' for name in self.rank)}]"

    def _fold(self, value: Reduced, parts: tuple[str, ...]) -> None:
        name = self._fresh("t")
        self.memo[value] = name
        if self.inner is None or self.inner.block == 1:
            position = f"{parts[-1]}.to(tl.int64)" if len(parts) > 1 else "tl.full([], 0, tl.int64)"
            self.lines.append(f"{name} = {position if value.kind.startswith('arg') else parts[0]}")
            return
        if value.kind in BASES:
            return self._fold_two(value, name, parts)
        axis = self.rank.index("r")
        column = self._column()
        if value.kind.startswith("arg"):
            self.lines.append(
                f"{name}_value, {name} = m.{value.kind}({parts[0]}, {parts[1]}, {axis})"
            )
            self.lines.append(f"{name} = {name}{column}.to(tl.int64)")
            return
        narrow = value.kind == "sum" and value.dtype in (torch.int8, torch.int16, torch.uint8)
        text = fold(value.kind, value.value.dtype).format(parts[0], axis) + column
        self.lines.append(f"{name} = {text}{f'.to({TYPES[value.dtype]})' if narrow else ''}")

    # ---- stores

    def _store(self, store: Store) -> None:
        if store.combine == PARTIAL:
            return self._add_part(store)
        if store.combine in RUNNING:
            return self._running(store, RUNNING[store.combine])
        value = self.value(store.value)
        if store.buffer.scope == "local":
            self._forget(store.buffer)
            self.locals[store.buffer] = value
            return
        names, wanted = self.index_uses(store.index), self.used(store.value)
        place = self._place(store.index, names)
        self._check(store.index, self._inside(names | wanted))
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
            stored = Load(store.buffer, store.index)
            self.beyond.pop(stored, None)
            self._remember(stored, value, names)

    def _running(self, store: Store, kind: str) -> None:
        """A scan of the row, in the type in which eager's kernels fold."""
        dim, dtype = self.inner, store.buffer.dtype
        wide, whole = torch.float32 if dtype in HALVES else dtype, frozenset(self.rank)
        text = cast(self.value(store.value), dtype, wide)
        if dim is not None and dim.block > 1:
            text = self._scanned(self._wide(text, self.used(store.value)), dim, kind, wide)
        value = self._emit(cast(text, wide, dtype), whole)
        self._write(store, self.index(store.index), value, self.index_uses(store.index))

    def _scanned(self, text: str, dim: Dim, kind: str, dtype: torch.dtype) -> str:
        """The scan of a tile; a loop carries the fold of what lies before it."""
        axis, whole = self.rank.index("r"), frozenset(self.rank)
        if self.body is None:
            return self._emit(f"tl.cum{kind}({text}, {axis})", whole)
        if not dim.exact:
            neutral = literal(identity(kind, dtype), dtype)
            text = self._emit(f"tl.where({self.names[dim.axis]}_in, {text}, {neutral})", whole)
        carry, sign = self._fresh("a"), {"sum": "+", "prod": "*"}[kind]
        column = self._column()
        start = full(identity(kind, dtype), dtype, self._shape(self._space_names()))
        self.lines.append(f"{carry} = {start if column else full(identity(kind, dtype), dtype)}")
        value = self._emit(f"{carry} {sign} tl.cum{kind}({text}, {axis})", whole)
        total = fold(kind, dtype).format(text, axis)
        self.body.append(f"{carry} = {carry} {sign} {total}{column}")
        return value

    def _atomic_names(self, names: Names) -> Names:
        """Every point adds once: the nest's own axes, whether the index uses them or not."""
        inner = self.inner is not None and self.inner.block > 1
        return names | self._space_names() | (frozenset({"r"}) if inner else frozenset())

    def _write(self, store: Store, place: str, value: str, names: Names) -> None:
        masks = self._inside(names)
        mask = f", mask={' & '.join(masks)}" if masks else ""
        once = store.combine is None or store.combine in RUNNING
        function = "tl.store" if once else "tl.atomic_add"
        relaxed = "" if once else ', sem="relaxed"'
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


def hoisted(body: list[str], varying: set[str], stored: set[str]) -> tuple[list[str], list[str]]:
    """The assignments of a loop's body that give the same in every turn, and the other lines.
    varying: names that each turn sets; stored: parameters that the loop writes to."""
    changing = varying | {line.split(" = ")[0] for line in body if " = " in line}
    before, rest = [], []
    for line in body:
        name, assigned, text = line.partition(" = ")
        words = set(re.findall(r"\w+", text))
        if assigned and name.isidentifier() and not words & (changing | stored):
            before.append(line)
            changing.discard(name)
        else:
            rest.append(line)
    return before, rest
