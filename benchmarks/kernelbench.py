"""The problems of KernelBench (https://github.com/ScalingIntelligence/KernelBench) on a GPU, beside
eager and torch.compile.

    python -m benchmarks.kernelbench CHECKOUT --out DIR [--levels 1,2] [--systems eager,tc,ours]

CHECKOUT is the folder that holds `level1`, `level2` and `level3`. Every worker process takes one
problem after the other: it compiles beside the others, and times alone (a file lock), the systems
in turn, round after round. A result is marked as wrong if it is further from eager's than 1e-4 of
the largest element, 1e-2 for 16-bit floats.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import gc
import json
import math
import os
import signal
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from .gpu_rows import _gpu_ms, _host_us, _kernels

Call = Callable[[], Any]
LIMIT = 100  # seconds a problem


def _compiled(system: str, model: torch.nn.Module) -> Callable[..., Any]:
    if system == "eager":
        return model
    if system.startswith("tc"):
        torch._dynamo.reset()
        mode = "max-autotune-no-cudagraphs" if system == "tc-max" else None
        return torch.compile(model, mode=mode, dynamic=False)
    import dynfix

    options = {"max_autotune": system == "ours-max"}
    return dynfix.compile(model, dynamic=False, options=options)


@contextlib.contextmanager
def _locked(path: Path, kind: int = fcntl.LOCK_EX) -> Iterator[Any]:
    with open(path, "a+") as file:
        fcntl.flock(file, kind)
        yield file


@contextlib.contextmanager
def _gpu(out: Path, kind: int) -> Iterator[None]:
    """The GPU: shared while programs are compiled, alone while they are timed. Who waits for it
    keeps others from the queue, or programs would be compiled for ever."""
    with contextlib.ExitStack() as held:
        with _locked(out / "queue"):
            held.enter_context(_locked(out / "gpu", kind))
        yield


def _problems(root: Path, levels: str) -> list[Path]:
    folders = [root / f"level{level}" for level in levels.split(",")]
    return [p for f in folders for p in sorted(f.glob("*.py"), key=_number)]


def _number(path: Path) -> int:
    return int(path.name.split("_")[0])


def _next(out: Path, problems: list[Path]) -> Path | None:
    with _locked(out / "taken") as file:
        file.seek(0)
        taken = len(file.read())
        file.write(".")
    return problems[taken] if taken < len(problems) else None


class Problem:
    def __init__(self, path: Path, dtype: torch.dtype, systems: list[str], rounds: int) -> None:
        self.path, self.dtype, self.systems, self.rounds = path, dtype, systems, rounds
        self.result: dict[str, Any] = {"problem": f"{path.parent.name}/{path.stem}"}

    def run(self, out: Path) -> dict[str, Any]:
        space: dict[str, Any] = {"__name__": "problem"}
        exec(compile(self.path.read_text(), str(self.path), "exec"), space)
        with torch.device("meta"):
            size = sum(t.numel() * t.itemsize for t in _tensors(space["get_inputs"]()))
        one_by_one = _locked(out / "large") if size > 2**31 else contextlib.nullcontext()
        with one_by_one, torch.no_grad():
            with torch.device("cuda"):
                torch.manual_seed(42)
                model = space["Model"](*space["get_init_inputs"]()).to("cuda", self.dtype)
                torch.manual_seed(43)
                inputs = [self._given(x) for x in space["get_inputs"]()]
            self._measure(model, inputs, out)
            del inputs
            torch.cuda.empty_cache()
        return self.result

    def _given(self, value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        floats = value.is_floating_point()
        return value.to("cuda", self.dtype if floats else value.dtype)

    def _measure(self, model: torch.nn.Module, inputs: list[Any], out: Path) -> None:
        with _gpu(out, fcntl.LOCK_SH):
            calls = self._checked(model, inputs)
            torch.cuda.empty_cache()
        with _gpu(out, fcntl.LOCK_EX):
            self._time(calls)

    def _checked(self, model: torch.nn.Module, inputs: list[Any]) -> dict[str, Call]:
        calls: dict[str, Call] = {}
        expected = None
        for system in self.systems:
            start = time.perf_counter()
            try:
                fn = _compiled(system, model)
                for _ in range(2):
                    torch.manual_seed(44)
                    found = fn(*inputs)
                if expected is None:
                    expected = found
                self.result[f"{system} error"] = _error(found, expected)
                calls[system] = lambda fn=fn: fn(*inputs)
                self.result[f"{system} first_s"] = round(time.perf_counter() - start, 2)
            except Exception as problem:
                self.result[f"{system} failed"] = f"{type(problem).__name__}: {problem}"[:400]
        return calls

    def _time(self, calls: dict[str, Call]) -> None:
        cache = torch.zeros(256 << 20, dtype=torch.uint8, device="cuda")
        host = {name: _host_us(call, 3) for name, call in calls.items()}
        times: dict[str, list[float]] = {name: [] for name in calls}
        start = time.perf_counter()
        for done in range(self.rounds):
            if done > 4 and time.perf_counter() - start > 4:
                break
            for name, call in calls.items():
                times[name].append(_gpu_ms(call, cache, max(min(host[name], 3000.0), 100.0)))
        for name, found in times.items():
            self.result[f"{name} ms"] = statistics.median(found)
            self.result[f"{name} host_us"] = host[name]
            self.result[f"{name} kernels"] = _kernels(calls[name], 1)


def _error(found: Any, expected: Any) -> float:
    """The largest difference, as a part of the scale of what is expected."""
    pairs = zip(_tensors(found), _tensors(expected), strict=True)
    worst = 0.0
    for one, two in pairs:
        if one.shape != two.shape or one.dtype != two.dtype:
            return math.inf
        scale = two.abs().max().item() if two.numel() else 0.0
        gap = (one.to(two.dtype) - two).abs().max().item() if two.numel() else 0.0
        worst = max(worst, gap / max(scale, 1e-6)) if not math.isnan(gap) else math.inf
    return worst


def _tensors(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    return [t for v in value for t in _tensors(v)] if isinstance(value, tuple | list) else []


def _work(options: argparse.Namespace) -> None:
    def late(*_: Any) -> None:
        raise TimeoutError(f"more than {LIMIT} s")

    warnings.simplefilter("ignore")
    signal.signal(signal.SIGALRM, late)
    problems = _problems(options.checkout, options.levels)
    while path := _next(options.out, problems):
        if options.only and not any(name in str(path) for name in options.only.split(",")):
            continue
        problem = Problem(
            path, getattr(torch, options.dtype), options.systems.split(","), options.rounds
        )
        signal.alarm(LIMIT)
        try:
            result = problem.run(options.out)
        except Exception as error:
            result = {**problem.result, "failed": f"{type(error).__name__}: {error}"[:400]}
        signal.alarm(0)
        del problem
        gc.collect()
        torch.cuda.empty_cache()
        with _locked(options.out / "results.jsonl") as file:
            file.write(json.dumps(result) + "\n")


def _all(options: argparse.Namespace) -> None:
    command = [sys.executable, "-m", __spec__.name, *sys.argv[1:], "--worker"]
    environment = {**os.environ, "TORCHINDUCTOR_COMPILE_THREADS": "1"}
    until = time.time() + options.limit
    with open(options.out / "errors.txt", "a") as errors:
        workers = [
            subprocess.Popen(command, stderr=errors, env=environment) for _ in range(options.jobs)
        ]
        while time.time() < until and any(w.poll() is None for w in workers):
            time.sleep(0.2)
        for worker in workers:
            worker.kill()


def _geomean(values: list[float]) -> float:
    return math.exp(sum(map(math.log, values)) / len(values)) if values else math.nan


def report(out: Path, systems: list[str], dtype: str) -> None:
    rows = [json.loads(line) for line in (out / "results.jsonl").read_text().splitlines()]
    bound = 1e-4 if dtype == "float32" else 1e-2
    own, peers = systems[-1], systems[:-1]
    for row in sorted(rows, key=lambda r: str(r["problem"])):
        cells = [f"{row[f'{s} ms']:9.4f}" if f"{s} ms" in row else "        -" for s in systems]
        ratios = [row.get(f"{s} ms", math.nan) / row.get(f"{own} ms", math.nan) for s in peers]
        wrong = [s for s in systems if row.get(f"{s} error", 0.0) > bound]
        why = [f"{k}: {v}"[:150] for k, v in row.items() if k.endswith("failed")]
        print(
            f"{row['problem'][:60]:60}", *cells, *(f"{r:5.2f}" for r in ratios), wrong or "", *why
        )
    for level in sorted({r["problem"].split("/")[0] for r in rows}):
        here = [r for r in rows if r["problem"].startswith(level) and f"{own} ms" in r]
        for peer in peers:
            found = [r[f"{peer} ms"] / r[f"{own} ms"] for r in here if f"{peer} ms" in r]
            low = sum(f < 0.95 for f in found)
            text = f"geomean {_geomean(found):.3f} of {len(found)}, {low} below 0.95"
            print(f"{level}: {peer} / {own}: {text}")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("checkout", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--levels", default="1,2")
    parser.add_argument("--only", help="parts of paths, between commas")
    parser.add_argument("--systems", default="eager,tc,ours", help="the last one is compared")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--jobs", type=int, default=8)
    parser.add_argument("--limit", type=float, default=540.0)
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    if options.worker:
        _work(options)
        return
    _all(options)
    report(options.out, options.systems.split(","), options.dtype)


if __name__ == "__main__":
    main()
