"""Rows in parts of a fixed height, one after the other within a part: partial sums of columns."""

from collections.abc import Callable, Sequence
from math import prod

from ...loops import sizes
from ...loops.ir import PARTIAL, Nest, Store
from ...loops.polynomials import Size, is_known
from ...loops.sizes import Axis
from .cpp_expr import loop
from .cpp_nest import NestPrinter
from .cpp_ops import TYPES
from .cpp_rows import ROW_BLOCK


class PartPrinter:
    """Prints the loops over parts. Sums of more than `ROW_BLOCK` rows, which would round more than
    eager's, are made of the sums of blocks, on the stack."""

    def __init__(self, printer: NestPrinter, nests: Sequence[Nest]) -> None:
        self.printer, self.lines = printer, printer.lines
        self.sums = [(n, s) for n in nests for s in n.stores if s.combine == PARTIAL]

    def print(self, rows: Axis, height: Size, body: Callable[[], None]) -> None:
        """`body` prints what is done at each row."""
        self._span("part", ("0", str(rows.size)), height, "end")
        self._each_sum(lambda store: "= 0;")
        if is_known(height) and height <= ROW_BLOCK:
            self._rows(rows, ("part", "end"), body)
        else:
            self._span("block", ("part", "end"), ROW_BLOCK, "last")
            self._open_block()
            self._rows(rows, ("block", "last"), body)
            self._each_sum(lambda store: f"+= {self.printer.targets[store]};")
            self.lines.close()
        self.lines.close()

    def _span(self, start: str, limits: tuple[str, str], step: Size, end: str) -> None:
        """Open a loop over spans of `step` points, of which the last one may be shorter."""
        low, high = limits
        self.lines.open(f"for (int64_t {start} = {low}; {start} < {high}; {start} += {step})")
        beyond = f"{start} + {step}"
        self.lines.add(f"const int64_t {end} = {beyond} < {high} ? {beyond} : {high};")

    def _rows(self, rows: Axis, limits: tuple[str, str], body: Callable[[], None]) -> None:
        low, high = limits
        self.lines.open(f"for (int64_t {rows.text} = {low}; {rows.text} < {high}; ++{rows.text})")
        body()
        self.lines.close()
        self.printer.divisions = {}  # those of a row

    def _open_block(self) -> None:
        for number, (nest, store) in enumerate(self.sums):
            shape = nest.space[1:] + nest.inner
            count, strides = f"{prod(shape)}", sizes.contiguous_strides(shape)
            single = len(shape) == 1 and is_known(shape[0])
            array = f"sums{number}" if single else f"block{number}"
            count = f"WHOLE_VECTORS({count})" if single else count
            self.lines.add(f"alignas(64) {TYPES[store.buffer.dtype]} {array}[{count}];")
            self.lines.add(f"for (int64_t k = 0; k < {count}; ++k) {array}[k] = 0;")
            place = self.printer.expressions().index(sizes.linear(nest.axes[1:], strides))
            self.printer.targets[store] = f"{array}[{place}]"

    def _each_sum(self, change: Callable[[Store], str]) -> None:
        """Change every sum of the part."""
        for nest, store in self.sums:
            row, *columns = nest.axes
            self.lines.open(f"if (const int64_t {row.text} = part; true)")
            for column in columns:
                self.lines.open(loop(column))
            place = self.printer.expressions().index(store.index)
            self.lines.add(f"{store.buffer.name}[{place}] {change(store)}")
            self.lines.close(1 + len(columns))
