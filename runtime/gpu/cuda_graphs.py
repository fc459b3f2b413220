"""CUDA graphs of programs: the kernels of a call are captured once and replayed with one launch, or
a few where there are many.

A *lane* is one captured run with the memory of its results. A result is handed out as a new
tensor over that memory, and a lane is replayed only when nobody holds one of its results any more;
while somebody does, another lane is used, the last of which hands out copies. So a result that is
kept is never overwritten, and keeping one is never an error. What a forward saves may be lent: the
lane's own tensors, at every call the same, until the caller lets go of a `Loan`.

Inputs that stay where they are (parameters, activations that another lane saved) are read by
address, which every call compares; the others are copied into memory of the lane. Random numbers
follow the device's generator, whose state a replay advances as the kernels would
(`torch.cuda.CUDAGraph`).
"""

from __future__ import annotations

import dataclasses
import sys
import threading
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from operator import itemgetter
from typing import Any

import torch

from ..diagnostics import log
from ..guards import guard_native
from ..programs import finished_programs
from ..programs.program import FAST, Program
from .graph_capture import NotCapturable, captured
from .result_blocks import blocks_of, outline, start_of, view_of

_LANES = 3  # for one set of sizes; the last hands out copies
_SIZES = 8  # sets of sizes that get graphs of their own
_SMALL = 1 << 20  # bytes up to which a result that callers keep is copied at every call
_TINY = 1 << 12  # bytes up to which every result is: a loss is kept more often than not
_CAPTURES = 16  # lanes captured in all for one set of sizes before it stays as it is
# How often an input has to be found elsewhere before it is copied into the lane: activations that a
# forward saved move while its own lanes are chosen, and are large.
_MISSES = {"backward": 3}


class GraphedProgram:
    """`program` on one GPU: its first call for a set of sizes runs as it is, a later one captures.

    Calls that cannot be captured (a tensor of the host among the inputs, a stream that captures
    already, an operator that waits for the device) run as they are; the reason is logged once.
    writes: the inputs that the program writes to; returned: how many results, the first ones, go
    to a caller who may keep them at every call; sized: the inputs whose sizes or strides only a
    call knows; beside: the program in two, if the host has a part in it (`writes` and `sized` then
    count the inputs that the graph takes).
    """

    _boxed_call = True

    def __init__(
        self,
        program: Program,
        device: torch.device,
        writes: frozenset[int],
        returned: int,
        sized: Sequence[int] = (),
        beside: HostPrologue | None = None,
    ) -> None:
        self.program, self.device, self.writes = program, device, writes
        self.returned, self.sized, self.beside = returned, tuple(sized), beside
        self.name, self.source = program.name, program.source
        self._lock = threading.Lock()
        self._variants: dict[tuple[Any, ...], _Variant] = {}
        self._refused = ""

    def __call__(self, args: list[Any]) -> list[Any]:
        return self._called(args, None)

    def lend(self, args: list[Any]) -> tuple[list[Any], Loan]:
        """The results; those that are not `returned` may be overwritten once the loan is gone."""
        loan = Loan()
        return self._called(args, loan), loan

    def _called(self, args: list[Any], loan: Loan | None) -> list[Any]:
        if self._refused or not self._may_replay() or not self._lock.acquire(blocking=False):
            return self.program(args)
        try:
            beside = self.beside
            taken = args if beside is None else [args[k] for k in beside.taken]
            variant = self._variant(taken)
            if variant is None:
                return self.program(args)
            lane = variant.lane(taken)
            if beside is None:
                return variant.replayed(lane, taken, loan)
            made = beside.host([args[k] for k in beside.given])
            args.clear()
            taken += made[len(beside.places) :]
            return beside.put_in(made, variant.replayed(lane, taken, loan))
        except NotCapturable as error:
            self._refused = str(error)
            log.warning("%s runs without a CUDA graph: %s", self.name, error)
            return self.program(args)
        finally:
            self._lock.release()

    def _may_replay(self) -> bool:
        capturing = torch.cuda.is_current_stream_capturing
        return torch._C._cuda_getDevice() == self.device.index and not capturing()

    def _variant(self, args: Sequence[Any]) -> _Variant | None:
        """What serves calls of these sizes, and of tensors at these places, on this stream; None
        for the first, which warms up, and where a tensor is elsewhere than on the device. (Each
        place has one device: guards saw to that.)"""
        stream = torch._C._cuda_getCurrentRawStream(self.device.index)
        types = tuple(map(type, args))
        numbers = () if _TENSORS.issuperset(types) else _numbers(args)
        sizes = [(args[k].shape, args[k].stride()) for k in self.sized]
        key = (stream, len(types), numbers, *sizes)
        found = self._variants.get(key)
        if found is None and len(self._variants) < _SIZES:
            tensors = (arg for arg in args if isinstance(arg, torch.Tensor))
            if all(tensor.device == self.device for tensor in tensors):
                self._variants[key] = _Variant(self, args)
        return found


@dataclasses.dataclass(frozen=True)
class HostPrologue:
    """A program in two: what a graph holds, and what the host does before each replay.

    given, taken: which inputs the host's part takes, and which the graph. The host's results are
    those at `places`, then what it hands over to the graph, whose inputs they follow; memory:
    shape, strides and type of each of these.
    """

    graphed: Program
    host: Program
    given: tuple[int, ...]
    taken: tuple[int, ...]
    places: tuple[int, ...]
    memory: tuple[tuple[Any, Any, torch.dtype], ...]

    def put_in(self, made: Sequence[Any], results: list[Any]) -> list[Any]:
        for place, one in zip(self.places, made, strict=False):
            results[place] = one
        return results

    def unfilled(self, device: torch.device) -> list[torch.Tensor]:
        """Memory for what is handed over."""
        return [
            torch.empty_strided(shape, strides, dtype=dtype, device=device)
            for shape, strides, dtype in self.memory
        ]


class Loan:
    """Held while tensors that a lane has lent are needed."""

    __slots__ = ("__weakref__",)


_TENSORS = frozenset((torch.Tensor, torch.nn.Parameter))
_data_ptr: Callable[[Any], int] = torch.Tensor.data_ptr
_use_count: Callable[[int], int] = torch._C._storage_Use_Count


def _numbers(args: Sequence[Any]) -> tuple[Any, ...]:
    """The arguments that are no tensors, each at its place."""
    return tuple(torch.Tensor if isinstance(arg, torch.Tensor) else arg for arg in args)


def _addresses(args: Sequence[Any]) -> list[int]:
    native = guard_native.loaded()
    try:
        if native is not None:
            return native.addresses(args)  # type: ignore[no-any-return]
        return list(map(_data_ptr, args))
    except TypeError:  # numbers
        return [arg.data_ptr() if isinstance(arg, torch.Tensor) else 0 for arg in args]


class _Variant:
    """The lanes for one set of sizes."""

    def __init__(self, whole: GraphedProgram, args: Sequence[Any]) -> None:
        self.device, self.writes, self.returned = whole.device, whole.writes, whole.returned
        self.beside = whole.beside
        self.program = whole.program if whole.beside is None else whole.beside.graphed
        self.lanes: list[_Lane] = []
        self.copied_results: set[int] = set()
        self.captures = 0
        self._seen = _addresses(args)
        self._misses = [0] * len(args)

    def lane(self, args: list[Any]) -> _Lane:
        """One that nobody needs; raises NotCapturable."""
        addresses = _addresses(args)
        lane = self._free_lane(addresses)
        if lane is None:
            self._note_moves(addresses)
            lane = self._capture(args, addresses)
        return lane

    def replayed(self, lane: _Lane, args: list[Any], loan: Loan | None) -> list[Any]:
        return lane.replay(args, self.copied_results, self.writes, loan)

    def _free_lane(self, addresses: list[int]) -> _Lane | None:
        for lane in [*self.lanes]:
            if not lane.reads_at(addresses) or lane.lends():
                continue
            held = lane.live_results()
            if held:
                self.copied_results.update(k for k in held if lane.size_of(k) <= _SMALL)
                continue
            lost = lane.lost()
            if not lost:
                return lane
            self.copied_results.update(lost)
            self.lanes.remove(lane)
        return None

    def _note_moves(self, addresses: list[int]) -> None:
        for k, (before, now) in enumerate(zip(self._seen, addresses, strict=True)):
            self._misses[k] += before != now
        self._seen = addresses

    def _capture(self, args: list[Any], addresses: list[int]) -> _Lane:
        """A new lane; an input that has moved before is copied into it."""
        if len(self.lanes) == _LANES:
            stale = [lane for lane in self.lanes if not lane.reads_at(addresses)]
            self.lanes.remove((stale or self.lanes)[0])
        self.captures += 1
        if self.captures > _CAPTURES:
            raise NotCapturable("its inputs have other addresses at every call")
        copies = None if len(self.lanes) == _LANES - 1 else self.returned
        handed = [] if self.beside is None else self.beside.unfilled(self.device)
        moving = (k for k, arg in enumerate(args) if self._moves(k, arg))
        copied = frozenset((*moving, *range(len(args), len(args) + len(handed))))
        given = [*args, *handed]
        lane = _Lane(self.program, self.device, given, copied, copies, self.returned)
        self.lanes.append(lane)
        return lane

    def _moves(self, k: int, arg: Any) -> bool:
        limit = 1 + isinstance(arg, torch.nn.Parameter)
        return isinstance(arg, torch.Tensor) and self._misses[k] >= _MISSES.get(
            self.program.name, limit
        )


Maker = Callable[[Sequence[Any]], Any]


class _Lane:
    """One captured run. copied: the inputs that have memory here; copies: how many results, the
    first ones, are handed out as copies if they are tiny; None: every result is."""

    def __init__(
        self,
        program: Program,
        device: torch.device,
        args: Sequence[Any],
        copied: frozenset[int],
        copies: int | None,
        returned: int,
    ) -> None:
        self.copied = sorted(copied)
        self.inputs = {k: _like(args[k]) for k in self.copied}
        self.into = _by_type([(k, _dense(made)) for k, made in self.inputs.items()])
        given = [self.inputs.get(k, arg) for k, arg in enumerate(args)]
        places = [
            k for k, arg in enumerate(args) if isinstance(arg, torch.Tensor) and k not in copied
        ]
        self.read = itemgetter(*places, 0, 0)  # two more: a tuple, however few there are
        self.fixed = self.read(_addresses(args)) if args else ()
        self.parts, results = captured(program, device, given)
        self.own: dict[int, torch.Tensor] = {}
        self.same: dict[int, int] = {}  # results that are earlier ones
        self.makers = self._makers(results, [*enumerate(given)], program)
        self.blocks = blocks_of(self.own)
        self.tensors = [*self.own.values()]
        self.addresses = _addresses(self.tensors)
        self.storages = {k: made.untyped_storage() for k, made in self.own.items()}
        del results, given
        self.handles = [storage._cdata for storage in self.storages.values()]
        self.counts = self._uses()
        self.loan: Callable[[], Loan | None] = lambda: None
        lends = returned if copies is not None else self.results
        self.lent = [self.own.get(k) if k >= lends else None for k in range(self.results)]
        self.lendable = [tensor for tensor in self.lent if tensor is not None]
        self.others = [(k, maker) for k, maker in self.makers if self.lent[k] is None]
        self.copied_results = set(self.own)
        if copies is not None:
            self.copied_results = {k for k in self.own if k < copies and self.size_of(k) <= _TINY}
        self.references = list(map(sys.getrefcount, self.lendable))

    def _makers(
        self, results: Sequence[Any], inputs: Sequence[tuple[int, Any]], program: Program
    ) -> list[tuple[int, Maker]]:
        """How a later call gets each result that is no earlier one."""
        constants = {id(v) for v in program.namespace.values() if isinstance(v, torch.Tensor)}
        known: dict[int, int] = {}
        self.results = len(results)
        for k, made in enumerate(results):
            if isinstance(made, torch.Tensor) and known.setdefault(id(made), k) != k:
                self.same[k] = known[id(made)]
        return [
            (k, self._maker(k, made, inputs, constants))
            for k, made in enumerate(results)
            if k not in self.same
        ]

    def _maker(
        self, number: int, made: Any, inputs: Sequence[tuple[int, Any]], constants: set[int]
    ) -> Maker:
        """How a later call gets the result: from its own argument, or from memory of this lane."""
        if not isinstance(made, torch.Tensor) or id(made) in constants:
            return lambda args: made
        storage = made.untyped_storage()._cdata
        for k, given in inputs:
            if given is made:
                return itemgetter(k)
            if isinstance(given, torch.Tensor) and given.untyped_storage()._cdata == storage:
                return partial(view_of, k, outline(made), start_of(made) - start_of(given))
        self.own[number] = made
        alias = partial(FAST["alias"], made, tuple(made.shape), made.stride(), 0)
        return lambda args: alias()

    def reads_at(self, addresses: Sequence[int]) -> bool:
        return not addresses or self.read(addresses)[:-2] == self.fixed[:-2]

    def live_results(self) -> list[int]:
        """Results that somebody still holds."""
        counts = self._uses()
        if counts == self.counts:
            return []
        uses = zip(self.storages, *counts, *self.counts, strict=True)
        return [k for k, *now, tensors, objects in uses if now != [tensors, objects]]

    def _uses(self) -> tuple[list[int], list[int]]:
        """For each storage: tensors over it, and references to its only object in Python."""
        storages = self.storages.values()
        return list(map(_use_count, self.handles)), list(map(sys.getrefcount, storages))

    def lost(self) -> list[int]:
        """Results whose memory a caller gave back, or exchanged for a larger one (`resize_`)."""
        now = _addresses(self.tensors)
        if now == self.addresses:
            return []
        places = zip(self.own, now, self.addresses, strict=True)
        return [k for k, here, there in places if here != there]

    def lends(self) -> bool:
        """Whether what was lent is still needed, or held by somebody who asked autograd for it."""
        if self.loan() is not None:
            return True
        return list(map(sys.getrefcount, self.lendable)) != self.references

    def size_of(self, result: int) -> int:
        return self.storages[result].nbytes()

    def replay(
        self, args: list[Any], copied_results: set[int], writes: frozenset[int], loan: Loan | None
    ) -> list[Any]:
        with torch.no_grad():
            for places, into in self.into:
                _copy(into, [_dense(args[k]) for k in places])
            for part in self.parts:
                part.replay()
            finished_programs.note()
            for k in writes.intersection(self.copied):
                _dense(args[k]).copy_(_dense(self.inputs[k]))
            copies = self._copies(self.copied_results | (copied_results & self.own.keys()))
            made = self._made(args, copies, loan)
        args.clear()
        return made

    def _made(
        self, args: Sequence[Any], copies: dict[int, torch.Tensor], loan: Loan | None
    ) -> list[Any]:
        made: list[Any] = [*self.lent]
        makers = self.makers
        if loan is not None:
            makers = self.others
            if self.lendable:
                self.loan = weakref.ref(loan)
        for k, maker in makers:
            if k not in copies:
                made[k] = maker(args)
        for k, copy in copies.items():
            made[k] = copy
        for k, earlier in self.same.items():
            made[k] = made[earlier]
        return made

    def _copies(self, chosen: set[int]) -> dict[int, torch.Tensor]:
        """These results in memory of their own, those of a type by one call."""
        blocks = {self.blocks[k].first: self.blocks[k] for k in chosen}
        made = [(first, torch.empty_like(block.memory)) for first, block in blocks.items()]
        for places, into in _by_type(made):
            _copy(into, [blocks[first].memory for first in places])
        copies: dict[int, torch.Tensor] = {}
        for first, memory in made:
            copies.update(blocks[first].results_in(memory))
        return copies


def _by_type(tensors: Sequence[tuple[int, torch.Tensor]]) -> list[tuple[list[int], list[Any]]]:
    """The numbers and the tensors, those of a type together."""
    kinds: dict[torch.dtype, tuple[list[int], list[Any]]] = {}
    for k, tensor in tensors:
        numbers, found = kinds.setdefault(tensor.dtype, ([], []))
        numbers.append(k)
        found.append(tensor)
    return [*kinds.values()]


def _copy(into: Sequence[torch.Tensor], given: Sequence[torch.Tensor]) -> None:
    """Tensors of a type by one call."""
    if len(into) == 1:
        into[0].copy_(given[0])
    else:
        torch._foreach_copy_(into, given)  # type: ignore[arg-type]


def _dense(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor without the repetitions of `expand`."""
    if 0 not in tensor.stride():
        return tensor
    return tensor[tuple(slice(0, 1) if step == 0 else slice(None) for step in tensor.stride())]


def _like(tensor: torch.Tensor) -> torch.Tensor:
    """Memory for an input, with its strides and content."""
    with torch.no_grad():
        made = torch.empty_strided(
            tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device
        )
        if torch._debug_has_internal_overlap(_dense(made)) == 1:
            raise NotCapturable("an input's elements share memory")
        _dense(made).copy_(_dense(tensor))
        return made
