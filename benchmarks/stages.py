"""CPU seconds of every stage from a graph to printed C++ source, for graphs of five kinds.

    python benchmarks/stages.py [--nodes 1000 10000] [--kinds chain norms …]

A chain of pointwise operators, layer norms one after another, transformer layers, operators that
share nothing, and updates of many parameters, each with a gradient that was made long before. The
compiler is not called.
"""

import argparse
import time
from collections.abc import Callable

import torch
from dynfix.lowering.decompositions.decompose import decompositions
from dynfix.lowering.loops import storage
from dynfix.lowering.loops.ir import Batch, Group
from dynfix.lowering.lowerings.lower import lower_graph
from dynfix.lowering.passes import CPU, LOOPS, passes_of
from dynfix.lowering.targets.cpp.cpp_target import printed
from dynfix.lowering.targets.extern import placeable
from dynfix.runtime.gc_pause import gc_paused
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional as F

Kind = tuple[
    Callable[..., object], int, list[torch.Tensor]
]  # function of a count, its nodes, inputs


def chain(count: int) -> Callable[..., object]:
    def run(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        for number in range(count):
            x = x * 1.01 if number % 3 else x + y
        return x

    return run


def norms(count: int) -> Callable[..., object]:
    def run(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        for _ in range(count):
            x = F.layer_norm(x, x.shape[-1:]) + y
        return x

    return run


def layers(count: int) -> Callable[..., object]:
    def run(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        for _ in range(count):
            h = F.layer_norm(x, x.shape[-1:])
            q, k, v = h @ w, h @ w, h @ w
            scores = torch.softmax(q @ k.transpose(-1, -2) * 0.125, -1)
            x = x + (scores @ v) @ w
            x = x + F.gelu(F.layer_norm(x, x.shape[-1:]) @ w) @ w
        return x

    return run


def independent(count: int) -> Callable[..., object]:
    def run(*xs: torch.Tensor) -> list[torch.Tensor]:
        return [torch.tanh(xs[n % len(xs)] * (n + 1)) + n for n in range(count)]

    return run


def updates(count: int) -> Callable[..., object]:
    def run(x: torch.Tensor, *held: torch.Tensor) -> torch.Tensor:
        params, moments = held[:count], held[count:]
        gradients = []
        for param in params:
            x = torch.tanh(x @ param)
            gradients.append(x.mT @ x)
        new = []
        for moment, gradient in zip(moments, gradients, strict=True):
            new.append(moment * 0.9 + gradient * 0.1)
        steps = [each / (each.abs().sqrt() + 1e-8) for each in new]
        for param, moment, value, step in zip(params, moments, new, steps, strict=True):
            moment.copy_(value)
            param.copy_(param - step * 0.01)
        return x

    return run


KINDS: dict[str, Callable[[int], Kind]] = {
    "chain": lambda n: (chain(n), n, [torch.randn(64, 64), torch.randn(64, 64)]),
    "norms": lambda n: (norms(n // 9), n, [torch.randn(64, 64), torch.randn(64, 64)]),
    "layers": lambda n: (layers(n // 55), n, [torch.randn(2, 64, 64), torch.randn(64, 64)]),
    "independent": lambda n: (independent(n // 3), n, [torch.randn(k, 64) for k in range(1, 65)]),
    "updates": lambda n: (updates(n // 15), n, [torch.randn(8, 8) for _ in range(1 + n // 15 * 2)]),
}


def graph_of(fn: Callable[..., object], inputs: list[torch.Tensor]) -> GraphModule:
    def tupled(*args: torch.Tensor) -> object:
        made = fn(*args)
        return tuple(made) if isinstance(made, list) else (made,)

    return make_fx(tupled, decomposition_table=decompositions(), tracing_mode="fake")(*inputs)


def seconds(graph: GraphModule) -> dict[str, float]:
    times: dict[str, float] = {}

    def timed(name: str, run: Callable[[], object]) -> object:
        start = time.process_time()
        made = run()
        times[name] = time.process_time() - start
        return made

    unit = timed("lower", lambda: lower_graph(graph, "unit"))
    for stage in passes_of(LOOPS, CPU):
        unit = timed(stage.name, lambda run=stage.run, unit=unit: run(unit))
    timed("storage", lambda: storage.plan(unit, True, placeable(unit)))
    groups = [item for item in unit.items if isinstance(item, Group | Batch)]
    timed("print", lambda: [printed(group) for group in groups])
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, nargs="*", default=[1000, 10000])
    parser.add_argument("--kinds", nargs="*", default=list(KINDS))
    arguments = parser.parse_args()
    for kind in arguments.kinds:
        for nodes in arguments.nodes:
            fn, _, inputs = KINDS[kind](nodes)
            graph = graph_of(fn, inputs)
            with gc_paused():
                times = seconds(graph)
            parts = ", ".join(f"{name} {one:.2f}" for name, one in times.items())
            found = len(graph.graph.nodes)
            print(f"{kind}, {found} nodes: {sum(times.values()):.2f} s ({parts})", flush=True)


if __name__ == "__main__":
    main()
