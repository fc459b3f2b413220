"""Memory-bound kernels, backwards and optimizer steps on a GPU beside eager and torch.compile, as
shares of the bandwidth of a copy.

    python -m benchmarks.gpu_rows --out DIR [--only NAMES] [--systems NAMES] [--dry]

Every row runs in a process of its own; the processes compile side by side, and time one after the
other (a file lock). Within a row the systems take turns, round after round. Before each call other
memory is read until nothing else is in the L2 cache, nor anything left to write back. The call is
queued while the GPU is busy, so the host's cost stays out (`wall` has it). --dry: tiny sizes on CPU
tensors in Triton's interpreter.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import json
import logging
import math
import os
import statistics
import subprocess
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch._functorch import config as functorch_config

from .gpu_row_cases import REORDERED, ROWS, liger

Tensors = list[torch.Tensor]


# ---- the systems


def _ours(tune: bool) -> Callable[[Callable, bool], Callable]:
    def make(fn: Callable, dry: bool) -> Callable:
        import dynfix
        from dynfix.runtime.diagnostics import DynfixWarning

        warnings.simplefilter("error", DynfixWarning)
        options = {"strict": True, "max_autotune": tune, **({"target": "triton"} if dry else {})}
        return dynfix.compile(fn, fullgraph=True, dynamic=False, options=options)

    return make


def _inductor(mode: str | None) -> Callable[[Callable, bool], Callable]:
    return lambda fn, dry: torch.compile(fn, mode=mode, dynamic=False)


SYSTEMS: dict[str, Callable[[Callable, bool], Callable]] = {
    "eager": lambda fn, dry: fn,
    "tc": _inductor(None),
    "tc-max": _inductor("max-autotune-no-cudagraphs"),
    "ours": _ours(False),
    "ours-max": _ours(True),
    "liger": lambda fn, dry: liger(fn),
}


# ---- one row


class Child:
    def __init__(self, name: str, out: Path, dry: bool, systems: str, rounds: int) -> None:
        self.name, self.row, self.out, self.dry = name, ROWS[name], out, dry
        self.rounds, self.device = rounds, torch.device("cpu" if dry else "cuda")
        self.systems = ["eager", "ours"] if dry else systems.split(",")
        self.result: dict[str, Any] = {"row": name}

    def inputs(self, seed: int, dtype: torch.dtype | None = None) -> Tensors:
        row, made = self.row, []
        generator = torch.Generator(self.device).manual_seed(seed)
        for k, shape in enumerate(row.shapes(self.dry)):
            if k in row.integers:
                bound = min(row.integers[k], 40) if self.dry else row.integers[k]
                made.append(torch.randint(bound, shape, generator=generator, device=self.device))
                continue
            kind = {"generator": generator, "device": self.device}
            value = torch.randn(shape, **kind).to(row.dtype)
            if k in row.last:
                value = value.contiguous(memory_format=torch.channels_last)
            made.append(
                (value.abs() if k in row.positive else value).requires_grad_(k in row.grads)
            )
        return made

    def run(self) -> None:
        if self.row.kind == "backward":  # the graph is used again
            functorch_config.donated_buffer = False
        calls = {}
        for system in self.systems:
            start = time.perf_counter()
            try:
                compiled = SYSTEMS[system](self.row.fn, self.dry)
                self._check(system, compiled)
                self._give_back()
                calls[system] = self._call(compiled)
                calls[system]()
                self.result[f"{system} first_s"] = time.perf_counter() - start
            except Exception as problem:
                self.result[f"{system} error"] = f"{type(problem).__name__}: {problem}"[:500]
                self.result[f"{system} trace"] = traceback.format_exc()[-2500:]
        self._give_back()
        with self._alone():
            self._times(calls)
        with open(self.out / "rows.jsonl", "a") as file:
            file.write(json.dumps(self.result) + "\n")
        print(line(self.result), flush=True)

    def _give_back(self) -> None:
        """Memory that is not in use, for the processes beside this one."""
        if not self.dry:
            torch.cuda.empty_cache()

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        with open(self.out / "lock", "w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    # ---- right or wrong

    def _check(self, system: str, compiled: Callable) -> None:
        """Three calls with changing inputs: the largest error over eager's, against float64."""
        worst = 0.0
        for seed in range(3):
            found = self._values(compiled, self.inputs(seed), seed)
            expected = self._values(self.row.fn, self.inputs(seed), seed)
            if self.row.random:
                continue
            exact = self._values(self.row.fn, self._exact(self.inputs(seed)), seed)
            for one, two, true in zip(found, expected, exact, strict=True):
                worst = max(worst, _ratio(one, two, true))
        self.result[f"{system} error_ratio"] = worst

    def _exact(self, inputs: Tensors) -> Tensors:
        return [
            t.detach().double().requires_grad_(t.requires_grad) if t.is_floating_point() else t
            for t in inputs
        ]

    def _values(self, fn: Callable, inputs: Tensors, seed: int) -> Tensors:
        torch.manual_seed(seed)
        if not self.row.grads:
            with torch.no_grad():
                out = fn(*inputs)
            results = list(out) if isinstance(out, tuple | list) else [out]
            return [*(r for r in results if r is not None), *(inputs if self.row.changes else [])]
        out = fn(*inputs)
        g = torch.linspace(-1, 1, out.numel(), device=out.device).view(out.shape).to(out.dtype)
        wanted = [inputs[k] for k in self.row.grads]
        return [out.detach(), *torch.autograd.grad(out, wanted, g if out.dim() else None)]

    # ---- times

    def _call(self, compiled: Callable) -> Callable[[], object]:
        row, inputs = self.row, self.inputs(7)
        wanted = [inputs[k] for k in row.grads]
        if not row.grads:

            def plain() -> object:
                with torch.no_grad():
                    return compiled(*inputs)

            return plain
        out = compiled(*inputs)
        g = torch.randn_like(out) if out.dim() else torch.ones_like(out)
        if row.kind != "backward":
            return lambda: torch.autograd.grad(compiled(*inputs), wanted, g)
        return lambda: torch.autograd.grad(out, wanted, g, retain_graph=True)

    def _times(self, calls: dict[str, Callable[[], object]]) -> None:
        if self.dry:
            return
        cache = torch.zeros(256 << 20, dtype=torch.uint8, device="cuda")
        host = {name: _host_us(call) for name, call in calls.items()}
        times: dict[str, list[float]] = {name: [] for name in calls}
        for _ in range(self.rounds):
            for name, call in calls.items():
                times[name].append(_gpu_ms(call, cache, max(host[name], 100.0)))
        moved = self.row.moved([math.prod(s) for s in self.row.shapes(False)])
        self.result["bytes"] = moved * self.row.dtype.itemsize
        for name, call in calls.items():
            self.result[f"{name} ms"] = statistics.median(times[name])
            self.result[f"{name} host_us"] = host[name]
            self.result[f"{name} wall_ms"] = _wall_ms(call)
            self.result[f"{name} kernels"] = _kernels(call)
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
            call()
            self.result[f"{name} mb"] = (torch.cuda.max_memory_allocated() - before) / 2**20


def _ratio(found: torch.Tensor, eager: torch.Tensor, exact: torch.Tensor) -> float:
    """The largest error over the largest of eager, whose own is counted as one unit at least."""
    exact = exact.to(found.device).double()
    if found.shape != eager.shape or (found.isnan() != exact.isnan()).any():
        return float("inf")
    ours = (found.double() - exact).abs().max().item()
    theirs = (eager.double() - exact).abs().max().item()
    unit = torch.finfo(found.dtype).eps if found.is_floating_point() else 0.0
    return ours / max(theirs, unit * exact.abs().max().item(), 1e-30)


def _gpu_ms(call: Callable[[], object], cache: torch.Tensor, host: float) -> float:
    cache.view(torch.int64).amax()
    torch.cuda._sleep(int(max(host, 300.0) * 6000))  # cycles: about three times the host's time
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    call()
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end)


def _host_us(call: Callable[[], object], repeats: int = 20) -> float:
    call()
    torch.cuda.synchronize()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
        torch.cuda.synchronize()
    return statistics.median(times) * 1e6


def _wall_ms(call: Callable[[], object], repeats: int = 20) -> float:
    """Milliseconds of a call among others like it, by the host's clock."""
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(repeats):
        call()
    torch.cuda.synchronize()
    return (time.perf_counter() - start) * 1e3 / repeats


def _kernels(call: Callable[[], object], repeats: int = 3) -> dict[str, float]:
    """Microseconds of each kernel of a call."""
    activities = [torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profile:
        for _ in range(repeats):
            call()
        torch.cuda.synchronize()
    return {
        event.key[:90]: round(event.device_time_total / repeats, 1)
        for event in profile.key_averages()
        if event.device_time_total
    }


# ---- all of them


def line(result: dict[str, Any], peak: float = 0.0) -> str:
    def cell(name: str) -> str:
        if f"{name} ms" not in result:
            return f"{'FAILED' if f'{name} error' in result else '-':>22}"
        ms, wrong = result[f"{name} ms"], result.get(f"{name} error_ratio", 0.0) > 2.5
        share = f"{result['bytes'] / ms / 1e6 / peak:4.0%}" if peak else ""
        return f"{ms:8.4f} {share:>4} {result[f'{name} host_us']:5.0f}us{'!' if wrong else ' '}"

    problems = [
        f"\n    {name}: {result[f'{name} error'][:300]}"
        for name in SYSTEMS
        if f"{name} error" in result
    ]
    ratios = " ".join(f"{result.get(f'{name} error_ratio', float('nan')):.1f}" for name in SYSTEMS)
    return f"{result['row']:<22}" + " ".join(map(cell, SYSTEMS)) + f"  {ratios}" + "".join(problems)


def copy_gbps() -> float:
    source = torch.randint(255, (1 << 30,), dtype=torch.uint8, device="cuda")
    target, cache = torch.empty_like(source), source[: 256 << 20].clone()
    times = [_gpu_ms(lambda: target.copy_(source), cache, 100.0) for _ in range(20)]
    return 2 * source.numel() / statistics.median(times) / 1e6


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", help="names of rows, between commas, or 'reordered'")
    parser.add_argument("--systems", default="eager,tc,ours", help=f"some of {','.join(SYSTEMS)}")
    parser.add_argument("--dry", action="store_true")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--jobs", type=int, default=8)
    parser.add_argument("--limit", type=float, default=400.0)
    parser.add_argument("--case")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    if options.case:
        logging.basicConfig()
        logging.getLogger("dynfix").setLevel(logging.INFO)  # what tuning measured
        Child(options.case, options.out, options.dry, options.systems, options.rounds).run()
        return
    _all(options)


def _chosen(only: str | None) -> list[str]:
    groups = {None: [*ROWS], "reordered": [*REORDERED]}
    return groups[only] if only in groups else str(only).split(",")


def _all(options: argparse.Namespace) -> None:
    until, waiting = time.time() + options.limit, _chosen(options.only)
    running: list[tuple[str, subprocess.Popen[bytes]]] = []
    with open(options.out / "errors.txt", "a") as errors:
        while (waiting or running) and time.time() < until:
            running = [(name, child) for name, child in running if child.poll() is None]
            while waiting and len(running) < options.jobs:
                name = waiting.pop(0)
                command = [sys.executable, "-m", "benchmarks.gpu_rows", "--case", name]
                command += ["--out", str(options.out), "--rounds", str(options.rounds)]
                command += ["--systems", options.systems] + ["--dry"] * options.dry
                dry = {"TRITON_INTERPRET": "1"} if options.dry else {}
                environment = {**os.environ, **dry}
                child = subprocess.Popen(command, stderr=errors, env=environment)
                running.append((name, child))
            time.sleep(0.1)
    for name, child in running:
        print(f"{name}: stopped")
        child.kill()
    _report(options)


def _report(options: argparse.Namespace) -> None:
    path = options.out / "rows.jsonl"
    if options.dry or not path.exists():
        return
    rows = {r["row"]: r for r in map(json.loads, path.read_text().splitlines())}
    peak = copy_gbps()
    text = [f"{torch.cuda.get_device_name()}, copy {peak:.0f} GB/s; ms, share of it, host"]
    text.append(f"{'':<22}" + " ".join(f"{name:>21}" for name in SYSTEMS) + "  error over eager's")
    text += [line(rows[name], peak) for name in ROWS if name in rows]
    for label, peers, own in (
        ("default", ("tc",), "ours"),
        ("best", ("tc", "tc-max"), "ours-max"),
        ("beside Liger-Kernel", ("liger",), "ours"),
    ):
        ratios = [
            min(row[f"{p} ms"] for p in peers if f"{p} ms" in row) / row[f"{own} ms"]
            for row in rows.values()
            if f"{own} ms" in row and any(f"{p} ms" in row for p in peers)
        ]
        if ratios:
            mean = math.exp(statistics.fmean(map(math.log, ratios)))
            text.append(f"{'/'.join(peers)} / dynfix, {label}: geometric mean {mean:.3f}")
    (options.out / "rows.txt").write_text("\n".join(text) + "\n")
    print("\n".join(text))


if __name__ == "__main__":
    main()
