"""What `dynrun --report` and `--advise` collect while the script runs: calls, graphs, kernels, host
reads, their times."""

import contextlib
import dataclasses
import functools
import os
import resource
import statistics
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch.fx import GraphModule

from ...lowering import stored_graphs
from ...lowering.loops.kernel_graph import ExternCall
from ...lowering.pipeline import KernelFacts
from ...runtime.environment.machine import MACHINE, Machine
from ..capture import current
from ..capture.places import is_own_file
from ..capture.segments import Segment
from ..frontend import segment_programs
from ..frontend.switchover import first_node
from .graph_layout import placed
from .step_source import is_users

EVENTS = 4000  # calls that the timeline shows one by one
CODE = 12_000  # characters of one kernel's text
SPANS = 400_000  # of the last calls, graphs and reads, that costs are computed from
MEASURED_CALLS = 4  # of each graph, in which is looked what it takes from graphs before it
_COMPILER = os.path.dirname(os.path.dirname(stored_graphs.__file__)) + os.sep + "lowering"
HOST_READS = (
    "item tolist cpu numpy __bool__ __int__ __float__ __index__ __complex__ __repr__ __format__"
).split()


class TimeSpan(NamedTuple):
    """From when to when something ran, in seconds. `kind`: "step", "call" of a compiled function,
    "recording" of one, "graph" (`key` is its Segment), "backward", or "read" of a tensor on the
    host (`key`: file, line, the user's line that led there, and what was called)."""

    kind: str
    key: Any
    start: float
    end: float

    @property
    def seconds(self) -> float:
        return self.end - self.start


@dataclasses.dataclass
class KernelRecord(KernelFacts):
    """One kernel, and how long its calls took."""

    graph: str = ""
    calls: int = 0
    seconds: float = 0.0  # of all calls
    fastest: float = 0.0  # of one

    def timed(self, launch: Callable[..., None], run: "Collector") -> Callable[..., None]:
        """`launch`, with its time noted. On a GPU that is the launch alone."""
        now = run.now

        def call(*args: Any) -> None:
            start = now()
            launch(*args)
            taken = now() - start
            run.in_kernels += taken
            self.fastest = min(taken, self.fastest or taken)
            self.seconds += taken
            self.calls += 1

        return call


class Collector:
    """One run's. Installed, it sees every graph and kernel that is compiled from then on, and each
    tensor that is read on the host. Its clock is the processor's where others want the cores."""

    def __init__(self, machine: Machine = MACHINE) -> None:
        self.started = time.perf_counter()
        self.is_crowded = machine.is_crowded()
        self.now = machine.process_seconds if self.is_crowded else machine.now
        self.kernels: list[KernelRecord] = []
        self.graphs: list[dict[str, Any]] = []
        self.events: list[dict[str, Any]] = []
        self.left_out = 0
        self.spans: deque[TimeSpan] = deque(maxlen=SPANS)
        self.programs: dict[Segment, TimedProgram] = {}
        self.of_kernels: dict[Segment, bool] = {}  # whether a graph is kernels of ours alone
        self.passed: dict[int, int] = {}  # bytes of what graphs of this call gave, by address
        self.in_kernels = 0.0  # seconds
        self._calls_library = False  # what was built since the last graph
        self.within = False  # a graph, or a read
        self.backward = False  # runs now
        self._thread = threading.get_ident()
        self._steps: dict[int, float] = {}  # when those began that have not ended

    def install(self) -> None:
        segment_programs.observers.append(self._graph)
        segment_programs.timers.append(lambda *program: TimedProgram(self, *program))
        stored_graphs.watchers.append(self._kernels)
        for name in HOST_READS:
            setattr(torch.Tensor, name, TimedRead(self, name, getattr(torch.Tensor, name)))

    def span(self, kind: str, key: Any, start: float) -> None:
        """Something has run from `start` until now, on the script's thread."""
        if kind == "backward" or threading.get_ident() == self._thread:
            self.spans.append(TimeSpan(kind, key, start, self.now()))

    def step(self, number: int, place: str, ends: bool) -> None:
        """A training step of the script's begins or ends."""
        if not ends:
            self._steps[number] = self.now()
        elif number in self._steps:
            self.span("step", f"training step ({place})", self._steps.pop(number))

    def _graph(self, segment: Any, program: Callable[..., Any], options: Any) -> Any:
        title = f"graph {len(self.graphs)}"
        self.graphs.append({"title": title, **placed(list(_nodes(segment.module)))})
        self.of_kernels[segment] = not (self._calls_library or segment.open)
        self._calls_library = False
        return program

    def _kernels(self, unit: Any, launches: Any) -> Any:
        self._calls_library |= any(isinstance(item, ExternCall) for item in unit.items)
        return {group: self._kernel(unit, group, *made) for group, made in launches.items()}

    def _kernel(self, unit: Any, group: Any, launch: Any, buffers: Any) -> Any:
        record = KernelRecord.of(unit, group, launch, buffers)
        record.code, record.graph = record.code[:CODE], f"graph {len(self.graphs)} {unit.name}"
        self.kernels.append(record)
        return record.timed(launch, self), buffers

    def watch(self, name: str, entry: Any) -> None:
        """Note the calls of a compiled function, also those that it leaves to its parts."""
        within = False

        def recorded() -> int:
            return sum(len(part.recordings) for part in entry.parts)

        def timed(serve: Callable[..., Any], args: Any, kwargs: Any) -> Any:
            nonlocal within
            if within:
                return serve(args, kwargs)
            before, start, began = recorded(), time.perf_counter(), self.now()
            self.passed.clear()
            within = True
            try:
                return serve(args, kwargs)
            finally:
                within, made = False, recorded() > before
                self.span("recording" if made else "call", name, began)
                self._event(name, entry, start, made)

        for way in ("_served", "_uncaptured"):
            setattr(entry, way, functools.partial(timed, getattr(entry, way)))

    def _event(self, name: str, entry: Any, start: float, recorded: bool) -> None:
        if len(self.events) >= EVENTS:
            self.left_out += 1
            return
        again = recorded and len(entry.recordings) > 1
        self.events.append(
            {
                "name": name,
                "at": start - self.started,
                "seconds": time.perf_counter() - start,
                "kind": "recorded again" if again else "recorded" if recorded else "call",
                "why": entry.recompiles[-1] if again and entry.recompiles else "",
                "memory": _memory(),
            }
        )

    def kernel_list(self) -> list[dict[str, Any]]:
        return [dataclasses.asdict(record) for record in self.kernels]


class TimedProgram:
    """A graph's program, with its gradients, which notes when its calls begin and end."""

    def __init__(self, run: Collector, segment: Segment, program: Callable[..., Any]) -> None:
        self.run, self.segment, self.program = run, segment, program
        self.may_write_first = getattr(program, "may_write_first", False)
        self.taken = 0  # bytes that a call takes from graphs before it
        self.learnt = 0  # bytes of the parameters that get gradients
        self.launches: list[float] = []  # seconds of each call, without those of its kernels
        self.differentiated = False
        self._calls = 0
        run.programs[segment] = self

    def __call__(self, *tensors: Any) -> Any:
        run = self.run
        if run.within or current.recorder() is not None:
            return self.program(*tensors)
        self._calls += 1
        looks = self._calls <= MEASURED_CALLS
        if looks:
            self.taken = sum(run.passed.get(_address(each), 0) for each in tensors)
            self.learnt = sum(_bytes(t) for t in tensors if _requires_grad(t) and t.is_leaf)
        run.within, run.in_kernels, start = True, 0.0, run.now()
        try:
            result = self.program(*tensors)
        finally:
            run.within = False
            run.span("graph", self.segment, start)
        self.launches.append(run.now() - start - run.in_kernels)
        if looks:
            made = result if isinstance(result, tuple | list) else (result,)
            run.passed.update({_address(each): _bytes(each) for each in made})
        self._watch_backward(first_node(result))
        return result

    @property
    def launch(self) -> float | None:
        """What a call takes beside its kernels; None where it is not known, since it calls
        libraries."""
        known = self.run.of_kernels.get(self.segment, False) and self.launches
        return statistics.median(self.launches) if known else None

    def _watch_backward(self, node: Any) -> None:
        """Note the rest of the pass from the moment in which the gradient of its result is
        there."""
        if node is None:
            return
        self.differentiated = True

        def begins(grads: Any) -> None:
            handle.remove()
            run, start = self.run, self.run.now()
            if not run.backward:
                run.backward = True

                def ends() -> None:
                    run.backward = False
                    run.span("backward", None, start)

                with contextlib.suppress(RuntimeError):
                    torch.autograd.Variable._execution_engine.queue_callback(ends)

        handle = node.register_prehook(begins)


class TimedRead:
    """In the place of a method of Tensor that reads values on the host: notes from which line it
    is called, and how long it takes. Recorders meet torch's own method."""

    def __init__(self, run: Collector, name: str, original: Any) -> None:
        self.run, self.name, self.original = run, name, original

    def __get__(self, tensor: Any, owner: Any = None) -> Any:
        method = self.original.__get__(tensor, owner)
        if tensor is None or self.run.within or current.recorder() is not None:
            return method
        return functools.partial(self._timed, method)

    def _timed(self, method: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        run, place = self.run, _reader(sys._getframe(1))
        if place is None:
            return method(*args, **kwargs)
        run.within, start = True, run.now()
        try:
            return method(*args, **kwargs)
        finally:
            run.within = False
            run.span("read", (*place, self.name), start)


def _reader(frame: Any) -> tuple[str, int, str] | None:
    """File and line of who reads a tensor and, where that is an installed package, the user's line
    that led there; None where this package reads."""
    found: tuple[str, int] | None = None
    while frame is not None:
        file, line = frame.f_code.co_filename, frame.f_lineno
        if is_own_file(file) or file.startswith(_COMPILER):
            return (*found, "") if found else None
        if f"{os.sep}torch{os.sep}" not in file:
            found = found or (file, line)
            if is_users(file):
                return *found, "" if found == (file, line) else f"{os.path.basename(file)}:{line}"
        frame = frame.f_back
    return (*found, "") if found else None


def _address(value: Any) -> int:
    try:
        return int(value.data_ptr())
    except (AttributeError, RuntimeError):
        return 0


def _requires_grad(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.requires_grad and torch.is_grad_enabled()


def _bytes(value: Any) -> int:
    return value.numel() * value.element_size() if isinstance(value, torch.Tensor) else 0


def _nodes(module: GraphModule) -> Iterator[tuple[str, str, str, list[str]]]:
    """Of every node: its name, what it does, its line, and the names that it takes."""
    for node in module.graph.nodes:
        target = node.target if isinstance(node.target, str) else _target(node.target)
        what = node.op if node.op in ("placeholder", "output") else target
        origin = str(node.meta.get("origin") or "").splitlines()
        yield node.name, what, origin[0] if origin else "", [n.name for n in node.all_input_nodes]


def _target(target: Any) -> str:
    return str(getattr(target, "__name__", target))


def _memory() -> float:
    """MiB that the process holds now; on a GPU, what torch has allocated there."""
    if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return torch.cuda.memory_allocated() / 2**20
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20
    except OSError:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak / (2**20 if sys.platform == "darwin" else 2**10)
