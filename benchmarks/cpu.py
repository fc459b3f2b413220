"""25 cases on the CPU: eager, dynfix.compile and torch.compile, interleaved in one process.

    python benchmarks/cpu.py [--threads N] [--rounds N] [--only NAME ...] [--peers eager,torch]
                             [--cpu-seconds]

A ratio is a peer's median time / dynfix's: above 1 means that dynfix is faster.
"""

import argparse
import copy
import math
import time
from collections.abc import Callable, Iterable
from typing import Any

import dynfix
import torch
from cpu_cases import CASES, Case
from interleave import Times, interleaved

COMPILERS: dict[str, Callable[[Any], Any]] = {
    "dynfix": dynfix.compile,
    "eager": lambda fn: fn,
    "torch": torch.compile,
}
LEAST_SECONDS = 0.002  # of one timed call: short steps are repeated


def step_of(case: Case, compiler: Callable[[Any], Any]) -> Callable[[], Any]:
    torch.manual_seed(0)
    fn, inputs = case.make()
    module = isinstance(fn, torch.nn.Module)
    call = compiler(copy.deepcopy(fn).train(case.train) if module else fn)
    if not case.train:
        return _forward(call, inputs)
    inputs = tuple(x.requires_grad_(x.is_floating_point()) for x in inputs)
    parameters = list(call.parameters()) if module else []
    return _training(call, inputs, [*parameters, *inputs])


def _forward(call: Callable[..., Any], inputs: tuple[Any, ...]) -> Callable[[], Any]:
    def step() -> Any:
        with torch.no_grad():
            return call(*inputs)

    return step


def _training(
    call: Callable[..., Any], inputs: tuple[Any, ...], tensors: list[Any]
) -> Callable[[], Any]:
    seeds: dict[torch.Size, torch.Tensor] = {}

    def step() -> Any:
        for tensor in tensors:
            tensor.grad = None
        made = call(*inputs)
        if made.shape not in seeds:
            torch.manual_seed(1)
            seeds[made.shape] = torch.randn_like(made)
        made.backward(seeds[made.shape])
        return made, [tensor.grad for tensor in tensors]

    return step


def repeated(step: Callable[[], Any], count: int) -> Callable[[], None]:
    def run() -> None:
        for _ in range(count):
            step()

    return run


def measure(
    case: Case, peers: Iterable[str], rounds: int, clock: Callable[[], float]
) -> dict[str, Times]:
    """Times of one step of each, after results were compared with eager's."""
    torch._dynamo.reset()
    steps = {name: step_of(case, COMPILERS[name]) for name in ("dynfix", *peers)}
    expected = step_of(case, COMPILERS["eager"])()
    for step in steps.values():
        for _ in range(3):
            found = step()
        torch.testing.assert_close(found, expected, rtol=2e-2, atol=0.1)  # peers round less often
    start = time.perf_counter()
    steps["dynfix"]()
    count = max(1, math.ceil(LEAST_SECONDS / (time.perf_counter() - start)))
    many = {name: repeated(step, count) for name, step in steps.items()}
    times = interleaved(many, rounds, clock=clock)
    return {name: Times(*(part / count for part in one)) for name, one in times.items()}


def mean(ratios: list[float]) -> float:
    return math.exp(sum(map(math.log, ratios)) / len(ratios)) if ratios else math.nan


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--peers", default="eager,torch")
    parser.add_argument(
        "--cpu-seconds", action="store_true", help="the processor's time: for a busy machine"
    )
    arguments = parser.parse_args()
    clock = time.process_time if arguments.cpu_seconds else time.perf_counter
    torch.set_num_threads(arguments.threads)
    peers = arguments.peers.split(",")
    ratios: dict[str, list[float]] = {peer: [] for peer in peers}
    print(f"| case | dynfix ms | {' | '.join(f'{peer} / dynfix' for peer in peers)} |")
    print("|---|---|" + "---|" * len(peers))
    for name, case in CASES.items():
        if arguments.only and name not in arguments.only:
            continue
        times = measure(case, peers, arguments.rounds, clock)
        own = times["dynfix"].median
        for peer in peers:
            ratios[peer].append(times[peer].median / own)
        row = " | ".join(f"{ratios[peer][-1]:.2f}" for peer in peers)
        print(f"| {name} | {own * 1e3:.3f} | {row} |", flush=True)
    print(f"| geometric mean | | {' | '.join(f'{mean(ratios[p]):.2f}' for p in peers)} |")


if __name__ == "__main__":
    main()
