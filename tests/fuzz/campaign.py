"""Random graphs through `dynfix.compile`.

    python -m tests.fuzz.campaign --graphs 20000 --out FOLDER [--first SEED] [--together 16]

Graphs are compiled `together`; those that differ, that raise, or that break, alone. A failing one is shrunk, and
written as a script into FOLDER.
"""

import argparse
import dataclasses
import re
import signal
import time
from collections import Counter
from pathlib import Path

import torch
from dynfix.lowering.targets import cpp_build

from .grammar import TYPES
from .graphs import grown
from .judge import differences, usable
from .shrink import script, shrunk

LIMIT = 300  # seconds for a batch


@dataclasses.dataclass
class Tally:
    graphs: int = 0
    lines: int = 0
    raising: int = 0
    failed: int = 0
    served: Counter = dataclasses.field(default_factory=Counter)

    def add(self, graphs, how):
        self.graphs += len(graphs)
        self.lines += sum(len(graph.lines) for graph in graphs)
        self.raising += sum(graph.raises for graph in graphs)
        self.served[how] += sum(not graph.raises for graph in graphs)

    def __str__(self):
        return (
            f"{self.graphs} graphs of {self.lines / max(self.graphs, 1):.1f} lines,"
            f" {self.served['whole']} served by a program, {self.served['parts']} in parts,"
            f" {self.served['eager']} in eager, {self.raising} raise, {self.failed} differ"
        )


def graphs_of(first, count):
    """(graph, dynamic) of `count` seeds; odd batches of seeds have sizes that change."""
    for seed in range(first, first + count):
        dynamic = (seed // 64) % 2 == 1
        graph = grown(seed, dynamic)
        if graph is None:
            continue
        if graph.gradients and not usable(graph):  # written in place, and needed for a gradient
            graph = dataclasses.replace(graph, gradients=False)
        if usable(graph):
            yield graph, dynamic


def is_delicate(graph):
    """Whether AOTAutograd may refuse the graph, which then is better not among others: it writes
    what gradients flow through, or what overlaps itself."""
    text = "\n".join(graph.lines)
    writes = re.search(r"\w_\(| = \S+$|[+&]= |out=", text, re.MULTILINE)
    overlaps = any("expand" in text for text in (text, *(made for _, made in graph.inputs)))
    return bool(writes) and (graph.gradients or overlaps)


def is_captured(graph, dynamic):
    """Whether the graph is recorded as one, and so may be among others."""
    return not graph.raises and differences([graph], dynamic, "eager")[1] == "whole"


def batches(pairs, together):
    """Graphs to compile together; one that raises, or that is not captured whole, is alone."""
    waiting = {}
    for graph, dynamic in pairs:
        if not is_captured(graph, dynamic):
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
        apart = [(graphs[max(number, 0)], f"only among others, call {turn}: {text}")]
    return apart


def _expire(number, frame):
    raise TimeoutError(f"took {LIMIT} s")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--graphs", type=int, default=20000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--together", type=int, default=16)
    parser.add_argument("--out", default="fuzz-found")
    parser.add_argument("--light", action="store_true", help="kernels built with -O1")
    given = parser.parse_args()
    if given.light:
        cpp_build.FLAGS = (*cpp_build.FLAGS, "-O1")
    torch.set_num_threads(1)
    folder = Path(given.out)
    folder.mkdir(exist_ok=True, parents=True)
    signal.signal(signal.SIGALRM, _expire)
    tally, start = Tally(), time.perf_counter()
    for graphs, dynamic in batches(graphs_of(given.first, given.graphs), given.together):
        signal.alarm(LIMIT)
        for graph, text in check(graphs, dynamic, tally):
            tally.failed += 1
            small = graph if text.startswith("only") else shrunk(graph, dynamic)
            file = folder / f"seed{graph.seed}.py"
            file.write_text(script(small, dynamic, text, TYPES))
            print(f"seed {graph.seed}: {text} ({len(small.lines)} lines, {file})", flush=True)
        signal.alarm(0)
        print(f"{time.perf_counter() - start:.0f} s: {tally}", flush=True)


if __name__ == "__main__":
    main()
