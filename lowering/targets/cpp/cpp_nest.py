"""C++ of one nest at one point of its space, or at `TILE` neighbouring points at once."""

from collections.abc import Callable, Container, Sequence
from dataclasses import replace

from ...loops import sizes
from ...loops.axes import all_indices
from ...loops.divisions import sparse_steps
from ...loops.ir import PARTIAL, Buffer, Load, Nest, Reduced, Store, Value, store_values
from ...loops.legality import HALVES
from ...loops.polynomials import Size, at_least, is_known
from ...loops.sizes import Atom, Axis, Index
from .cpp_expr import (
    ExpressionPrinter,
    Lines,
    Picked,
    axes_of,
    has_indirect,
    loop,
    outermost,
    slow_divisions,
)
from .cpp_rows import (
    BLOCK,
    ROW_BLOCK,
    SIMD_KINDS,
    Accumulator,
    Ahead,
    Row,
    Rows,
    ask,
    cut_of,
    finds_in_row,
    fold,
    folds_row,
    in_memory,
    open_parts,
    position_type,
)

TILE = 64
LANES = 64  # partial sums of a row, in registers
MOST_LANES = 3  # sums of one loop that are kept so


class NestPrinter:
    """Prints nests of one group. `lane` is "" or "[t]": the suffix of variables that exist once for
    each point of a tile."""

    def __init__(self, lines: Lines, rows: Rows) -> None:
        self.lines = lines
        self.rows = rows
        self.lane = ""
        self._accumulators = 0
        self.divisions: dict[Atom, str] = {}
        self.steps: dict[tuple[Atom, Size], str] = {}
        self.tables: dict[Index, Picked] = {}
        self._filled: set[str] = set()  # arrays of `rows` that a nest has written
        self.width = "width"  # of a tile
        self.tiled = False  # whether these hold as many rows as a tile has points
        self.elements: dict[Value, str] = {}  # loads that read an array on the stack instead
        self.targets: dict[Store, str] = {}  # and stores that write one
        self.ahead = Ahead()

    def local(self, buffer: Buffer) -> str:
        return buffer.name + self.lane

    def expressions(self) -> ExpressionPrinter:
        parts = self.divisions, self.steps, self.tables
        return ExpressionPrinter(self.lines, self.local, self.elements, *parts)

    def divide(self, nests: Sequence[Nest], axes: Container[Axis]) -> None:
        """Slow divisions of these axes alone, done once: a vector loop inside could not do them."""
        printer = self.expressions()
        indices = [index for nest in nests for index in all_indices(nest)]
        self.divisions = {}
        for number, atom in enumerate(slow_divisions(indices, axes)):
            printer.divisions = self.divisions
            self.lines.add(f"const int64_t d{number} = {printer.atom(atom)};")
            self.divisions[atom] = f"d{number}"

    def hide_steps(self, nests: Sequence[Nest], axis: Axis) -> None:
        """Have the compiler not know the steps of a vector loop that keep it from making one."""
        for number, step in enumerate(sparse_steps(nests, axis)):
            self.lines.add(f'int64_t step{number} = {step}; __asm__("" : "+r"(step{number}));')
            self.steps[axis, step] = f"step{number}"

    # a single point

    def at_point(self, nest: Nest) -> None:
        outside, self.steps = self.steps, dict(self.steps)
        if nest.inner:
            self.hide_steps((nest,), nest.axes[-1])
        self._at_point(nest, self.expressions())
        self.steps = outside

    def _at_point(self, nest: Nest, printer: ExpressionPrinter) -> None:
        if nest.is_reduction:
            self._reduce_point(nest, printer)
            return
        if nest.inner:
            self._hoist(nest, [store.value for store in nest.stores], printer)
            self._loops(nest, printer)
            return
        self.stores(nest, printer)

    def stores(self, nest: Nest, printer: ExpressionPrinter) -> None:
        printer.rounds = all(store.buffer.dtype in HALVES for store in nest.stores)
        for store in nest.stores:
            self.store(store, printer)

    def store(self, store: Store, printer: ExpressionPrinter) -> None:
        value = printer(store.value)
        sign = "+=" if store.combine == PARTIAL else "="
        if store in self.targets:
            self.lines.add(f"{self.targets[store]} {sign} {value};")
        elif store.buffer.scope == "local":
            self.lines.add(f"{self.local(store.buffer)} = {value};")
        else:
            self.lines.add(f"{store.buffer.name}[{printer.index(store.index)}] {sign} {value};")

    def _hoist(self, nest: Nest, roots: Sequence[Value], printer: ExpressionPrinter) -> None:
        """Print what does not depend on inner axes before their loops."""
        if 0 in nest.inner:
            return
        inner, memo = frozenset(nest.axes[len(nest.space) :]), dict[Value, frozenset[Axis]]()
        for root in roots:
            for value in outermost(
                root, lambda v: not isinstance(v, Reduced) and not axes_of(v, memo) & inner
            ):
                printer(value)

    def _loops(self, nest: Nest, printer: ExpressionPrinter) -> None:
        """The loops over inner axes, the last one vectorised."""
        axes = nest.axes[len(nest.space) :]
        for axis in axes[:-1]:
            self.lines.open(loop(axis))
        last, asked = axes[-1], self.ahead.within(nest)
        if asked:
            low, high = open_parts(last, asked, self.lines, printer)
        else:
            low, high = "0", str(last.size)
        self.simd(nest)
        self.lines.open(f"for (int64_t {last.text} = {low}; {last.text} < {high}; ++{last.text})")
        self.stores(nest, self._inside(nest, printer))
        self.lines.close(len(axes) + bool(asked))

    def _inside(self, nest: Nest, printer: ExpressionPrinter) -> ExpressionPrinter:
        """A printer for the innermost loop: what earlier nests of the group keep is read from their
        arrays."""
        inner = printer.nested()
        for value, array in self.rows.get(nest.axes, {}).items():
            if array in self._filled:
                inner.names[value] = f"{array}[{nest.axes[-1].text}]"
        return inner

    def simd(self, *nests: Nest, clauses: str = "") -> None:
        more = " reduction(|:bad)" if any(map(has_indirect, nests)) else ""
        self.lines.add(f"#pragma omp simd{clauses}{more}")

    # reductions at a single point

    def accumulators(self, nest: Nest) -> list[Accumulator]:
        found = [value for value in store_values(nest) if isinstance(value, Reduced)]
        self._accumulators += len(found)
        parts = len(nest.inner) > 1 or (bool(nest.inner) and not at_least(BLOCK, nest.inner[0]))
        return [Accumulator(v, f"r{self._accumulators - i}", parts) for i, v in enumerate(found)]

    def _reduce_point(self, nest: Nest, printer: ExpressionPrinter) -> None:
        accumulators = self.accumulators(nest)
        self._fold(nest, accumulators, printer)
        printer.names.update({a.reduced: a.outcome(self.lane) for a in accumulators})
        self.stores(nest, printer)

    def _fold(
        self, nest: Nest, accumulators: Sequence[Accumulator], printer: ExpressionPrinter
    ) -> None:
        self._hoist(nest, [a.reduced.value for a in accumulators], printer)
        self._declare(accumulators)
        simple = [a for a in accumulators if not a.is_position]
        if simple:
            self._sweep(nest, simple, printer)
        for accumulator in accumulators:
            if accumulator.is_position:
                by_row = bool(nest.inner) and finds_in_row(accumulator.reduced, nest.axes[-1])
                search = self._position_rows if by_row else self._position_loops
                search(nest, accumulator, printer)

    def _declare(self, accumulators: Sequence[Accumulator]) -> None:
        for a in accumulators:
            self.lines.add(f"{'double' if a.wide else a.type} {a.name} = {a.start};")
            if a.is_position:
                self.lines.add(f"int64_t {a.name}_at = 0;")
            elif a.carries:
                self.lines.add(f"double {a.name}_low = 0;")

    def _sweep(
        self, nest: Nest, accumulators: Sequence[Accumulator], printer: ExpressionPrinter
    ) -> None:
        """All reductions in one pass: the innermost loop in blocks, each folded in vector lanes,
        then added to the whole."""
        axes = nest.axes[len(nest.space) :] or (Axis(len(nest.space), 1),)
        for axis in axes[:-1]:
            self.lines.open(loop(axis))
        last = axes[-1]
        rows = {a: self._row(nest, a, last) for a in accumulators if folds_row(a.reduced, last)}
        looped = [a for a in accumulators if a not in rows or rows[a].computed]
        lanes = self._lanes(nest, looped, rows)
        block = LANES * ROW_BLOCK if lanes else BLOCK
        blocked = (
            bool(looped)
            and (not is_known(last.size) or last.size > block)
            and (bool(lanes) or not all(row.kept for row in rows.values()))
        )
        low, high = ("b", "e") if blocked else ("0", str(last.size))
        if blocked:
            self._open_block(last.size, block)
        for a in looped:
            if a in lanes:
                self.lines.add(f"{a.type} {a.name}_lane[{LANES}];")
                self.lines.add(f"for (int64_t t = 0; t < {LANES}; ++t) {a.name}_lane[t] = 0;")
            elif a not in rows:
                self.lines.add(f"{a.type} {a.name}_part = {a.start};")
            elif not rows[a].kept:
                size = BLOCK if blocked else f"WHOLE_VECTORS({last.size})"
                self.lines.add(f"{a.type} {rows[a].array}[{size}];")
        if lanes:
            self._lane_loops(nest, looped, rows, (low, high), printer)
        elif looped:
            self._sweep_loop(nest, looped, rows, (low, high), printer)
        for a in accumulators:
            if a in lanes:
                part = fold(a.reduced, f"{a.name}_lane", str(LANES))
            else:
                part = rows[a].folded(a, printer, low, high) if a in rows else f"{a.name}_part"
            self.lines.add(a.with_part(part))
        self.lines.close(len(axes) - 1 + blocked)
        self._filled.update(row.array for row in rows.values() if row.kept)

    def _lanes(
        self, nest: Nest, looped: Sequence[Accumulator], rows: dict[Accumulator, "Row"]
    ) -> list[Accumulator]:
        """Sums that `LANES` variables each take part of, which stay in registers; none if something
        else is folded in the same loop."""
        size = nest.axes[-1].size if nest.inner else 1
        sums = [a for a in looped if a in rows and a.kind == "sum" and not rows[a].kept]
        others = [a for a in looped if a not in sums and not (a in rows and rows[a].kept)]
        long = not is_known(size) or size >= 2 * LANES
        return sums if long and not others and 0 < len(sums) <= MOST_LANES else []

    def _lane_loops(
        self,
        nest: Nest,
        looped: Sequence[Accumulator],
        rows: dict[Accumulator, "Row"],
        limits: tuple[str, str],
        printer: ExpressionPrinter,
    ) -> None:
        (low, high), last = limits, nest.axes[-1]
        lanes = self._lanes(nest, looped, rows)

        def body() -> None:
            inner = self._inside(nest, printer)
            for a in looped:
                into = f"{a.name}_lane[t]" if a in lanes else f"{rows[a].array}[{last.text}]"
                value = inner(a.reduced.value)
                self.lines.add(f"{into} {'+=' if a in lanes else '='} {value};")

        self.lines.add(f"int64_t c = {low};")
        self.lines.open(f"for (; c + {LANES} <= {high}; c += {LANES})")
        ask(self.ahead.within(nest), "c", LANES, self.lines, printer)
        self.simd(nest)
        self.lines.open(f"for (int64_t t = 0; t < {LANES}; ++t)")
        self.lines.add(f"const int64_t {last.text} = c + t;")
        body()
        self.lines.close(2)
        if is_known(last.size) and last.size % LANES == 0:
            return
        self.simd(nest)
        self.lines.open(f"for (int64_t t = 0; t < {high} - c; ++t)")
        self.lines.add(f"const int64_t {last.text} = c + t;")
        body()
        self.lines.close()

    def _sweep_loop(
        self,
        nest: Nest,
        looped: Sequence[Accumulator],
        rows: dict[Accumulator, "Row"],
        limits: tuple[str, str],
        printer: ExpressionPrinter,
    ) -> None:
        (low, high), last = limits, nest.axes[-1] if nest.inner else Axis(len(nest.space), 1)
        parts = [a for a in looped if a not in rows]
        clauses = (f" reduction({SIMD_KINDS[a.kind]}:{a.name}_part)" for a in parts)
        self.simd(nest, clauses="".join(clauses))
        self.lines.open(f"for (int64_t {last.text} = {low}; {last.text} < {high}; ++{last.text})")
        inner = self._inside(nest, printer)
        for a in looped:
            value = inner(a.reduced.value)
            if a in rows:
                offset = f" - {low}" if low != "0" and not rows[a].kept else ""
                self.lines.add(f"{rows[a].array}[{last.text}{offset}] = {value};")
            else:
                self.lines.add(a.combine(f"{a.name}_part", value))
        self.lines.close()

    def _row(self, nest: Nest, a: Accumulator, last: Axis) -> "Row":
        kept = self.rows.get(nest.axes, {}).get(a.reduced.value)
        if kept is not None:
            whole = is_known(last.size)
            return Row(kept, True, computed=kept not in self._filled, room=whole)
        memory = in_memory(a.reduced.value, last)
        return Row(f"{a.name}_row", False, computed=memory is None, memory=memory, room=True)

    def _position_rows(self, nest: Nest, a: Accumulator, printer: ExpressionPrinter) -> None:
        """The extremum of each part of a row, and its position where it is a new one."""
        *outer, last = nest.axes[len(nest.space) :]
        for axis in outer:
            self.lines.open(loop(axis))
        start = sizes.linear(outer, sizes.contiguous_strides(nest.inner)[:-1])
        blocked = not is_known(last.size) or last.size > BLOCK
        low, count = ("b", "e - b") if blocked else ("0", str(last.size))
        if blocked:
            self._open_block(last.size, BLOCK)
        memory = in_memory(a.reduced.value, last)
        if memory is None:
            row, high = f"{a.name}_row", "e" if blocked else str(last.size)
            self.lines.add(f"{a.type} {row}[{BLOCK if blocked else f'WHOLE_VECTORS({count})'}];")
            self.simd(nest)
            self.lines.open(
                f"for (int64_t {last.text} = {low}; {last.text} < {high}; ++{last.text})"
            )
            value = self._inside(nest, printer)(a.reduced.value)
            self.lines.add(f"{row}[{last.text}{' - b' if blocked else ''}] = {value};")
            self.lines.close()
        else:
            row = f"{memory[0].name} + {printer.index(memory[1])} + {low}"
        place = f"{printer.index(start)} + {low}"
        self.lines.add(
            f"op_row_{a.kind}<{a.type}>({row}, {count}, {place}, {a.name}, {a.name}_at);"
        )
        self.lines.close(len(outer) + blocked)

    def _open_block(self, size: Size, block: int) -> None:
        self.lines.open(f"for (int64_t b = 0; b < {size}; b += {block})")
        self.lines.add(f"const int64_t e = b + {block} < {size} ? b + {block} : {size};")

    def _position_loops(self, nest: Nest, a: Accumulator, printer: ExpressionPrinter) -> None:
        axes = nest.axes[len(nest.space) :]
        place = sizes.linear(axes, sizes.contiguous_strides(nest.inner))
        for axis in axes:
            self.lines.open(loop(axis))
        inner = printer.nested()
        value = inner(a.reduced.value)
        sign = ">" if a.kind == "argmax" else "<"
        self.lines.open(
            f"if ({value} {sign} {a.name} || ({value} != {value} && {a.name} == {a.name}))"
        )
        self.lines.add(f"{a.name} = {value};")
        self.lines.add(f"{a.name}_at = {inner.index(place)};")
        self.lines.close(len(axes) + 1)

    # a tile of points along the last space axis

    def at_tile(self, nest: Nest, row_by_row: bool = False) -> None:
        """row_by_row: loops inside are those of one point after the other, what is made of their
        folds is made for all."""
        self.lane = "[t]"
        if nest.is_reduction:
            self._reduce_tile(nest, self._row_sweeps if row_by_row else self._tile_sweep)
        elif nest.inner and row_by_row:
            self.lines.open(f"for (int64_t t = 0; t < {self.width}; ++t)")
            self.lines.add(f"const int64_t {nest.axes[len(nest.space) - 1].text} = base + t;")
            self.at_point(nest)
            self.lines.close()
        else:
            for axis in nest.axes[len(nest.space) :]:
                self.lines.open(loop(axis))
            self.tile_loop(nest, lambda printer: self.stores(nest, printer))
            self.lines.close(len(nest.inner))
        self.lane = ""

    def tile_loop(self, nest: Nest, body: Callable[[ExpressionPrinter], None]) -> None:
        axis = nest.axes[len(nest.space) - 1]
        self.simd(nest)
        self.lines.open(f"for (int64_t t = 0; t < {self.width}; ++t)")
        self.lines.add(f"const int64_t {axis.text} = base + t;")
        printer, kept = self.expressions(), self._kept_in_tile(nest)
        printer.names.update(
            {v: place for v, (array, place) in kept.items() if array in self._filled}
        )
        body(printer)
        self.lines.close()

    def _kept_in_tile(self, nest: Nest) -> dict[Value, tuple[str, str]]:
        """Values of a tile that are kept: the array, and the element."""
        kept = self.rows.get(nest.axes, {}) if self.tiled else {}
        return {v: (name, f"{name}[{nest.axes[-1].text} * {TILE} + t]") for v, name in kept.items()}

    def _reduce_tile(
        self, nest: Nest, sweep: Callable[[Nest, Sequence[Accumulator]], None]
    ) -> None:
        accumulators = self.accumulators(nest)
        for a in accumulators:
            self.lines.add(f"{'double' if a.wide else a.type} {a.name}[{TILE}];")
            self.lines.add(f"for (int64_t t = 0; t < {TILE}; ++t) {a.name}[t] = {a.start};")
            if a.is_position:
                self.lines.add(f"{position_type(nest)} {a.name}_at[{TILE}] = {{}};")
        sweep(nest, accumulators)

        def finish(printer: ExpressionPrinter) -> None:
            printer.names.update({a.reduced: a.outcome(self.lane) for a in accumulators})
            self.stores(nest, printer)

        self.tile_loop(nest, finish)

    def _row_sweeps(self, nest: Nest, accumulators: Sequence[Accumulator]) -> None:
        self.lines.open(f"for (int64_t t = 0; t < {self.width}; ++t)")
        self.lines.add(f"const int64_t {nest.axes[len(nest.space) - 1].text} = base + t;")
        row = [replace(a, name=f"{a.name}_one") for a in accumulators]
        self._fold(nest, row, self.expressions())
        for a, one in zip(accumulators, row, strict=True):
            self.lines.add(f"{a.name}[t] = {one.folded};")
            if a.is_position:
                self.lines.add(f"{a.name}_at[t] = {one.name}_at;")
        self.lines.close()

    def _tile_sweep(self, nest: Nest, accumulators: Sequence[Accumulator]) -> None:
        axes = nest.axes[len(nest.space) :]
        cut, block = cut_of(axes)
        first = axes[cut]
        for axis in axes[:cut]:
            self.lines.open(loop(axis))
        self._open_block(first.size, block)
        parts = [a for a in accumulators if not a.is_position]
        for a in parts:
            self.lines.add(f"{a.type} {a.name}_part[{TILE}];")
            self.lines.add(f"for (int64_t t = 0; t < {TILE}; ++t) {a.name}_part[t] = {a.start};")
        self.lines.open(f"for (int64_t {first.text} = b; {first.text} < e; ++{first.text})")
        for axis in axes[cut + 1 :]:
            self.lines.open(loop(axis))
        place = sizes.linear(axes, sizes.contiguous_strides(nest.inner))
        kept = self._kept_in_tile(nest)

        # Beside their comparisons, what is computed would become branches.
        ahead = [a for a in accumulators if a.is_position and not isinstance(a.reduced.value, Load)]

        def compute(printer: ExpressionPrinter) -> None:
            for a in ahead:
                self.lines.add(f"{a.name}_value[t] = {printer(a.reduced.value)};")

        def body(printer: ExpressionPrinter) -> None:
            printer.names.update({a.reduced.value: f"{a.name}_value[t]" for a in ahead})
            for a in accumulators:
                value = printer(a.reduced.value)
                if a.reduced.value in kept and kept[a.reduced.value][0] not in self._filled:
                    self.lines.add(f"{kept[a.reduced.value][1]} = {value};")
                if a.is_position:
                    at = f"({position_type(nest)})({printer.index(place)})"
                    for line in a.moved(value, at):
                        self.lines.add(line)
                else:
                    self.lines.add(a.combine(f"{a.name}_part[t]", value))

        if has_indirect(nest):
            self.lines.add('asm volatile("");  // two turns made one gather from both their rows')
        self.lines.add(*(f"{a.type} {a.name}_value[{TILE}];" for a in ahead))
        if ahead:
            self.tile_loop(nest, compute)
        self.tile_loop(nest, body)
        self.lines.close(len(axes) - cut)
        self._filled.update(
            kept[a.reduced.value][0] for a in accumulators if a.reduced.value in kept
        )
        for a in parts:
            self.lines.add(
                f"for (int64_t t = 0; t < {TILE}; ++t)"
                f" {a.combine(a.name + '[t]', a.name + '_part[t]')}"
            )
        self.lines.close(1 + cut)
