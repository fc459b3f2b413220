"""How well the loads and stores of a printed Triton kernel lie in memory: 32-byte sectors that its
warps touch, over those that their bytes would fill.

The text itself is run, for a few of the kernel's programs, with NumPy arrays in place of tiles: the
index expressions and masks are those that Triton gets, the numbers that are loaded do not matter
(places that are loaded are scattered). A loop runs its first two turns and its last one.

A warp's elements follow Triton's layout for an access: its order is the tile's axes by how many
neighbours in memory are known to lie along each (`Coalesce` reads that off the same arithmetic:
blocks of a power of two), the last axis where none has two; each of 32 lanes then has as many
elements side by side as fill 16 bytes, if the tile has enough for all warps. The loads of one
buffer in one turn are taken together: what one brings into the cache, the next finds there, as in
the window of a pooling. An access with all lanes at one place counts as one sector. What is less
than 2% of a program's bytes is left out.

Not seen: how full the caches are between turns, and whether a load is one instruction or several.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import numpy
from dynfix.runtime.gpu.triton_kernels import TritonKernel

SECTOR, VECTOR, LANES = 32, 16, 32
SIZES = {"1": 1, "8": 1, "16": 2, "32": 4, "64": 8}
FELT = 50  # times less than the whole: it may be read as it likes
TURNS = 128  # of a loop that is unrolled, which run all


class _Pointer:
    def __init__(self, name: str, place: Any = 0) -> None:
        self.name, self.place = name, place

    def __add__(self, other: Any) -> _Pointer:
        return _Pointer(self.name, self.place + other)


class _Run:
    """One program of a kernel. found: (parameter, how often, whether it is stored and in which
    turn, shape) -> places, masks."""

    def __init__(self, kernel: TritonKernel) -> None:
        self.kernel, self.program, self.turn, self.times = kernel, 0, 0, 1.0
        self.types: dict[str, str] = {}
        self.found: dict[tuple[Any, ...], list[tuple[Any, Any]]] = {}

    def __call__(self, function: Any, program: int) -> None:
        self.program = program
        names = function.__code__.co_varnames[: function.__code__.co_argcount]
        self.types = dict(zip(names, self.kernel.types, strict=False))
        with numpy.errstate(all="ignore"):
            function(*map(_Pointer, self.types), *self.kernel.numbers)

    def touch(self, pointer: _Pointer, mask: Any, stores: bool) -> Any:
        place = numpy.asarray(pointer.place)
        given = numpy.asarray(True if mask is None else mask)
        place, given = numpy.broadcast_arrays(place, given)
        key = pointer.name, self.times, (stores, self.turn), place.shape
        self.found.setdefault(key, []).append((place, given))
        return place

    def load(self, pointer: _Pointer, mask: Any = None, other: Any = None, **_: Any) -> Any:
        place, kind = self.touch(pointer, mask, False), self.types[pointer.name]
        if kind == "*i1":
            return numpy.ones(place.shape, bool)
        if "fp" in kind or "bf" in kind:
            return numpy.zeros(place.shape)
        return place * 2654435761 % 97  # scattered

    def store(self, pointer: _Pointer, value: Any, mask: Any = None, **_: Any) -> None:
        pointer = _Pointer(pointer.name, pointer.place + numpy.zeros(numpy.shape(value), int))
        self.touch(pointer, mask, True)

    def turns(self, *ends: int, **_: Any) -> Iterator[Any]:
        every = range(*map(int, ends))
        chosen = every if len(every) <= 3 else (every[0], every[1], every[-1])
        outside, self.times = self.times, self.times * len(every) / max(len(chosen), 1)
        for turn in chosen:
            self.turn += 1
            yield turn
        self.turn += 1
        self.times = outside

    def unrolled(self, *ends: int) -> Iterator[int]:
        every = range(*map(int, ends))
        yield from every if len(every) <= TURNS else every[:2]


def _shaped(*values: Any, **_: Any) -> Any:
    """What any function of elements gives: something of that shape."""
    given = [value for value in values if not isinstance(value, _Pointer | str)]
    return numpy.zeros(numpy.broadcast_shapes(*map(numpy.shape, given)))


def _folded(x: Any, axis: int = 0, *_: Any, **__: Any) -> Any:
    x = numpy.asarray(x)
    return x.sum(axis) if x.dtype != bool else x.any(axis)


def _where(condition: Any, one: Any, two: Any) -> Any:
    return one if isinstance(one, _Pointer) else numpy.where(condition, one, two)


class _Functions(dict):
    """Functions by name, `rest` for those that are not known."""

    def __init__(self, rest: Any, **known: Any) -> None:
        super().__init__(known)
        self.rest = rest

    def __getattr__(self, name: str) -> Any:
        if name.startswith("reduce_"):
            return _folded
        return self.get(name, self.rest)


def _language(run: _Run) -> _Functions:
    def full(shape: Sequence[int], value: Any, *_: Any) -> Any:
        return numpy.full(tuple(shape), value)

    return _Functions(
        _shaped,
        program_id=lambda axis: numpy.int64(run.program),
        arange=numpy.arange,
        load=run.load,
        store=run.store,
        atomic_add=run.store,
        range=run.turns,
        static_range=run.unrolled,
        where=_where,
        dot=lambda a, b, total, **_: total,
        full=full,
        zeros=lambda shape, *_: full(shape, 0.0),
        broadcast_to=lambda x, shape: numpy.broadcast_to(x, shape),
        reshape=lambda x, shape: numpy.reshape(x, shape),
        max_contiguous=lambda x, _: x,
        minimum=numpy.minimum,
        maximum=numpy.maximum,
        abs=numpy.abs,
        cdiv=lambda a, b: -(-a // b),
        sum=_folded,
        max=_folded,
        min=_folded,
        cumsum=lambda x, axis: x,
        cumprod=lambda x, axis: x,
        device_assert=lambda *_: None,
        debug_barrier=lambda: None,
    )


def _helpers() -> _Functions:
    def pair(v: Any, i: Any, *_: Any) -> Any:
        return v, i

    def best(v: Any, i: Any, axis: int) -> Any:
        return v.max(axis), i.min(axis)

    def block(seed: Any, stream: Any, first: Any, count: int) -> Any:
        return numpy.zeros(count)

    return _Functions(
        _shaped,
        ext=_Functions(_shaped),
        after_earlier=lambda: None,
        arg_max_next=pair,
        arg_min_next=pair,
        exponentials_step=pair,
        exponentials_steps=pair,
        squares_step=pair,
        argmax=best,
        argmin=best,
        uniform_block=block,
        div_floor_int=lambda a, b: a // numpy.where(numpy.asarray(b) == 0, 1, b),
        remainder_int=lambda a, b: a % numpy.where(numpy.asarray(b) == 0, 1, b),
    )


@dataclasses.dataclass(frozen=True)
class Access:
    """A parameter of a kernel, as tiles of one shape. touched, needed: bytes, of all programs."""

    kernel: str
    parameter: str
    shape: tuple[int, ...]
    touched: float
    needed: float

    @property
    def ratio(self) -> float:
        return self.touched / max(self.needed, 1.0)


def printed_accesses(kernel: TritonKernel) -> list[Access]:
    run = _Run(kernel)
    text = re.sub(r"\.to\(tl\.\w+\)", "", kernel.text)
    space = {
        "triton": SimpleNamespace(jit=lambda function: function),
        "tl": _language(run),
        "m": _helpers(),
        "range": run.turns,
    }
    exec(text, space)
    last = max(kernel.programs - 1, 0)
    programs = sorted({0, 1, last // 2, last - 1, last} & set(range(last + 1)))
    for program in programs:
        run(space[kernel.name], program)
        run.turn += 1
    totals: dict[tuple[str, tuple[int, ...]], list[float]] = {}
    for (name, times, _, shape), group in run.found.items():
        size = SIZES[re.sub(r"\D", "", run.types[name])]
        order = _order([place for place, _ in group], shape)
        total = totals.setdefault((name, shape), [0.0, 0.0])
        for k, count in enumerate(_count(group, order, size, kernel.warps)):
            total[k] += count * SECTOR * times * kernel.programs / len(programs)
    return [Access(kernel.name, *key, *total) for key, total in totals.items()]


def worst(kernels: Sequence[TritonKernel]) -> float:
    """Of the accesses that move a part of the bytes that can be felt."""
    every = [access for kernel in kernels for access in printed_accesses(kernel)]
    all_of_it = sum(access.touched for access in every)
    return max((a.ratio for a in every if a.touched * FELT >= all_of_it), default=1.0)


def _order(places: Sequence[Any], shape: tuple[int, ...]) -> list[int]:
    """The tile's axes, the one along which lanes run last."""
    found = []
    for axis, size in enumerate(shape):
        found.append((min(_neighbours(place, axis) for place in places) if size > 1 else 0, axis))
    return [axis for _, axis in sorted(found)]


def _neighbours(places: Any, axis: int) -> int:
    """The largest power of two by which blocks along the axis lie side by side."""
    places = numpy.moveaxis(places, axis, -1)
    steps, count = places[..., 1:] - places[..., :-1] == 1, 1
    while count * 2 <= places.shape[-1]:
        inside = (numpy.arange(1, places.shape[-1]) % (count * 2)) != 0
        if not steps[..., inside].all():
            break
        count *= 2
    return count


def _count(group: Sequence[Any], order: list[int], size: int, warps: int) -> tuple[int, int]:
    places = [numpy.transpose(place, order).reshape(-1) for place, _ in group]
    masks = [numpy.transpose(mask, order).reshape(-1) for _, mask in group]
    own = max(1, min(VECTOR // size, places[0].size // (LANES * warps)))
    chunk = min(LANES * own, places[0].size)
    bytes_ = [
        numpy.where(mask, place * size, -1) for place, mask in zip(places, masks, strict=True)
    ]
    joined = numpy.concatenate([_chunks(each, chunk) for each in bytes_], axis=1)
    touched = _unique(numpy.where(joined < 0, -1, joined // SECTOR))
    wanted = -(-_unique(joined) * size // SECTOR)
    return int(touched.sum()), int(wanted.sum())


def _chunks(flat: Any, chunk: int) -> Any:
    rest = -len(flat) % chunk
    return numpy.concatenate([flat, numpy.full(rest, -1)]).reshape(-1, chunk)


def _unique(rows: Any) -> Any:
    """How many different numbers each row has, -1 not counted."""
    rows = numpy.sort(rows, axis=1)
    before = numpy.concatenate([numpy.full((len(rows), 1), -1), rows[:, :-1]], axis=1)
    return (rows != before).sum(1)
