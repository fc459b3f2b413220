"""C++ of a nest whose store takes what the points of its inner axis gave so far (`RUNNING`)."""

from collections.abc import Callable

import torch

from ...loops.ir import RUNNING, Load, Nest, Store
from ...loops.polynomials import Size, at_least, hint, is_known
from ...loops.short_axes import FEWEST_ROWS
from ...loops.sizes import Axis, Index, coefficient
from .cpp_expr import ExpressionPrinter, Lines, has_indirect, loop
from .cpp_nest import TILE, NestPrinter
from .cpp_ops import TYPES, conversion
from .cpp_rows import BLOCK

ROWS = 4  # done in turn, element by element, where a step of one waits for the step before
COLUMNS = 64  # of a block that is turned
LONGEST = 128  # elements of rows that are turned as they lie in memory
STEPS = {"sum": "{0} += {1};", "prod": "{0} *= {1};"}


def scan(nest: Nest, nests: NestPrinter, lines: Lines, parallel: bool) -> None:
    """Rows one after the other, or neighbouring ones side by side where they lie so in memory."""
    space, along = nest.axes[: len(nest.space)], nest.axes[-1]
    index = nest.stores[0].index
    beside = bool(space) and coefficient(index, space[-1]) == 1 != coefficient(index, along)
    rows = space[:-1] if beside else space
    if parallel and rows:
        clause = " reduction(|:bad)" if has_indirect(nest) else ""
        lines.add(
            "#pragma omp parallel for num_threads(threads) if(parallel : threads > 1)"
            f" schedule(static) collapse({len(rows)}){clause}"
        )
    if beside or not rows:
        for axis in rows:
            lines.open(loop(axis))
        if beside:
            _side_by_side(nest, nests, lines, space[-1], along)
        else:
            _rows(nest, nests, lines, along, 1)
        lines.close(len(rows))
        return
    for axis in rows[:-1]:
        lines.open(loop(axis))
    last = rows[-1]
    if _is_turned(nest, last, along):
        _turned(nest, nests, lines, last, along)
        lines.close(len(rows) - 1)
        return
    if not _waits(nest.stores[0]):
        lines.open(loop(last))
        _rows(nest, nests, lines, along, 1)
        lines.close(len(rows))
        return
    lines.open(f"for (int64_t base = 0; base < {last.size}; base += {ROWS})")
    if not is_known(last.size) or last.size >= ROWS:
        lines.open(f"if (base + {ROWS} <= {last.size})")
        _rows(nest, nests, lines, along, ROWS)
        lines.add("continue;")
        lines.close()
    lines.open(f"for (int64_t {last.text} = base; {last.text} < {last.size}; ++{last.text})")
    _rows(nest, nests, lines, along, 1)
    lines.close(len(rows) + 1)


def _rows(nest: Nest, nests: NestPrinter, lines: Lines, along: Axis, count: int) -> None:
    """One row, or `count` from `base` on. What is computed is first written to a block on the
    stack, by a vector loop."""
    store = nest.stores[0]
    several = f"[{count}]" if count > 1 else ""
    lane = "[t]" if count > 1 else ""
    lines.add(f"{_kind(store)} sofar{several};")

    def each(body: Callable[[], None]) -> None:
        if count > 1:
            lines.add(f"#pragma GCC unroll {count}")
            lines.open(f"for (int64_t t = 0; t < {count}; ++t)")
            lines.add(f"const int64_t {nest.axes[len(nest.space) - 1].text} = base + t;")
        body()
        lines.close(count > 1)

    each(lambda: lines.add(f"sofar{lane} = {_start(store)};"))
    if isinstance(store.value, Load):
        lines.open(loop(along))
        each(lambda: _step(store, nests.expressions(), lines, f"sofar{lane}"))
        lines.close()
        return
    size, place = along.size, along.text
    lines.open(f"for (int64_t b = 0; b < {size}; b += {BLOCK})")
    lines.add(f"const int64_t e = b + {BLOCK} < {size} ? b + {BLOCK} : {size};")
    lines.add(f"{TYPES[store.buffer.dtype]} block{several}[{BLOCK}];")

    def fill() -> None:
        nests.simd(nest)
        lines.open(f"for (int64_t {place} = b; {place} < e; ++{place})")
        value = nests.expressions()(store.value)
        lines.add(f"block{lane}[{place} - b] = {value};")
        lines.close()

    def fold() -> None:
        value = f"block{lane}[{place} - b]"
        _take(store, nests.expressions(), lines, f"sofar{lane}", value)

    each(fill)
    lines.open(f"for (int64_t {place} = b; {place} < e; ++{place})")
    each(fold)
    lines.close(2)


def _turned(nest: Nest, nests: NestPrinter, lines: Lines, across: Axis, along: Axis) -> None:
    """Many rows, of which vectors take one element each: blocks are turned, and turned back."""
    store, rows = nest.stores[0], _open_tile(nest, lines, across)
    kind, size = TYPES[store.buffer.dtype], along.size
    aligned = "__attribute__((aligned(64)))"
    lines.open(f"for (int64_t b = 0; b < {size}; b += {COLUMNS})")
    lines.add(f"const int64_t e = b + {COLUMNS} < {size} ? b + {COLUMNS} : {size};")
    lines.add(f"{kind} turned[{COLUMNS * TILE}] {aligned};")
    start, step = f"const int64_t {across.text} = base, {along.text} = b;", None
    if (
        isinstance(store.value, Load)
        and store.value.mask is None
        and store.value.dtype != torch.bool
    ):
        step = _step_of(store.value.index, across, along)
    if step is not None:
        assert isinstance(store.value, Load)
        lines.open("")
        lines.add(start)
        place = f"{store.value.buffer.name} + {nests.expressions().index(store.value.index)}"
        lines.add(f"op_transpose<{kind}>(turned, {TILE}, {place}, {step}, width, e - b);")
        lines.close()
    else:
        lines.add(f"{kind} block[{TILE * COLUMNS}] {aligned};")
        lines.open("for (int64_t t = 0; t < width; ++t)")
        lines.add(rows)
        nests.simd(nest)
        lines.open(f"for (int64_t {along.text} = b; {along.text} < e; ++{along.text})")
        value = nests.expressions()(store.value)
        lines.add(f"block[t * {COLUMNS} + {along.text} - b] = {value};")
        lines.close(2)
        lines.add(f"op_transpose<{kind}>(turned, {TILE}, block, {COLUMNS}, width, e - b);")
    lines.open("for (int64_t c = 0; c < e - b; ++c)")
    lines.add("#pragma omp simd")
    lines.open("for (int64_t t = 0; t < width; ++t)")
    element = f"turned[c * {TILE} + t]"
    lines.add(_folded(store, "sofar[t]", element))
    lines.add(f"{element} = {conversion('sofar[t]', _wide(store), store.buffer.dtype)};")
    lines.close(2)
    lines.open("")
    lines.add(start)
    place = f"{store.buffer.name} + {nests.expressions().index(store.index)}"
    step = _step_of(store.index, across, along)
    lines.add(f"op_transpose<{kind}>({place}, {step}, turned, {TILE}, e - b, width);")
    lines.close(3)


def _waits(store: Store) -> bool:
    """Whether a step takes longer than to read and write an element."""
    return store.buffer.dtype.is_floating_point or RUNNING[store.combine] != "sum"  # type: ignore[index]


def _is_turned(nest: Nest, across: Axis, along: Axis) -> bool:
    """Whether there are many rows that are short, or computed before they are turned."""
    store = nest.stores[0]
    many = hint(across.size) >= FEWEST_ROWS and store.buffer.dtype.is_floating_point
    pays = hint(along.size) <= LONGEST or not isinstance(store.value, Load)
    return many and pays and _step_of(store.index, across, along) is not None


def _step_of(index: Index, across: Axis, along: Axis) -> Size | None:
    """Elements between neighbouring rows, if they lie element beside element, and one behind the
    other."""
    step = coefficient(index, across)
    others = [atom for atom, _ in index.terms if atom not in (across, along)]
    plain = all(isinstance(atom, Axis) for atom in others)
    behind = at_least(step, along.size) and plain and coefficient(index, along) == 1
    return step if behind else None


def _open_tile(nest: Nest, lines: Lines, across: Axis) -> str:
    """Opens the loop over tiles of rows; what a loop over the rows of a tile begins with."""
    store, size = nest.stores[0], across.size
    lines.open(f"for (int64_t base = 0; base < {size}; base += {TILE})")
    lines.add(f"const int64_t width = base + {TILE} < {size} ? {TILE} : {size} - base;")
    lines.add(f"{_kind(store)} sofar[{TILE}];")
    lines.add(f"for (int64_t t = 0; t < {TILE}; ++t) sofar[t] = {_start(store)};")
    return f"const int64_t {across.text} = base + t;"


def _side_by_side(nest: Nest, nests: NestPrinter, lines: Lines, across: Axis, along: Axis) -> None:
    store, rows = nest.stores[0], _open_tile(nest, lines, across)
    lines.open(loop(along))
    nests.simd(nest)
    lines.open("for (int64_t t = 0; t < width; ++t)")
    lines.add(rows)
    _step(store, nests.expressions(), lines, "sofar[t]")
    lines.close(3)


def _step(store: Store, printer: ExpressionPrinter, lines: Lines, sofar: str) -> None:
    _take(store, printer, lines, sofar, printer(store.value))


def _take(store: Store, printer: ExpressionPrinter, lines: Lines, sofar: str, value: str) -> None:
    dtype, wide = store.buffer.dtype, _wide(store)
    lines.add(_folded(store, sofar, value))
    place = f"{store.buffer.name}[{printer.index(store.index)}]"
    lines.add(f"{place} = {conversion(sofar, wide, dtype)};")


def _folded(store: Store, sofar: str, value: str) -> str:
    step = STEPS[RUNNING[store.combine]]  # type: ignore[index]
    return step.format(sofar, conversion(value, store.buffer.dtype, _wide(store)))


def _wide(store: Store) -> torch.dtype:
    """The type in which eager adds up (`at::acc_type` of the CPU)."""
    widened = {
        torch.float32: torch.float64,
        torch.float16: torch.float32,
        torch.bfloat16: torch.float32,
    }
    return widened.get(store.buffer.dtype, store.buffer.dtype)


def _kind(store: Store) -> str:
    return TYPES[_wide(store)]


def _start(store: Store) -> str:
    return "1" if store.combine == "running prod" else "0"
