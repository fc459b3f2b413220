"""C++ of a nest that stores at positions from memory, or folds into what is there: its points may
meet in one place, so that they run in the order of the axes and give the same at every call."""

from collections.abc import Sequence

import torch

from ...loops.ir import Indirect, Nest, Store, Value, atoms
from ...loops.sizes import Axis, coefficient
from .cpp_expr import ExpressionPrinter, Lines, axes_of, has_indirect, loop
from .cpp_nest import NestPrinter
from .cpp_ops import TYPES, element_type
from .cpp_rows import BLOCK, COMBINE, costly

_FOLDS = COMBINE | {  # of two zeros the one that is there stays
    "max": "{0} = op_maximum<{t}>({0}, {1});",
    "min": "{0} = op_minimum<{t}>({0}, {1});",
}


def scatter(nest: Nest, nests: NestPrinter, lines: Lines, parallel: bool) -> None:
    """Loops over the whole nest. Points that differ on an axis which the index adds as it is never
    meet: threads share such axes, and the last one runs in vectors if it is one."""
    axes, threads = nest.axes, 0
    while parallel and threads < len(axes) - 1 and _is_disjoint(nest, axes[threads]):
        threads += 1
    divided = parallel and not threads and bool(axes) and _is_disjoint(nest, axes[-1])
    if divided:
        lines.open("if (threads > 1)")
        _parallel(nest, lines)
        _open_part(lines, axes[-1])
        _loops(nest, axes, nests, lines, ("low", "high"))
        lines.close(len(axes) + 2)
        lines.open("else")  # vectors of a known length
    elif threads:
        _parallel(nest, lines, f" collapse({threads})" if threads > 1 else "")
    _loops(nest, axes, nests, lines)
    lines.close(len(axes) + divided)


def _parallel(nest: Nest, lines: Lines, collapse: str = "") -> None:
    clause = " reduction(|:bad)" if has_indirect(nest) else ""
    lines.add(
        "#pragma omp parallel for num_threads(threads) if(parallel : threads > 1)"
        f" schedule(static){collapse}{clause}"
    )


def _is_disjoint(nest: Nest, axis: Axis) -> bool:
    return all(coefficient(store.index, axis) != 0 for store in nest.stores)


def _is_spread(nest: Nest, last: Axis) -> bool:
    """Whether neighbours on the last axis are stored at positions of their own: a scatter of
    vectors takes longer than their elements do."""
    memo = dict[Value, frozenset[Axis]]()
    found = (atom for store in nest.stores for atom in atoms(store.index))
    return any(isinstance(a, Indirect) and last in axes_of(a.value, memo) for a in found)


class _ScatterPrinter(ExpressionPrinter):
    """Of a loop without vectors: a branch that is never taken costs less than a choice."""

    def __init__(self, printer: ExpressionPrinter) -> None:
        super().__init__(printer.lines, printer.local, printer.names, printer.divisions)

    def refused(self, outside: str, mask: str | None) -> str:
        test = outside if mask is None else f"{mask} && {outside}"
        return f"if (__builtin_expect({test}, 0)) {{ bad = 1; continue; }}"


def _open_part(lines: Lines, last: Axis) -> None:
    """Each thread runs through everything for its own part of the last axis."""
    lines.open("for (int64_t part = 0; part < threads; ++part)")
    lines.add(f"const int64_t low = {last.size} * part / threads;")
    lines.add(f"const int64_t high = {last.size} * (part + 1) / threads;")


def _loops(
    nest: Nest,
    axes: Sequence[Axis],
    nests: NestPrinter,
    lines: Lines,
    limits: tuple[str, str] | None = None,
) -> None:
    """limits: of the last axis, if they are not its own."""
    for axis in axes[:-1]:
        lines.open(loop(axis))
    if axes:
        last = axes[-1]
        spread = _is_disjoint(nest, last) and _is_spread(nest, last)
        if _is_disjoint(nest, last) and not spread:
            nests.simd(nest)
        low, high = limits or ("0", f"{last.size}")
        if (spread or not _is_disjoint(nest, last)) and _is_costly(nest):
            _in_blocks(nest, nests, lines, last, (low, high))
            return
        lines.open(f"for (int64_t {last.text} = {low}; {last.text} < {high}; ++{last.text})")
    printer = nests.expressions()
    if axes and spread:
        printer = _ScatterPrinter(printer)
    for store in nest.stores:
        _store(store, printer, lines)


def _is_costly(nest: Nest) -> bool:
    """Whether it takes long to compute what is stored, which reads nothing that is."""
    once = len(nest.stores) == 1 and not nest.reads & nest.writes
    return once and costly(nest.stores[0].value)


def _in_blocks(
    nest: Nest, nests: NestPrinter, lines: Lines, last: Axis, limits: tuple[str, str]
) -> None:
    """What is stored is computed by vector loops, a block at a time. Leaves one loop open."""
    (store,), (low, high) = nest.stores, limits
    lines.open(f"for (int64_t b = {low}; b < {high}; b += {BLOCK})")
    lines.add(f"const int64_t e = b + {BLOCK} < {high} ? b + {BLOCK} : {high};")
    kind, place = element_type(store.buffer), f"block[{last.text} - b]"
    lines.add(f"{kind} block[{BLOCK}];")
    head = f"for (int64_t {last.text} = b; {last.text} < e; ++{last.text})"
    nests.simd(nest)
    lines.open(head)
    lines.add(f"{place} = {nests.expressions()(store.value)};")
    lines.close()
    lines.open(head)
    printer = _ScatterPrinter(nests.expressions())
    printer.names[store.value] = f"({place} != 0)" if store.buffer.dtype == torch.bool else place
    _store(store, printer, lines)
    lines.close()


def _store(store: Store, printer: ExpressionPrinter, lines: Lines) -> None:
    value = printer(store.value)
    place = f"{store.buffer.name}[{printer.index(store.index)}]"
    if store.combine is None:
        lines.add(f"{place} = {value};")
    else:
        lines.add(_FOLDS[store.combine].format(place, value, t=TYPES[store.buffer.dtype]))
