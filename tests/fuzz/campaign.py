"""Random graphs through `dynfix.compile`.

    python -m tests.fuzz.campaign --graphs 20000 --out FOLDER [--first SEED] [--jobs 16] [--light]

Graphs are compiled `together`; those that differ, that raise, or that break, alone. A failing one is shrunk, and
written as a script into FOLDER. A graph whose sizes change takes some four times as long as one of fixed sizes:
`--changing 4` draws one in four of the former, in place of one in two. With `--device cuda` blocks
take the GPUs in turn, and every other turn has CUDA graphs; `--device interpreter` runs Triton's
kernels on the CPU (TRITON_INTERPRET=1), `--device lanes` CUDA graphs that the CPU stands for.
"""

import argparse
import dataclasses
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

import dynfix
import torch
from dynfix.lowering.targets.cpp import cpp_build
from dynfix.runtime.errors import GraphBreakError

from . import graphs as drawn
from . import judge, lanes
from .grammar import TYPES
from .graphs import grown
from .judge import Run, differences, loaded, quietly, source, usable
from .shrink import script, shrunk

LIMIT = 300  # seconds for a batch
BLOCK = 64  # seeds of one kind in a row
BEGUN = "begun:"


@dataclasses.dataclass
class Tally:
    graphs: int = 0
    lines: int = 0
    raising: int = 0
    failed: int = 0
    seconds: float = 0.0  # of processor time, compilers' among it
    served: Counter = dataclasses.field(default_factory=Counter)

    def __iadd__(self, other):
        for field in dataclasses.fields(self):
            name = field.name
            setattr(self, name, getattr(self, name) + getattr(other, name))
        return self

    def add(self, graphs, how):
        self.graphs += len(graphs)
        self.lines += sum(len(graph.lines) for graph in graphs)
        self.raising += sum(graph.raises for graph in graphs)
        self.served[how] += sum(not graph.raises for graph in graphs)

    def __str__(self):
        return (
            f"{self.graphs} graphs of {self.lines / max(self.graphs, 1):.1f} lines,"
            f" {self.served['whole']} served by a program, {self.served['parts']} in parts,"
            f" {self.served['eager']} in eager, {self.raising} raise, {self.failed} differ;"
            f" {self.graphs / max(self.seconds, 0.01):.2f} a second of one core"
        )


def graphs_of(first, count, changing=2):
    """(graph, dynamic) of `count` seeds; the last of `changing` blocks has sizes that change."""
    for seed in range(first, first + count):
        dynamic = (seed // BLOCK) % changing == changing - 1
        graph = grown(seed, dynamic)
        if graph is None or (drawn.DEVICE != "cpu" and _is_for_the_host(graph)):
            continue
        if graph.gradients and not usable(graph):  # written in place, and needed for a gradient
            graph = without_gradients(graph)
        if usable(graph):
            yield graph, dynamic


def _is_for_the_host(graph):
    """Whether a GPU would be lost by an error, or eager is another one there: of float64 it takes a
    float32 sixth, and `channel_shuffle` of single channels gives a view."""
    text = "\n".join((*graph.lines, *(made for _, made in graph.inputs)))
    wide = any(part in text for part in ("make('d'", "float64", "double"))
    return graph.raises or "channel_shuffle" in text or (wide and "F.hards" in text)


def without_gradients(graph):
    """The graph with inputs that need none, which AOTAutograd would refuse else; one in eight
    keeps them, and so is left to eager."""
    inputs = graph.inputs
    if graph.seed % 8:
        inputs = tuple((name, text.replace(".requires_grad_()", "")) for name, text in inputs)
    return dataclasses.replace(graph, inputs=inputs, gradients=False)


def is_delicate(graph):
    """Whether AOTAutograd may refuse the graph, which then is better not among others: it writes
    what overlaps itself."""
    text = "\n".join(graph.lines)
    writes = re.search(r"\w_\(| = \S+$|[+&]= |out=", text, re.MULTILINE)
    return bool(writes) and any("expand" in t for t in (text, *(made for _, made in graph.inputs)))


def is_differentiable(graph):
    """Whether eager can differentiate all that leaves the call, inputs that it wrote among it."""
    run = quietly(
        Run, loaded(source([graph])).call, [dataclasses.replace(graph, gradients=False)], 0
    )
    given = [t for t in run.inputs[0] if t.requires_grad]
    try:
        roots = [t for t in (*run.results[0], *given) if t.grad_fn is not None]
    except RuntimeError:  # a part of `split` that was written
        return False
    leaves = [t for t in given if t.is_leaf]
    if not roots or not leaves:
        return True
    try:
        quietly(
            torch.autograd.grad, roots, leaves, list(map(torch.ones_like, roots)), allow_unused=True
        )
    except (RuntimeError, IndexError):  # as torch has it
        return False
    return True


def is_captured(graph):
    """Whether the graph's first call is recorded as one, and AOTAutograd differentiates it, so that
    it may be among others."""
    if graph.raises or not is_differentiable(graph):
        return False
    module = loaded(source([graph]))
    compiled = dynfix.compile(module.call, fullgraph=True, dynamic=False, backend="eager")
    return not isinstance(quietly(Run, compiled, [graph], 0).error, GraphBreakError)


def batches(pairs, together):
    """Graphs to compile together; one that raises, or that is not captured whole, is alone."""
    waiting = {}
    for graph, dynamic in pairs:
        if not is_captured(graph):
            yield [graph], dynamic
            continue
        delicate = is_delicate(graph)
        mates = waiting.setdefault((dynamic, delicate), [])
        if mates and mates[0].sizes != graph.sizes:
            graph = dataclasses.replace(graph, sizes=mates[0].sizes)
            if not usable(graph):
                continue
        mates.append(graph)
        if len(mates) >= (6 if delicate else together):
            yield waiting.pop((dynamic, delicate)), dynamic
    yield from ((mates, dynamic) for (dynamic, _), mates in waiting.items())


def check(graphs, dynamic, tally=None):
    """(graph, what differs) of each of the graphs that does. The tally counts what served each of
    them, alone where not all together could be served."""
    tally = tally or Tally()
    found, how = differences(graphs, dynamic)
    if len(graphs) == 1 or (not found and how == "whole"):
        tally.add(graphs, how)
        return [(graphs[0], text) for _, _, text in found[:1]]
    half = len(graphs) // 2
    apart = check(graphs[:half], dynamic, tally) + check(graphs[half:], dynamic, tally)
    if found and not apart:
        number, turn, text = found[0]
        mates = [graph.seed for graph in graphs]
        apart = [(graphs[max(number, 0)], f"only among {mates}, call {turn}: {text}")]
    return apart


def _expire(number, frame):
    raise TimeoutError(f"took {LIMIT} s")


def run(given, first, count):
    """The tally of `count` seeds; what differs is printed, and written into the folder."""
    if given.light:
        cpp_build.FLAGS = (*cpp_build.FLAGS, "-O1")
    if given.device == "cuda":
        turn, gpu = divmod(first // (BLOCK * given.changing), torch.cuda.device_count())
        drawn.DEVICE = f"cuda:{gpu}"
        torch.cuda.set_device(drawn.DEVICE)
        judge.MODE = (None, "reduce-overhead")[turn % 2]
    if given.device == "interpreter":
        judge.OPTIONS = {"target": "triton"}
    if given.device == "lanes":
        lanes.stand_in()
        judge.MODE = lanes.MODE
    if given.device != "cpu":
        dynfix.config.fallback_random = True
    torch.set_num_threads(1)
    signal.signal(signal.SIGALRM, _expire)
    tally, before = Tally(), sum(os.times()[:4])
    for graphs, dynamic in batches(graphs_of(first, count, given.changing), given.together):
        print(f"{BEGUN} {[graph.seed for graph in graphs]}", flush=True)
        signal.alarm(LIMIT)
        for graph, text in check(graphs, dynamic, tally):
            tally.failed += 1
            small = graph if text.startswith("only among") else shrunk(graph, dynamic)
            file = Path(given.out, f"seed{graph.seed}.py")
            file.write_text(script(small, dynamic, text, TYPES, drawn.DEVICE, judge.MODE))
            print(f"seed {graph.seed}: {text} ({len(small.lines)} lines, {file})", flush=True)
        signal.alarm(0)
    tally.seconds = sum(os.times()[:4]) - before
    return tally


def apart(given, first):
    """The tally of a block, in a process of its own; one that dies says at which graphs."""
    command = [sys.executable, "-m", "tests.fuzz.campaign", *sys.argv[1:], "--block", str(first)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    lines = done.stdout.splitlines()
    found = [line for line in lines if line.startswith("seed ")]
    if done.returncode:
        begun = [line for line in lines if line.startswith(BEGUN)]
        found.append(f"seed {first}: ended with {done.returncode}, {(begun or [BEGUN])[-1]}")
        found.append(done.stderr[-2000:])
        return Tally(failed=1), found
    values = json.loads(lines[-1])
    return Tally(**{**values, "served": Counter(values["served"])}), found


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--graphs", type=int, default=20000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--together", type=int, default=16)
    parser.add_argument("--changing", type=int, default=2)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--out", default="fuzz-found")
    parser.add_argument("--light", action="store_true", help="kernels built with -O1")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda", "interpreter", "lanes"))
    parser.add_argument("--block", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    Path(given.out).mkdir(exist_ok=True, parents=True)
    end, size = given.first + given.graphs, BLOCK * given.changing
    if given.block is not None:
        print(json.dumps(vars(run(given, given.block, min(size, end - given.block)))))
        return
    start, tally = time.perf_counter(), Tally()
    pool = ThreadPoolExecutor(given.jobs)
    try:
        blocks = [pool.submit(apart, given, first) for first in range(given.first, end, size)]
        for block in as_completed(blocks):
            part, found = block.result()
            tally += part
            print(*found, f"{time.perf_counter() - start:.0f} s: {tally}", sep="\n", flush=True)
    finally:  # one that was interrupted begins no further block
        pool.shutdown(cancel_futures=True)


if __name__ == "__main__":
    main()
