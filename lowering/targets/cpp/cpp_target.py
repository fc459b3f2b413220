"""The C++ target: one function a kernel, all kernels of a graph in one shared library.

    extern "C" int64_t kernel(void **p, int64_t threads)

`p` holds a pointer for each buffer in the order of `Kernel.buffers`, then a number for each size
variable. Returns nonzero if an indirect load was out of range.
"""

import dataclasses
from collections.abc import Callable, Container, Iterable, Sequence
from functools import cache
from math import prod
from pathlib import Path
from typing import Any

import torch

from ...loops.axes import all_indices
from ...loops.batches import global_buffers, length_of, like
from ...loops.divisions import without_divisions
from ...loops.fuse_passes import at_once
from ...loops.ir import (
    RUNNING,
    Batch,
    Buffer,
    Group,
    Load,
    Nest,
    Op,
    Reduced,
    Store,
    accesses,
    group_variables,
    part_height,
    scatters,
    store_values,
)
from ...loops.polynomials import Var, hint, is_known
from ...loops.short_axes import runs_across, without_short_axes
from ...loops.sizes import Axis, Index
from ...loops.vector_axis import finishes_short_rows, prefers_tile
from .cpp_expr import Lines, Picked, has_indirect, loop, slow_divisions
from .cpp_masked import has_masked_end
from .cpp_nest import TILE, NestPrinter
from .cpp_ops import (
    BINARY_LIBRARY,
    FMOD_USERS,
    HIDDEN_ZERO,
    TYPES,
    division,
    element_type,
    extremum_reductions,
    library_calls,
)
from .cpp_parts import PartPrinter
from .cpp_positions import tabulated, with_positions
from .cpp_rows import Ahead, kept_across, kept_rows
from .cpp_scan import scan
from .cpp_scatter import scatter
from .cpp_tiles import (
    RowTilePrinter,
    TileBody,
    TilePrinter,
    find_row_tiles,
    find_tiles,
    with_short_rows,
)

PART = 256  # points of an axis that are done at a time, in cache
SHORT_RUN = 64  # turns of a vector loop beside which it takes long to compute where it starts
PARALLEL_WORK = 1 << 15  # values computed, below which threads cost more than they bring


@dataclasses.dataclass(frozen=True)
class CppKernel:
    """A printed kernel. big: worth more than one thread."""

    name: str
    source: str
    buffers: tuple[Buffer, ...]
    big: bool


def print_kernel(group: Group, may_meet: Container[Buffer] = ()) -> CppKernel:
    """may_meet: buffers that may lie where others of the kernel do."""
    whole = with_positions(without_divisions(group))
    simple = with_short_rows(whole) or without_short_axes(whole)
    if len(simple.space) < len(whole.space):  # vectors run along another axis
        simple = without_divisions(simple)
    return GroupPrinter(simple, group_variables(group), may_meet).print()


def printed(loops: Group | Batch, may_meet: Container[Buffer] = ()) -> CppKernel:
    return print_batch(loops) if isinstance(loops, Batch) else print_kernel(loops, may_meet)


def print_batch(batch: Batch) -> CppKernel:
    """One function for all groups, called for each with its pointers and its length."""
    template = like(batch.groups[0])
    body = print_kernel(Group(f"{batch.name}_one", template.space, template.nests))
    names = {buffer.name: place for place, buffer in enumerate(_named(template))}
    order = [names[buffer.name] for buffer in body.buffers]
    own = [[buffers[place] for place in order] for buffers in global_buffers(batch.groups)]
    lengths = [length_of(group) or 1 for group in batch.groups]
    count, width = len(own), len(order)
    lines = Lines()
    for origin in dict.fromkeys(o for nest in batch.nests for o in nest.origins):
        lines.add(f"// {origin.replace(chr(92), '/')}")
    lines.add(body.source.replace('extern "C" int64_t', "static int64_t", 1))
    lines.open(f'extern "C" int64_t {batch.name}(void **p, int64_t threads)')
    lines.add(f"static const int64_t lengths[] = {{{', '.join(map(str, lengths))}}};")
    lines.add("int64_t bad = 0;")
    lines.open(f"for (int64_t k = 0; k < {count}; ++k)")
    variables = len(group_variables(template))
    lines.add(f"void *own[{width + variables}];")
    lines.add(f"for (int64_t i = 0; i < {width}; ++i) own[i] = p[k * {width} + i];")
    flat = length_of(batch.groups[0]) is not None
    for place in range(variables):
        number = "(void *)lengths[k]" if flat else f"p[{count * width + place}]"
        lines.add(f"own[{width + place}] = {number};")
    enough = f"lengths[k] >= {PARALLEL_WORK // 8} ? threads : 1" if flat else "threads"
    lines.add(f"bad |= {batch.name}_one(own, {enough});")
    lines.close()
    lines.add("return bad;")
    lines.close()
    buffers = tuple(buffer for buffers in own for buffer in buffers)
    big = body.big and (not flat or max(lengths) >= PARALLEL_WORK // 8)
    return CppKernel(batch.name, "\n".join(lines.text), buffers, big)


def _named(template: Group) -> tuple[Buffer, ...]:
    return global_buffers((template,))[0]


def library_source(
    kernels: Iterable[CppKernel], groups: Sequence[Group], vector_math: frozenset[str]
) -> str:
    """The source of one library."""
    texts = [kernel.source for kernel in kernels]
    parts = [
        _template(f"{name}.h")
        for name, words in _TEMPLATES.items()
        if any(word in text for text in texts for word in words)
    ]
    parts = [_template("prelude.h"), *parts, *_declarations(groups, vector_math)]
    return "\n\n".join([*parts, *texts]) + "\n"


def common_header() -> str:
    """What sources of kernels may need that do not say which parts they use."""
    names = ("prelude", *_TEMPLATES, "fmod")
    return "#pragma once\n\n" + "\n\n".join(_template(f"{name}.h") for name in names) + "\n"


def own_declarations(groups: Sequence[Group], vector_math: frozenset[str]) -> list[str]:
    """What such a source has to declare itself."""
    shared = _template("fmod.h")
    return [text for text in _declarations(groups, vector_math) if text != shared]


_TEMPLATES = {
    "rows": ("op_row_", "Kept<"),
    "tiles": ("op_transpose",),
    "lgamma": ("op_lgamma(",),
    "halves": ("row_from_", "row_to_", "row_round_"),
}


@cache
def _template(name: str) -> str:
    return (Path(__file__).parent / "templates" / name).read_text()


def _declarations(groups: Sequence[Group], vector_math: frozenset[str]) -> list[str]:
    values = [value for group in groups for nest in group.nests for value in store_values(nest)]
    ops = [value for value in values if isinstance(value, Op)]
    names = {library_calls(v.name, v.args[0].dtype): v for v in ops}
    lines = [declare(name, vector_math) for name in sorted(name for name in names if name)]
    divided = {
        v.args[0].dtype for v in ops if v.name in FMOD_USERS and v.args[0].dtype.is_floating_point
    }
    if divided:
        lines.append(_template("fmod.h"))
        lines.extend(division(dtype) for dtype in sorted(divided, key=str))
    extrema = {v.value.dtype for v in values if isinstance(v, Reduced) and v.kind in ("max", "min")}
    lines.extend(extremum_reductions(TYPES[dtype], dtype) for dtype in sorted(extrema, key=str))
    return lines


def declare(name: str, vector_math: frozenset[str]) -> str:
    kind = "float" if name.endswith("f") and name != "erf" else "double"
    stem = name.removesuffix("f") if kind == "float" else name
    parameters = f"{kind}, {kind}" if stem in (*BINARY_LIBRARY, "fmod") else kind
    vector = '__attribute__((simd("notinbranch"), const, nothrow)) ' if name in vector_math else ""
    return f'extern "C" {vector}{kind} {name}({parameters}) noexcept;'


def work(nest: Nest) -> int:
    """Values computed, in the recorded call."""
    return hint(prod(nest.space) * prod(nest.inner)) * (1 + sum(1 for _ in store_values(nest)) // 4)


class GroupPrinter:
    def __init__(
        self, group: Group, variables: tuple[Var, ...], may_meet: Container[Buffer] = ()
    ) -> None:
        self.group, self.may_alias = group, may_meet
        self.variables = variables
        self.lines = Lines()
        self.rows = kept_rows(group.nests)
        self.nests = NestPrinter(self.lines, self.rows)
        touched = [x.buffer for nest in group.nests for x in accesses(nest)]
        self.buffers = tuple(b for b in dict.fromkeys(touched) if b.scope == "global")
        self.locals = [b for b in dict.fromkeys(touched) if b.scope == "local"]
        self.written = {store.buffer for nest in group.nests for store in nest.stores}
        self.big = sum(work(nest) for nest in group.nests) >= PARALLEL_WORK

    def print(self) -> CppKernel:
        lines = self.lines
        for origin in dict.fromkeys(o for nest in self.group.nests for o in nest.origins):
            lines.add(f"// {origin.replace(chr(92), '/')}")
        lines.open(f'extern "C" int64_t {self.group.name}(void **p, int64_t threads)')
        for number, buffer in enumerate(self.buffers):
            constness = "" if buffer in self.written else "const "
            kind = constness + element_type(buffer)
            alone = "" if buffer in self.may_alias else "__restrict__ "
            lines.add(f"{kind} *{alone}{buffer.name} = ({kind} *)p[{number}];")
        for number, var in enumerate(self.variables, len(self.buffers)):
            lines.add(f"const int64_t {var.name} = (int64_t)p[{number}];")
        lines.add("int64_t bad = 0;")
        place = len(lines.text)
        self._body()
        if any(HIDDEN_ZERO in line for line in lines.text[place:]):
            lines.text.insert(place, f"  const int32_t {HIDDEN_ZERO} = known_at_run_time;")
        lines.add("return bad;")
        lines.close()
        return CppKernel(self.group.name, "\n".join(lines.text), self.buffers, self.big)

    def _body(self) -> None:
        if 0 in self.group.space:
            return
        first = self.group.nests[0]
        if scatters(first):  # such a nest is a group by itself
            run = scan if first.stores[0].combine in RUNNING else scatter
            run(first, self.nests, self.lines, self.big)
        elif not self.group.space:
            self._point()
        elif all(not nest.inner and not nest.is_reduction for nest in self.group.nests):
            self._flat()
        elif part_height(self.group.nests) is not None:  # parts of rows begin as zeros
            self._rows()
        elif prefers_tile(self.group):
            self.rows = self.nests.rows = kept_across(self.group.nests, TILE)
            self._tiles()
        elif (tiles := find_row_tiles(self.group)) is not None:
            self._tiles(turned=RowTilePrinter(self.lines, tiles))
        elif self._finishes_in_vectors():
            self._tiles(row_by_row=True)
        else:
            self._rows()

    def _parallel(self, loops: int, simd: bool = False) -> None:
        """The pragma before `loops` nested loops, which may be none: then only the vector loop
        follows."""
        found = any(has_indirect(nest) for nest in self.group.nests)
        clauses = (f" collapse({loops})" if loops > 1 else "") + (
            " reduction(|:bad)" if found else ""
        )
        if self.big and loops:
            words = "parallel for simd" if simd else "parallel for"
            self.lines.add(
                f"#pragma omp {words} num_threads(threads) if(parallel : threads > 1)"
                f" schedule(static){clauses}"
            )
        elif simd:
            self.lines.add(f"#pragma omp simd{clauses}")

    def _declare_locals(self, suffix: str = "") -> None:
        for buffer in self.locals:
            self.lines.add(f"{TYPES[buffer.dtype]} {buffer.name}{suffix};")

    def _declare_rows(self) -> None:
        for axes, kept in self.rows.items():
            for value, array in kept.items():
                kind, size = TYPES[value.dtype], axes[-1].size
                if is_known(size):
                    self.lines.add(f"{kind} {array}[WHOLE_VECTORS({size})];")
                else:
                    self.lines.add(f"Kept<{kind}> {array}_kept({size});")
                    self.lines.add(f"{kind} *__restrict__ {array} = {array}_kept.data;")

    def _point(self) -> None:
        self._declare_locals()
        self._declare_rows()
        for nest in self.group.nests:
            if len(self.group.nests) > 1:
                self.lines.open("")
            self.nests.at_point(nest)
            if len(self.group.nests) > 1:
                self.lines.close()

    def _flat(self) -> None:
        """Pointwise only: one vector loop over the last axis."""
        axes = self.group.nests[0].axes
        tiles = find_tiles(self.group)
        if tiles is not None:
            self._blocks(TilePrinter(self.lines, tiles), axes)
            return
        across = runs_across(self.group)
        vectors = axes[-2] if across else axes[-1]
        self.nests.hide_steps(self.group.nests, vectors)
        short = not across and hint(vectors.size) <= SHORT_RUN
        self._tabulate(*axes[-2:] if short else (vectors,))
        if across:
            self._across(axes)
            return
        if self._converts_in_turn():
            self._in_turn(axes)
            return
        if len(axes) > 1:
            self._parallel(len(axes) - 1)
            for axis in axes[:-1]:
                self.lines.open(loop(axis))
            self.nests.divide(self.group.nests, axes[:-1])
            self.nests.simd(*self.group.nests)
        elif self.big and self._calls_library():
            self._same_for_all_threads(axes[-1])
            return
        else:
            self._parallel(1, simd=True)
        self.lines.open(loop(axes[-1]))
        self._point()
        self.lines.close(len(axes))

    def _tabulate(self, *axes: Axis) -> None:
        names = dict[tuple[int, ...], str]()
        for axis in axes:
            for index, (places, rest) in tabulated(self.group, axis).items():
                name = names.setdefault(tuple(places), f"places{len(names)}")
                place = f"{name}[{axis.text}]"
                self.nests.tables[index] = Picked(place, rest, axis is axes[-1])
        for values, name in names.items():
            text = ", ".join(map(str, values))
            self.lines.add(f"static const int32_t {name}[{len(values)}] = {{{text}}};")

    def _calls_library(self) -> bool:
        ops = (v for nest in self.group.nests for v in store_values(nest) if isinstance(v, Op))
        return any(library_calls(value.name, value.args[0].dtype) for value in ops)

    def _same_for_all_threads(self, axis: Axis) -> None:
        """Pointwise, in parts that no thread cuts: what is left behind vectors is computed by other
        functions of the library, whose last bits differ."""
        self._parallel(1)
        self._open_part(axis)
        self._part_loop(axis, self.group.nests)
        self._point()
        self.lines.close(2)

    def _across(self, axes: tuple[Axis, ...]) -> None:
        """Pointwise, vectors along the axis before the last: parts of it in the cache."""
        *outer, along, short = axes
        self._parallel(len(axes) - 1)
        for axis in outer:
            self.lines.open(loop(axis))
        self._open_part(along)
        self.lines.open(loop(short))
        self.nests.divide(self.group.nests, {*axes} - {along})
        self._part_loop(along, self.group.nests)
        self._point()
        self.lines.close(len(axes) + 1)

    def _converts_in_turn(self) -> bool:
        """Whether the nests are loops of their own, which `cpp_halves` can take apart, or which are
        vectors to their end."""
        several = len(self.group.nests) > 1 and not self.locals
        halves = any(buffer.dtype == torch.float16 for buffer in self.buffers)
        return several and (halves or has_masked_end(self.group.space[-1]))

    def _in_turn(self, axes: tuple[Axis, ...]) -> None:
        """Pointwise, nest after nest for each part of the last axis."""
        short = has_masked_end(axes[-1].size)
        self._parallel(len(axes) - short)
        for axis in axes[:-1]:
            self.lines.open(loop(axis))
        if not short:
            self._open_part(axes[-1])
        self.nests.divide(self.group.nests, axes[:-1])
        halves = any(buffer.dtype == torch.float16 for buffer in self.buffers)
        for nest in self.group.nests if halves else at_once(self.group.nests):
            if short:
                self.nests.simd(nest)
                self.lines.open(loop(axes[-1]))
            else:
                self._part_loop(axes[-1], (nest,))
            self.nests.at_point(nest)
            self.lines.close()
        self.lines.close(len(axes) - short)

    def _open_part(self, axis: Axis) -> None:
        size = axis.size
        self.lines.open(f"for (int64_t from = 0; from < {size}; from += {PART})")
        self.lines.add(f"const int64_t to = from + {PART} < {size} ? from + {PART} : {size};")

    def _part_loop(self, axis: Axis, nests: Sequence[Nest]) -> None:
        self.nests.simd(*nests)
        self.lines.open(f"for (int64_t {axis.text} = from; {axis.text} < to; ++{axis.text})")

    def _blocks(self, printer: TilePrinter, axes: tuple[Axis, ...]) -> None:
        """Pointwise, with accesses across the last axis."""
        tiles, nests = printer.tiles, self.nests
        self._parallel(len(axes))
        for axis in axes:
            if axis in (tiles.across, tiles.along):
                printer.open(axis)
            else:
                self.lines.open(loop(axis))
        nests.divide(self.group.nests, set(axes) - {tiles.across, tiles.along})
        self._take_from_tiles(printer.element, tiles.loads, tiles.stores)
        index, group = nests.expressions().index, self.group.nests
        printer.print(TileBody(index, lambda: nests.simd(*group), self._point))
        self.lines.close(len(axes))

    def _rows(self) -> None:
        axes = self.group.nests[0].axes[: len(self.group.space)]
        height = part_height(self.group.nests)
        if height is not None:
            self._parallel(1)
            PartPrinter(self.nests, self.group.nests).print(axes[0], height, self._row)
            return
        self._parallel(len(axes))
        for axis in axes:
            self.lines.open(loop(axis))
        self._row()
        self.lines.close(len(axes))

    def _row(self) -> None:
        self.nests.divide(self.group.nests, self.group.nests[0].axes[: len(self.group.space)])
        if self.big:
            self.nests.ahead = Ahead(self.group.nests)
        self._point()

    def _finishes_in_vectors(self) -> bool:
        axis = self.group.nests[0].axes[len(self.group.space) - 1]
        indices = (index for nest in self.group.nests for index in all_indices(nest))
        short = finishes_short_rows(self.group) and not any(self.rows.values())
        return short and not slow_divisions(indices, {axis})

    def _tiles(self, row_by_row: bool = False, turned: RowTilePrinter | None = None) -> None:
        axes = self.group.nests[0].axes[: len(self.group.space)]
        self._parallel(len(axes))
        for axis in axes[:-1]:
            self.lines.open(loop(axis))
        self.nests.divide(self.group.nests, axes[:-1])
        size = axes[-1].size
        self.lines.open(f"for (int64_t base = 0; base < {size}; base += {TILE})")
        whole = is_known(size) and size % TILE == 0
        left = TILE if whole else f"base + {TILE} < {size} ? {TILE} : {size} - base"
        self.lines.add(f"const int64_t width = {left};")
        self.nests.width = str(TILE) if whole else "width"
        self._declare_locals(f"[{TILE}]")
        index = self.nests.expressions().index
        self.nests.tiled = not row_by_row
        if self.nests.tiled:
            self._declare_tiled_rows()
        if turned is not None:
            self._turn_rows(turned, index)
        for nest in self.group.nests:
            self.lines.open("")
            self.nests.at_tile(nest, row_by_row)
            self.lines.close()
        if turned is not None:
            turned.turn_out(index)
        self.lines.close(len(axes))

    def _declare_tiled_rows(self) -> None:
        for axes, kept in self.rows.items():
            for value, array in kept.items():
                self.lines.add(f"{TYPES[value.dtype]} {array}[{axes[-1].size * TILE}];")

    def _turn_rows(self, turned: RowTilePrinter, index: Callable[[Index], str]) -> None:
        turned.declare()
        turned.turn_in(index)
        tiles = turned.tiles
        self._take_from_tiles(turned.element, (*tiles.loads, *tiles.stored), tiles.stores)

    def _take_from_tiles(
        self, element: Callable[[Any], str], loads: Iterable[Load], stores: Iterable[Store]
    ) -> None:
        self.nests.elements = {
            load: f"({element(load)} != 0)" if load.dtype == torch.bool else element(load)
            for load in loads
        }
        self.nests.targets = {store: element(store) for store in stores}
