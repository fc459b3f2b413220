"""What `dynrun --report` collects while the script runs: calls, graphs, kernels, their times."""

import dataclasses
import os
import resource
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.fx import GraphModule

from ...lowering import stored_graphs
from ...lowering.pipeline import KernelFacts
from ..frontend import segment_programs
from .graph_layout import placed

EVENTS = 4000  # calls that the timeline shows one by one
CODE = 12_000  # characters of one kernel's text


@dataclasses.dataclass
class KernelRecord(KernelFacts):
    """One kernel, and how long its calls took."""

    graph: str = ""
    calls: int = 0
    seconds: float = 0.0  # of all calls
    fastest: float = 0.0  # of one

    def timed(self, launch: Callable[..., None]) -> Callable[..., None]:
        """`launch`, with its time noted. On a GPU that is the launch alone."""

        def call(*args: Any) -> None:
            start = time.perf_counter()
            launch(*args)
            taken = time.perf_counter() - start
            self.fastest = min(taken, self.fastest or taken)
            self.seconds += taken
            self.calls += 1

        return call


class Collector:
    """One run's. Installed, it sees every graph and kernel that is compiled from then on."""

    def __init__(self) -> None:
        self.started = time.perf_counter()
        self.kernels: list[KernelRecord] = []
        self.graphs: list[dict[str, Any]] = []
        self.events: list[dict[str, Any]] = []
        self.left_out = 0

    def install(self) -> None:
        segment_programs.observers.append(self._graph)
        stored_graphs.watchers.append(self._kernels)

    def _graph(self, segment: Any, program: Callable[..., Any], options: Any) -> Any:
        title = f"graph {len(self.graphs)}"
        self.graphs.append({"title": title, **placed(list(_nodes(segment.module)))})
        return program

    def _kernels(self, unit: Any, launches: Any) -> Any:
        return {group: self._kernel(unit, group, *made) for group, made in launches.items()}

    def _kernel(self, unit: Any, group: Any, launch: Any, buffers: Any) -> Any:
        record = KernelRecord.of(unit, group, buffers)
        record.code, record.graph = record.code[:CODE], f"graph {len(self.graphs)} {unit.name}"
        self.kernels.append(record)
        return record.timed(launch), buffers

    def watch(self, name: str, entry: Any) -> None:
        """Note the calls of a compiled function."""
        served = entry._served

        def timed(args: Any, kwargs: Any) -> Any:
            recorded, start = len(entry.recordings), time.perf_counter()
            try:
                return served(args, kwargs)
            finally:
                self._event(name, entry, start, len(entry.recordings) > recorded)

        entry._served = timed

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
