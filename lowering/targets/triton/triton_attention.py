"""Attention as Triton kernels, forward and backward: the online softmax of FlashAttention
(https://arxiv.org/abs/2307.08691) with functions of the user's in it, over the blocks of scores
that FlexAttention's block mask lists (https://arxiv.org/abs/2412.05496)."""

from __future__ import annotations

import dataclasses
import hashlib
import math
import re
from collections.abc import Mapping, Sequence
from string import Template

import torch

from ....runtime.gpu.triton_kernels import TritonKernel
from ...loops.axes import axes_of
from ...loops.ir import Buffer, Load, Op, Value, walk
from ...loops.kernel_graph import Ref
from ...loops.ops import OPS
from ...loops.polynomials import Size, Var, hint, is_known
from ...loops.sizes import Axis
from ...lowerings.value_builders import HALVES
from .triton_ops import POINTERS
from .triton_target import with_names
from .triton_tile import INT32, Dim, Tile, pow2
from .triton_values import ValuePrinter

LOG2E = math.log2(math.e)
LEAST = 16  # points of a side of a product
MOST_HEAD = 256  # elements of a row
GIVEN = Buffer("given", torch.float32, 1, "local")  # the score before the user's function
CHANGED = Buffer("changed", torch.float32, 1, "local")  # the gradient of the score after it
Blocks = tuple[int, int, int, int]  # rows, columns, warps, stages


@dataclasses.dataclass(frozen=True)
class AttentionSpec:
    """What the kernels compute: for each place of `axes` (batch, head, row, column), the user's
    `score`, of `GIVEN`, and `mask`; None for those that change nothing. `gradient`: of the score
    as it is given, of `CHANGED`. `tensors`: what the kernels take and make, by the names that the
    templates below have for it; `made`: of these, what they make. `block`: rows and columns of a
    block of the mask; `precision`: of products of float32, as `tl.dot` names it."""

    tensors: Mapping[str, Ref]
    axes: tuple[Axis, ...]
    block: tuple[int, int]
    scale: float
    precision: str
    score: Value | None
    mask: Value | None
    gradient: Value | None
    made: tuple[str, ...]

    def values(self) -> list[Value]:
        return [each for each in (self.score, self.mask, self.gradient) if each is not None]

    def is_costly(self) -> bool:
        """Whether a place takes a load of its own, or a function of its score."""
        both = {*self.axes[2:]}
        for value in walk(*self.values()):
            own = both <= axes_of(value) or GIVEN in {
                leaf.buffer for leaf in value.leaves if isinstance(leaf, Load)
            }
            if isinstance(value, Op) and own and OPS[value.name].cost >= OPS["exp"].cost:
                return True
            if isinstance(value, Load) and both <= axes_of(value):
                return True
        return False

    def given(self) -> tuple[Buffer, ...]:
        """What the kernels take, each once."""
        loads = [leaf.buffer for v in self.values() for leaf in v.leaves if isinstance(leaf, Load)]
        own = [ref.buffer for name, ref in self.tensors.items() if name not in self.made]
        return tuple(dict.fromkeys(b for b in (*own, *loads) if b.scope == "global"))

    def buffers(self) -> tuple[Buffer, ...]:
        """What they take, then what they make."""
        return (*self.given(), *(self.tensors[name].buffer for name in self.made))


# (rows, columns, warps, stages) by bytes of an element and the longest row, the likeliest best
# first; the others need less memory on the chip. Those of 16-bit heads of 64 and 128 elements are
# the fastest of some that were timed on an H200, of causal attention over 8,192 places.
_FORWARD_BLOCKS: dict[tuple[int, int], tuple[Blocks, ...]] = {
    (2, 64): ((128, 128, 4, 3), (64, 128, 4, 3), (128, 64, 4, 3), (64, 64, 4, 2)),
    (2, 128): ((128, 128, 8, 3), (128, 128, 8, 2), (128, 64, 8, 3), (64, 64, 4, 2)),
    (2, 256): ((128, 64, 8, 2), (64, 32, 4, 2), (64, 32, 4, 1)),
    (4, 64): ((128, 32, 4, 3), (64, 32, 4, 2), (32, 32, 4, 1)),
    (4, 128): ((64, 32, 4, 2), (32, 32, 4, 2), (32, 16, 4, 1)),
    (4, 256): ((32, 32, 4, 2), (32, 16, 4, 1), (16, 16, 4, 1)),
}
_QUERY_BLOCKS: dict[tuple[int, int], tuple[Blocks, ...]] = {
    (2, 64): ((64, 64, 4, 3), (64, 64, 4, 2)),
    (2, 128): ((64, 64, 4, 2), (64, 32, 4, 1)),
    (2, 256): ((64, 64, 8, 1), (64, 32, 4, 1), (32, 32, 4, 1)),
    (4, 64): ((64, 32, 4, 2), (32, 32, 4, 1), (32, 16, 4, 1)),
    (4, 128): ((32, 32, 4, 1), (32, 16, 4, 1), (16, 16, 4, 1)),
    (4, 256): ((32, 16, 4, 1), (16, 16, 4, 1)),
}
_KEYS_BLOCKS: dict[tuple[int, int], tuple[Blocks, ...]] = {
    (2, 64): ((128, 64, 4, 2), (64, 64, 4, 3), (64, 64, 4, 2)),
    (2, 128): ((64, 64, 4, 2), (32, 64, 4, 1)),
    (2, 256): ((64, 64, 8, 1), (32, 64, 4, 1), (32, 32, 4, 1)),
    (4, 64): ((32, 64, 4, 2), (32, 32, 4, 1), (16, 32, 4, 1)),
    (4, 128): ((32, 32, 4, 1), (16, 32, 4, 1), (16, 16, 4, 1)),
    (4, 256): ((16, 32, 4, 1), (16, 16, 4, 1)),
}
# Places of a thread, where the user's functions are costly, forward and backward: more are not held
# in registers. With a soft cap the forward took 1.66 ms for 1.87, the gradient of the keys
# 2.29 for 2.85.
_MOST_PLACES, _MOST_GRADIENTS = 64, 32
_SUMS_BLOCKS = (32, LEAST, 4, 1)


def forward(what: AttentionSpec, variables: Sequence[Var]) -> tuple[tuple[TritonKernel, ...], ...]:
    """Of each kernel of the forward, those that may be taken, the likeliest best first."""
    blocks = _fitting(_FORWARD_BLOCKS, what)
    return (tuple(_Kernel(what, variables, each).forward() for each in blocks),)


def backward(what: AttentionSpec, variables: Sequence[Var]) -> tuple[tuple[TritonKernel, ...], ...]:
    """Of each kernel of the backward, in order, those that may be taken."""
    return (
        (_Kernel(what, variables, _SUMS_BLOCKS).row_sums(),),
        tuple(_Kernel(what, variables, b).of_query() for b in _fitting(_QUERY_BLOCKS, what)),
        tuple(_Kernel(what, variables, b).of_keys() for b in _fitting(_KEYS_BLOCKS, what)),
    )


def _fitting(
    table: Mapping[tuple[int, int], tuple[Blocks, ...]], what: AttentionSpec
) -> list[Blocks]:
    """Tiles that divide the blocks of the mask, and are no larger than what there is."""
    longest = max(hint(what.tensors[name].shape[3]) for name in "kv")
    length = next(length for length in (64, 128, MOST_HEAD) if longest <= length)
    found = table[what.tensors["q"].dtype.itemsize, length]
    if what.is_costly():
        most = _MOST_PLACES if what.gradient is None else _MOST_GRADIENTS
        fewer = tuple(each for each in found if each[0] * each[1] <= most * 32 * each[2])
        found = fewer or found
    sides = [(axis.size, block) for axis, block in zip(what.axes[2:], what.block, strict=True)]
    return list(
        dict.fromkeys(
            (_side(m, *sides[0]), _side(n, *sides[1]), warps, stages)
            for m, n, warps, stages in found
        )
    )


def _side(points: int, size: Size, block: int) -> int:
    least = max(pow2(size), LEAST) if is_known(size) else points
    return math.gcd(min(points, least), block)


class _Mods(ValuePrinter):
    """Statements for the user's functions, over a tile of scores whose sides stand in `rank`."""

    def __init__(self, tile: Tile, rank: list[str], fast: bool) -> None:
        super().__init__(tile)
        self.rank, self.fast = rank, fast

    def _check(self, *_: object) -> None:
        """A place that a mask hides may have any position: none is reported."""

    def statements(self, value: Value, name: str, given: str = "s") -> list[str]:
        """`name` becomes the value, of the score that `given` holds."""
        self.lines, self.locals = [], {GIVEN: given, CHANGED: "ds"}
        text, whole = self.value(value), frozenset(self.rank)
        if self.used(value) != whole:
            text = f"tl.broadcast_to({text}, {self._shape(whole)})"
        return [*self.lines, f"{name} = {text}"]

    def restart(self) -> None:
        """What one loop computed is not there in the next."""
        self.memo = {}


_AXIS = {"rows": 2, "cols": 2, "d": 3, "e": 3}


class _Kernel:
    """The text of one kernel. It is also what stands for the names in templates: `BM`, and
    `load_k_d_cols`, a tile of k with elements by columns."""

    def __init__(self, what: AttentionSpec, variables: Sequence[Var], blocks: Blocks) -> None:
        self.what, self.variables, self.blocks = what, variables, blocks
        names = zip(("batch", "head", "row", "col"), what.axes, (1, 1, *blocks[:2]), strict=True)
        self.dims = [Dim(*each) for each in names]
        sizes = [ref.buffer.size for ref in what.tensors.values()]
        self.wide = not all(is_known(size) and size <= INT32 for size in sizes)
        self.params: dict[str, str] = {}
        self.names = self._sizes()

    def _sizes(self) -> dict[str, str]:
        what, (batch, head, row, col) = self.what, self.dims
        key, value = what.tensors["k"].shape, what.tensors["v"].shape
        shared = key[0] != batch.axis.size
        rows, cols, _, stages = self.blocks
        factor = what.scale if what.score is None else 1.0
        group = hint(head.axis.size) // hint(key[1])
        return {
            "HEADS": f"({head.axis.size})",
            "ROWS": f"({row.axis.size})",
            "COLS": f"({col.axis.size})",
            "KV_HEADS": f"({key[1]})",
            "GROUP": str(group),
            "TURNS": f"({batch.axis.size}) * {group}" if shared else str(group),
            "BM": str(rows),
            "BN": str(cols),
            "D": str(max(pow2(key[3]), LEAST)),
            "E": str(max(pow2(value[3]), LEAST)),
            "STAGES": str(stages),
            "row_blocks": row.count,
            "col_blocks": col.count,
            "SCALE": repr(what.scale),
            "FACTOR": repr(factor * LOG2E),
            "LOG2E": repr(LOG2E),
            "PRECISION": f'input_precision="{what.precision}"',
            "wide": ".to(tl.int64)" * self.wide,
        }

    # ---- the kernels

    def forward(self) -> TritonKernel:
        self._begin("row", "col")
        loops = self._loop(_FORWARD_TURN, "kv") + self._loop(_FORWARD_TURN, "full_kv")
        stores = [
            line
            for name in _STORES
            if name in self.what.made
            for line in self._filled(_STORES[name])
        ]
        text = self._filled(_ROWS + _FORWARD, loops=loops, stores=stores)
        return self._made(text, self.dims[2].grid, self.what.tensors["q"])

    def of_query(self) -> TritonKernel:
        self._begin("row", "col")
        loops = self._loop(_QUERY_TURN, "kv") + self._loop(_QUERY_TURN, "full_kv")
        text = self._filled(_ROWS + _OF_QUERY, loops=loops)
        return self._made(text, self.dims[2].grid, self.what.tensors["q"])

    def of_keys(self) -> TritonKernel:
        self._begin("col", "row")
        loops = self._loop(_KEYS_TURN, "q") + self._loop(_KEYS_TURN, "full_q")
        text = self._filled(_OF_KEYS, loops=loops)
        return self._made(text, self.dims[3].grid, self.what.tensors["k"])

    def row_sums(self) -> TritonKernel:
        self._begin("row", "col")
        less = self._filled(_LESS) if "dlse" in self.what.tensors else []
        text = self._filled(_ROWS + _ROW_SUMS, less=less)
        return self._made(text, self.dims[2].grid, self.what.tensors["q"])

    def _begin(self, *rank: str) -> None:
        tile = Tile(tuple(self.dims), (), (), True, self.blocks[2], self.wide)
        self.mods = _Mods(tile, list(rank), self.what.tensors["q"].dtype in HALVES)

    # ---- loops over blocks of the mask

    def _loop(self, turn: str, kind: str) -> list[str]:
        """The turns over the blocks of one kind: those whose places the mask is asked of, or those
        that are seen as a whole."""
        if f"{kind}_num" not in self.what.tensors:
            return []
        over_rows, full = kind.endswith("q"), kind.startswith("full")
        side, other = (2, 3) if over_rows else (3, 2)
        dim, block = self.dims[side], self.what.block[side - 2]
        self.mods.restart()
        names = {
            "count": self._of_mask(f"{kind}_num", self.what.block[other - 2]),
            "indices": self._of_mask(f"{kind}_indices", self.what.block[other - 2]),
            "step": f"({self.what.tensors[f'{kind}_indices'].strides[3]})",
            "MULT": str(block // dim.block),
            "LIMIT": f"tl.maximum({dim.count}, 1)",
            "BLOCK": str(block),
            "POINTS": str(dim.block),
        }
        score, seen = self._score(full, over_rows or turn is _QUERY_TURN)
        gradient = self._gradient(full) if turn is not _FORWARD_TURN else []
        place = _ROW_PLACE if over_rows else _COL_PLACE
        body = self._filled(place + turn, score=[*score, *seen], gradient=gradient)
        return self._filled(_LOOP, names, body=body)

    def _of_mask(self, name: str, block: int) -> str:
        ref = self.what.tensors[name]
        sides = zip(("batch", "head", f"first // {block}"), ref.shape, ref.strides, strict=False)
        parts = [f"{text} * ({step})" for text, size, step in sides if size != 1]
        return " + ".join((self._pointer(name), *parts))

    def _score(self, full: bool, backward: bool) -> tuple[list[str], list[str]]:
        """The score as the user's function makes it, and what hides it."""
        what, lines, tests = self.what, list[str](), list[str]()
        if what.score is not None:
            lines = [f"s = s * {what.scale!r}", "raw = s"][: 1 + (what.gradient is not None)]
            lines += self.mods.statements(what.score, "s")
        if what.mask is not None and not full:
            lines += self.mods.statements(what.mask, "seen")
            tests = ["seen"]
        tests += ["col_in"] * (not self.dims[3].exact)
        tests += ["row_in"] * (backward and not self.dims[2].exact)
        hidden = f's = tl.where({" & ".join(tests)}, s, float("-inf"))'
        return lines, [hidden] * bool(tests)

    def _gradient(self, full: bool) -> list[str]:
        if self.what.gradient is None:
            return []
        lines = self.mods.statements(self.what.gradient, "ds", "raw")
        hides = self.what.mask is not None and not full
        return lines + ["ds = tl.where(seen, ds, 0.0)"] * hides

    # ---- what stands for the names of a template

    def __getitem__(self, name: str) -> str:
        if name in self.names:
            return self.names[name]
        kind, *parts = name.split("_")
        return str(getattr(self, f"_name_{kind}")(*parts))

    def _pointer(self, name: str) -> str:
        offset = self.what.tensors[name].offset
        text = self.params.setdefault(name, f"{name}_ptr")
        return text if offset == 0 else f"{text} + ({offset})"

    def _name_start(self, name: str) -> str:
        """Where the batch and head of the program begin."""
        ref, kv = self.what.tensors[name], "kv_" * (name in ("k", "v", "dk", "dv"))
        parts = [
            f"{kv}{side}.to(tl.int64) * ({step})"
            for side, size, step in zip(("batch", "head"), ref.shape, ref.strides, strict=False)
            if size != 1
        ]
        return " + ".join((self._pointer(name), *parts))

    def _name_at(self, name: str, *sides: str) -> str:
        """The pointers to a tile."""
        steps = self.what.tensors[name].strides
        parts = [
            f"{side}{place} * ({steps[_AXIS[side]]})"
            for side, place in zip(sides, _places(sides), strict=True)
        ]
        return " + ".join((f"{name}_at", *parts))

    def _name_load(self, name: str, *sides: str) -> str:
        mask = self._name_mask(*sides)
        return f"tl.load({self._name_at(name, *sides)}{mask}{', other=0.0' * bool(mask)})"

    def _name_mask(self, *sides: str) -> str:
        """What of a tile is there, as an argument; nothing for a whole one."""
        ends = {"rows": self.what.axes[2].size, "cols": self.what.axes[3].size}
        ends |= {side: self.what.tensors[name].shape[3] for side, name in (("d", "k"), ("e", "v"))}
        partial = {
            "rows": not self.dims[2].exact,
            "cols": not self.dims[3].exact,
            "d": ends["d"] != int(self.names["D"]),
            "e": ends["e"] != int(self.names["E"]),
        }
        tests = [
            f"({side}{place} < {ends[side]})"
            for side, place in zip(sides, _places(sides), strict=True)
            if partial[side]
        ]
        return f", mask={' & '.join(tests)}" if tests else ""

    def _filled(
        self, text: str, names: Mapping[str, str] | None = None, **blocks: list[str]
    ) -> list[str]:
        """The lines of a template; a name of `blocks`, alone in its line, stands for lines."""
        own, lines = names or {}, list[str]()
        for line in text.strip("\n").splitlines():
            alone = re.fullmatch(r"(\s*)\$(\w+)", line)
            if alone is not None and alone[2] in blocks:
                lines += [alone[1] + part for part in blocks[alone[2]]]
            else:
                lines.append(Template(line).substitute(_Names(own, self)))
        return [line for part in lines for line in part.splitlines()]

    def _made(self, lines: list[str], blocks: str, over: Ref) -> TritonKernel:
        """The kernel, named after its text. A program takes one of the blocks of one head of the
        tensor."""
        numbers = {var.name: f"n{k}" for k, var in enumerate(self.variables)}
        params = (*self.params.values(), *self.mods.params.values(), *numbers.values())
        body = with_names("\n".join(f"    {line}" for line in lines), numbers)
        text = f"({', '.join(params)}):\n{body}\n"
        name = f"attention_{hashlib.sha256(text.encode()).hexdigest()[:8]}"
        own = [self.what.tensors[each].buffer for each in self.params]
        buffers = [*own, *self.mods.params]
        places = {buffer: k for k, buffer in enumerate(self.what.buffers())}
        grid = with_names(f"{blocks} * ({over.shape[0]}) * ({over.shape[1]})", numbers)
        return TritonKernel(
            name=name,
            text=f"@triton.jit\ndef {name}{text}",
            arguments=tuple(places[buffer] for buffer in buffers),
            types=tuple(POINTERS[buffer.dtype] for buffer in buffers),
            sizes=tuple(max(hint(buffer.size), 1) for buffer in buffers),
            programs=0 if numbers else hint(over.shape[0]) * hint(over.shape[1]) * int(blocks),
            warps=self.blocks[2],
            numbers=tuple(var.hint for var in self.variables),
            grid=grid if numbers else "",
            wide=self.wide,
            contracts=True,
        )


class _Names(dict[str, str]):
    """What stands for names, and else what the kernel has for them."""

    def __init__(self, own: Mapping[str, str], kernel: _Kernel) -> None:
        super().__init__(own)
        self._kernel = kernel

    def __missing__(self, name: str) -> str:
        return self._kernel[name]


def _places(sides: Sequence[str]) -> tuple[str, ...]:
    return ("",) if len(sides) == 1 else ("[:, None]", "[None, :]")


_ROWS = """
m.after_earlier()
program = tl.program_id(0)$wide
head = program // $row_blocks % $HEADS
batch = program // ($row_blocks * $HEADS)
kv_head = head // $GROUP
kv_batch = batch
first = ($row_blocks - 1 - program % $row_blocks) * $BM
rows = first + tl.arange(0, $BM)
row = rows[:, None]
row_in = row < $ROWS
d = tl.arange(0, $D)
e = tl.arange(0, $E)
"""

_LOOP = """
count = tl.load($count)
for turn in tl.range(0, tl.minimum(count * $MULT, $LIMIT), num_stages=$STAGES):
    start = tl.load($indices + turn // $MULT * $step)$wide * $BLOCK + turn % $MULT * $POINTS
    $body
"""

_COL_PLACE = """
cols = start + tl.arange(0, $BN)
col = cols[None, :]
col_in = col < $COLS
"""

_ROW_PLACE = """
rows = start + tl.arange(0, $BM)
row = rows[None, :]
row_in = row < $ROWS
"""

_FORWARD = """
q_at = $start_q
k_at = $start_k
v_at = $start_v
q = $load_q_rows_d
total = tl.zeros([$BM], tl.float32)
most = tl.full([$BM], float("-inf"), tl.float32)
result = tl.zeros([$BM, $E], tl.float32)
$loops
empty = total == 0.0
result = result / tl.where(empty, 1.0, total)[:, None]
out_at = $start_out
tl.store($at_out_rows_e, result$mask_rows_e)
$stores
"""

_STORES = {
    "lse": """
lse_at = $start_lse
tl.store($at_lse_rows, tl.where(empty, float("-inf"), most + tl.log2(total))$mask_rows)
""",
    "most": """
most_at = $start_most
tl.store($at_most_rows, tl.where(total == total, most, total)$mask_rows)
""",
}

_FORWARD_TURN = """
k = $load_k_d_cols
s = tl.dot(q, k, $PRECISION)
$score
higher = tl.maximum(most, tl.max(s, 1) * $FACTOR)
least = tl.where(higher == float("-inf"), 0.0, higher)
p = tl.exp2(s * $FACTOR - least[:, None])
shrink = tl.exp2(most - least)
total = total * shrink + tl.sum(p, 1)
v = $load_v_cols_e
result = tl.dot(p.to(v.dtype), v, result * shrink[:, None], $PRECISION)
most = higher
"""

_ROW_SUMS = """
out_at = $start_out
dout_at = $start_dout
delta_at = $start_delta
out = $load_out_rows_e
dout = $load_dout_rows_e
delta = tl.sum(out.to(tl.float32) * dout.to(tl.float32), 1)
$less
tl.store($at_delta_rows, delta$mask_rows)
"""

_LESS = """
dlse_at = $start_dlse
delta -= $load_dlse_rows * $LOG2E
"""

_OF_QUERY = """
q_at = $start_q
k_at = $start_k
v_at = $start_v
dout_at = $start_dout
lse_at = $start_lse
delta_at = $start_delta
q = $load_q_rows_d
dout = $load_dout_rows_e
lse = $load_lse_rows
lse = tl.where(lse == float("-inf"), 0.0, lse)[:, None]
delta = $load_delta_rows
delta = delta[:, None]
dq = tl.zeros([$BM, $D], tl.float32)
$loops
dq_at = $start_dq
tl.store($at_dq_rows_d, dq * $SCALE$mask_rows_d)
"""

_QUERY_TURN = """
k = $load_k_d_cols
s = tl.dot(q, k, $PRECISION)
$score
p = tl.exp2(s * $FACTOR - lse)
v = $load_v_e_cols
ds = p * (tl.dot(dout, v, $PRECISION) - delta)
$gradient
dq = tl.dot(ds.to(k.dtype), tl.trans(k), dq, $PRECISION)
"""

_OF_KEYS = """
m.after_earlier()
program = tl.program_id(0)$wide
kv_head = program // $col_blocks % $KV_HEADS
kv_batch = program // ($col_blocks * $KV_HEADS)
first = program % $col_blocks * $BN
cols = first + tl.arange(0, $BN)
col = cols[:, None]
col_in = col < $COLS
d = tl.arange(0, $D)
e = tl.arange(0, $E)
k_at = $start_k
v_at = $start_v
k = $load_k_cols_d
v = $load_v_cols_e
dk = tl.zeros([$BN, $D], tl.float32)
dv = tl.zeros([$BN, $E], tl.float32)
for each in range(0, $TURNS):
    batch = kv_batch + each // $GROUP
    head = kv_head * $GROUP + each % $GROUP
    q_at = $start_q
    dout_at = $start_dout
    lse_at = $start_lse
    delta_at = $start_delta
    $loops
dk_at = $start_dk
tl.store($at_dk_cols_d, dk * $SCALE$mask_cols_d)
dv_at = $start_dv
tl.store($at_dv_cols_e, dv$mask_cols_e)
"""

_KEYS_TURN = """
q = $load_q_d_rows
lse = $load_lse_rows
lse = tl.where(lse == float("-inf"), 0.0, lse)[None, :]
s = tl.dot(k, q, $PRECISION)
$score
p = tl.exp2(s * $FACTOR - lse)
dout = $load_dout_rows_e
dv = tl.dot(p.to(dout.dtype), dout, dv, $PRECISION)
delta = $load_delta_rows
ds = p * (tl.dot(v, tl.trans(dout), $PRECISION) - delta[None, :])
$gradient
dk = tl.dot(ds.to(q.dtype), tl.trans(q), dk, $PRECISION)
"""
