"""CUDA graphs of programs: the kernels of a call are captured once and replayed with one launch.

A *lane* is one captured graph with the memory of its results. A result is handed out as a new
tensor over that memory, and a lane is replayed only when nobody holds one of its results any more;
while somebody does, another lane is used, the last of which hands out copies. So a result that is
kept is never overwritten, and keeping one is never an error.

Inputs that stay where they are (parameters, activations that another lane saved) are read by
address, which every call compares; the others are copied into memory of the lane. Random numbers
follow the device's generator, whose state a replay advances as the kernels would
(`torch.cuda.CUDAGraph`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial
from operator import itemgetter
from typing import Any

import torch

from .program import FAST, Program
from .report import log

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
    to a caller who may keep them at every call.
    """

    _boxed_call = True

    def __init__(
        self, program: Program, device: torch.device, writes: frozenset[int], returned: int
    ) -> None:
        self.program, self.device, self.writes = program, device, writes
        self.returned = returned
        self.name, self.source = program.name, program.source
        self._lock = threading.Lock()
        self._variants: dict[tuple[Any, ...], _Variant] = {}
        self._refused = ""

    def __call__(self, args: list[Any]) -> list[Any]:
        if self._refused or not self._may_replay() or not self._lock.acquire(blocking=False):
            return self.program(args)
        try:
            variant = self._variant(args)
            return self.program(args) if variant is None else variant(args)
        except _NotCapturable as error:
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
        key = (stream, *[torch.Tensor if isinstance(arg, torch.Tensor) else arg for arg in args])
        found = self._variants.get(key)
        if found is None and len(self._variants) < _SIZES:
            tensors = (arg for arg in args if isinstance(arg, torch.Tensor))
            if all(tensor.device == self.device for tensor in tensors):
                self._variants[key] = _Variant(self, args)
        return found


class _NotCapturable(Exception):
    """Why a program cannot be captured."""


def _addresses(args: Sequence[Any]) -> list[int]:
    return [arg.data_ptr() if isinstance(arg, torch.Tensor) else 0 for arg in args]


class _Variant:
    """The lanes for one set of sizes."""

    def __init__(self, whole: GraphedProgram, args: Sequence[Any]) -> None:
        self.program, self.device, self.writes = whole.program, whole.device, whole.writes
        self.returned = whole.returned
        self.lanes: list[_Lane] = []
        self.copied_results: set[int] = set()
        self.captures = 0
        self._seen = _addresses(args)
        self._misses = [0] * len(args)

    def __call__(self, args: list[Any]) -> list[Any]:
        addresses = _addresses(args)
        lane = self._free_lane(addresses)
        if lane is None:
            self._note_moves(addresses)
            lane = self._capture(args, addresses)
        return lane.replay(args, self.copied_results, self.writes)

    def _free_lane(self, addresses: list[int]) -> _Lane | None:
        for lane in self.lanes:
            if not lane.reads_at(addresses):
                continue
            held = lane.held()
            if not held:
                return lane
            self.copied_results.update(k for k in held if lane.size_of(k) <= _SMALL)
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
            raise _NotCapturable("its inputs are elsewhere at every call")
        copies = None if len(self.lanes) == _LANES - 1 else self.returned
        copied = frozenset(k for k, arg in enumerate(args) if self._moves(k, arg))
        lane = _Lane(self.program, self.device, args, copied, copies)
        self.lanes.append(lane)
        return lane

    def _moves(self, k: int, arg: Any) -> bool:
        limit = 1 + isinstance(arg, torch.nn.Parameter)
        return isinstance(arg, torch.Tensor) and self._misses[k] >= _MISSES.get(
            self.program.name, limit
        )


Maker = Callable[[Sequence[Any]], Any]


class _Lane:
    """One captured graph. copied: the inputs that have memory here; copies: how many results, the
    first ones, are handed out as copies if they are tiny; None: every result is."""

    def __init__(
        self,
        program: Program,
        device: torch.device,
        args: Sequence[Any],
        copied: frozenset[int],
        copies: int | None,
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
        self.graph, results = _captured(program, device, given)
        self.own: dict[int, torch.Tensor] = {}
        known = [*enumerate(given)]
        constants = [v for v in program.namespace.values() if isinstance(v, torch.Tensor)]
        self.makers = [self._maker(k, made, known, constants) for k, made in enumerate(results)]
        self.same = _repeated(results)
        self.storages = {k: made.untyped_storage() for k, made in self.own.items()}
        del results, given, known
        self.counts = {k: _uses(storage) for k, storage in self.storages.items()}
        self.copied_results = set(self.own)
        if copies is not None:
            self.copied_results = {k for k in self.own if k < copies and self.size_of(k) <= _TINY}

    def _maker(
        self,
        number: int,
        made: Any,
        inputs: Sequence[tuple[int, Any]],
        constants: Sequence[torch.Tensor],
    ) -> Maker:
        """How a later call gets the result: from its own argument, or from memory of this lane."""
        if not isinstance(made, torch.Tensor) or any(made is constant for constant in constants):
            return lambda args: made
        storage = made.untyped_storage()._cdata
        for k, given in inputs:
            if given is made:
                return itemgetter(k)
            if isinstance(given, torch.Tensor) and given.untyped_storage()._cdata == storage:
                shape, strides = made.shape, made.stride()
                moved = int(made.storage_offset()) - int(given.storage_offset())
                return partial(_view_of, k, shape, strides, moved)
        self.own[number] = made
        alias = partial(FAST["alias"], made, tuple(made.shape), made.stride(), 0)
        return lambda args: alias()

    def reads_at(self, addresses: Sequence[int]) -> bool:
        return not addresses or self.read(addresses)[:-2] == self.fixed[:-2]

    def held(self) -> list[int]:
        """Results that somebody still holds."""
        return [k for k, s in self.storages.items() if _uses(s) > self.counts[k]]

    def size_of(self, result: int) -> int:
        return self.storages[result].nbytes()

    def replay(
        self, args: list[Any], copied_results: set[int], writes: frozenset[int]
    ) -> list[Any]:
        with torch.no_grad():
            for places, into in self.into:
                _copy(into, [_dense(args[k]) for k in places])
            self.graph.replay()
            for k in writes.intersection(self.copied):
                _dense(args[k]).copy_(_dense(self.inputs[k]))
            copies = self._copies(self.copied_results | (copied_results & self.own.keys()))
            made = [
                copies[k] if k in copies else maker(args) for k, maker in enumerate(self.makers)
            ]
            for k, earlier in self.same.items():  # writing one shows in the other's version
                made[k] = made[earlier]
        args.clear()
        return made

    def _copies(self, chosen: set[int]) -> dict[int, torch.Tensor]:
        """These results in memory of their own, those of a type by one call."""
        copies = {k: torch.empty_like(self.own[k]) for k in chosen}
        for places, made in _by_type([*copies.items()]):
            _copy(made, [self.own[k] for k in places])
        return copies


def _repeated(results: Sequence[Any]) -> dict[int, int]:
    """The results that are the same tensor as an earlier one."""
    first: dict[int, int] = {}
    places = {k: first.setdefault(id(r), k) for k, r in enumerate(results) if _is_tensor(r)}
    return {k: earlier for k, earlier in places.items() if k != earlier}


def _is_tensor(result: Any) -> bool:
    return isinstance(result, torch.Tensor)


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


def _view_of(
    k: int, shape: Sequence[int], strides: Sequence[int], moved: int, args: Sequence[Any]
) -> torch.Tensor:
    """A view of argument k, `moved` elements after its first."""
    return torch.as_strided(args[k], shape, strides, args[k].storage_offset() + moved)


def _uses(storage: torch.UntypedStorage) -> int:
    return int(torch._C._storage_Use_Count(storage._cdata))


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
            raise _NotCapturable("an input's elements share memory")
        _dense(made).copy_(_dense(tensor))
        return made


_streams: dict[tuple[torch.device, int], torch.cuda.Stream] = {}


def _capture_stream(device: torch.device) -> torch.cuda.Stream:
    """The stream to capture on: one for each that replays, since the library keeps workspaces for
    each of its streams, and graphs that replay at once must not share them."""
    key = device, torch._C._cuda_getCurrentRawStream(device.index)
    if key not in _streams:
        _streams[key] = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    return _streams[key]


def _captured(
    program: Program, device: torch.device, given: Sequence[Any]
) -> tuple[torch.cuda.CUDAGraph, list[Any]]:
    """The graph of one run on `given`, and its results, which nothing has computed yet. Raises
    _NotCapturable."""
    graph, stream = torch.cuda.CUDAGraph(), _capture_stream(device)
    torch.cuda.synchronize(device)
    try:
        with torch.cuda.stream(stream):
            # what other threads do meanwhile must not end the capture
            graph.capture_begin(capture_error_mode="thread_local")
            try:
                results = program(list(given))
            finally:
                graph.capture_end()
    except Exception as error:
        torch.cuda.synchronize(device)
        raise _NotCapturable(f"{type(error).__name__}: {str(error).splitlines()[0]}") from error
    return graph, results
