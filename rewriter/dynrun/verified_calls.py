"""`dynrun --verify[=N]`: the first calls of every compiled graph are made in eager as well, on
copies; the first difference ends the run with a `repro.py`."""

import atexit
import functools
import os
import sys
import threading
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch.fx import GraphModule

from ...lowering.autograd.double_backward import Differentiable, RecordedGraph
from ...lowering.fake_tensor_mode import PacedFakeMode
from ...lowering.graph.tensor_numbers import write_out_numbers
from ...runtime import backends
from ...runtime.diagnostics import log
from ...runtime.options import Options
from ..capture.segments import Segment
from ..capture.values import Meta, Number
from ..frontend import segment_programs
from ..frontend.config import config
from . import repro_file
from .differences import Difference, copy_of, differ
from .smallest_graph import smallest
from .summary import counted, ranked, say_line

STATUS = 70  # the exit status after a difference: EX_SOFTWARE of sysexits.h


class DifferenceFound(SystemExit):
    """Ends the run. No `except Exception` of the script, or of this package, keeps it going."""


class Verification:
    """One run's: how many calls of each graph are compared, where the file goes, what was done."""

    def __init__(self, calls: int, path: str = "repro.py") -> None:
        self.calls, self.path = calls, path
        self.graphs = self.compared = self.left_out = 0

    def observe(
        self, segment: Segment, program: Callable[..., Any], options: Options
    ) -> Callable[..., Any]:
        self.graphs += 1
        return Verified(self, segment, program, options)

    def tell(self) -> None:
        """What was compared, in a line on stderr."""
        left = f"; {self.left_out} could not be compared" if self.left_out else ""
        graphs = counted(self.graphs, "graph")
        if self.compared:
            say_line(
                f"--verify: {counted(self.compared, 'call')} of {graphs} agree with eager{left}"
            )
        else:
            why = f"{graphs}, and no later call was served by one" if self.graphs else "no graph"
            say_line(f"--verify: nothing was compared: {why}{left}")


class Verified:
    """A program whose first calls are compared before they are made."""

    def __init__(
        self, run: Verification, segment: Segment, program: Callable[..., Any], options: Options
    ) -> None:
        self.run, self.segment, self.program, self.options = run, segment, program, options
        self.left = run.calls
        self._served = self._as_served(program, segment.module, segment.metas)

    def __call__(self, *tensors: Any) -> Any:
        if self.left > 0:
            self.left -= 1
            self._compare(tensors)
        return self.program(*tensors)

    def _compare(self, tensors: tuple[Any, ...]) -> None:
        segment = self.segment
        try:
            found = differ(segment.module, self._served, tensors, segment.writes, segment.random)
        except Exception as error:  # eager raises: so will the call; or a tensor has no copy
            log.debug("a call is not compared: %r", error)
            self.run.left_out += 1
            return
        if found is not None and segment.random and threading.active_count() > 1:
            self.run.left_out += 1  # another thread may have drawn between
            return
        if found is not None:
            self.stop(found, tensors)
        self.run.compared += 1

    def stop(self, found: Difference, tensors: tuple[Any, ...]) -> None:
        """Say what differs, write the file, and end the process."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of parts that are no programs by themselves
            lines = self.report(found, tensors)
        for line in lines:
            say_line(line)
        atexit.unregister(self.run.tell)
        if threading.current_thread() is not threading.main_thread():
            sys.stdout.flush()
            os._exit(STATUS)
        raise DifferenceFound(STATUS)

    def report(self, found: Difference, tensors: tuple[Any, ...]) -> list[str]:
        """What to say; the file is written on the way."""
        reduced = smallest(self.segment.module, tensors, functools.partial(self._fails, found))
        dynamic = None if reduced else True
        module, inputs = reduced or (self.segment.module, [copy_of(t) for t in tensors])
        found = (reduced and differ(module, self._compiled(module, inputs), inputs)) or found
        calls = [node for node in module.graph.nodes if node.op.startswith("call_")]
        where = next((n.meta["origin"] for n in calls if n.meta.get("origin")), "a graph")
        lines = [f"--verify: {where.splitlines()[0]}: {found}"]
        path = self.run.path
        try:
            text = repro_file.written(module, inputs, found, self.options, path, dynamic)
            with open(path, "w", encoding="utf-8") as file:
                file.write(text)
        except (ValueError, OSError) as error:
            return [*lines, f"--verify: no {path}: {error}"]
        count = f"{len(calls)} operator{'s' if len(calls) != 1 else ''}"
        return [*lines, f"--verify: `python {path}` shows it, in {count}"]

    def _fails(self, first: Difference, module: GraphModule, inputs: Any) -> bool:
        found = differ(module, self._compiled(module, inputs), inputs)
        return found is not None and found.raised == first.raised

    def _compiled(self, module: GraphModule, inputs: Any) -> Callable[..., Any]:
        with torch.inference_mode(False), PacedFakeMode(allow_non_fake_inputs=True):
            metas = [Meta.of(v) if isinstance(v, torch.Tensor) else Number(v) for v in inputs]
            examples = [meta.fake() for meta in metas]
        given = module if self.options.backend == "eager" else write_out_numbers(module)
        with torch.set_grad_enabled(torch.is_grad_enabled()):  # as it is, whatever fails inside
            program = backends.lookup(self.options.backend)(given, examples, self.options)
        return self._as_served(program, module, metas)

    def _as_served(
        self, program: Callable[..., Any], module: GraphModule, metas: Any
    ) -> Callable[..., Any]:
        """The program with the backward that calls get."""
        if self.options.backend not in ("native", "aot_eager"):
            return program
        return Differentiable(program, RecordedGraph(module, metas, self.segment.random))


def verify_calls(calls: int, path: str = "repro.py") -> Verification:
    """Compare the first `calls` calls of every graph that is compiled from now on; these draw
    eager's random numbers."""
    config.fallback_random = True
    run = Verification(calls, ranked(path))
    segment_programs.observers.append(run.observe)
    atexit.register(run.tell)
    return run
