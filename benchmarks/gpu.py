"""Fused kernels and a BERT forward on a GPU: right or wrong against eager and float64, and timed
beside eager and torch.compile.

    python -m benchmarks.gpu --out DIR            from the root of the repository, with dynfix
    importable python -m benchmarks.gpu --out DIR --dry      the same code on CPU tensors in
    Triton's interpreter, tiny sizes

Each case runs in a process of its own under a time limit; what fails stands in the table with its
error. Times are medians of CUDA events around one call, the L2 cache flushed before it and the call
enqueued while the GPU is still busy, so that launch costs of the host stay out; `host_us` is what a
call costs the host.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path

import torch

from . import gpu_kernels

PEAK = 4270.0  # GB/s that a copy reaches on an H200
REPEATS = 30
LIMIT = 350.0  # seconds for everything
SYSTEMS = ("eager", "dynfix", "torch.compile", "dynfix max-autotune", "torch.compile max-autotune")
BERT = {"bert": "sdpa", "bert-eager-attention": "eager", "bert max-autotune": "sdpa"}
PLAN = (*gpu_kernels.CASES, *BERT)


# ---- the systems


def _dynfix(tune: bool) -> Callable[[Callable, list, bool], Callable]:
    """The public API; a function that would stay in eager is an error here."""

    def make(fn: Callable, inputs: list, dry: bool) -> Callable:
        import dynfix
        from dynfix.runtime.diagnostics import DynfixWarning

        warnings.simplefilter("error", DynfixWarning)
        options = {"strict": True, "max_autotune": tune, **({"target": "triton"} if dry else {})}
        return dynfix.compile(fn, fullgraph=True, dynamic=False, options=options)

    return make


def _inductor(mode: str | None) -> Callable[[Callable, list, bool], Callable]:
    def make(fn: Callable, inputs: list, dry: bool) -> Callable:
        torch._dynamo.reset()
        return torch.compile(fn, mode=mode, dynamic=False)

    return make


MAKERS: dict[str, Callable[[Callable, list, bool], Callable]] = {
    "eager": lambda fn, inputs, dry: fn,
    "dynfix": _dynfix(False),
    "dynfix max-autotune": _dynfix(True),
    "torch.compile": _inductor(None),
    "torch.compile max-autotune": _inductor("max-autotune-no-cudagraphs"),
}


# ---- measuring


def _flush() -> torch.Tensor:
    return torch.empty(256 << 20, dtype=torch.uint8, device="cuda")


def gpu_ms(call: Callable[[], object], cache: torch.Tensor, host: float = 250.0) -> float:
    """Median milliseconds of the GPU for one call, for which the host needs `host` microseconds."""
    times = []
    for _ in range(REPEATS):
        cache.zero_()
        torch.cuda._sleep(
            int(host * 4000)
        )  # cycles, about twice `host`: the host enqueues the call meanwhile
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        call()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end))
    return sorted(times)[len(times) // 2]


def host_us(call: Callable[[], object], repeats: int) -> float:
    """Microseconds that the host needs for a call, the device's work left out (it only queues
    up)."""
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(repeats):
        call()
    spent = time.perf_counter() - start
    torch.cuda.synchronize()
    return spent / repeats * 1e6


def wall_ms(call: Callable[[], object], repeats: int) -> float:
    """Median milliseconds from the call to its results, by the host's clock."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        times.append((time.perf_counter() - start) * 1e3)
    return sorted(times)[len(times) // 2]


def leaves(result: object) -> list[torch.Tensor]:
    return list(result) if isinstance(result, tuple | list) else [result]  # type: ignore[list-item]


def error(found: object, exact: list[torch.Tensor]) -> float:
    """Largest absolute difference from the float64 results; infinite if NaN stands on one side
    alone."""
    worst = 0.0
    for one, two in zip(leaves(found), exact, strict=True):
        difference = (one.double() - two).abs()
        wrong = one.isnan() != two.isnan()
        worst = max(worst, float("inf") if wrong.any() else difference.nan_to_num(0.0).max().item())
    return worst


# ---- one case


class Child:
    """Runs one case for every system and appends one JSON line a result."""

    def __init__(self, case: str, out: Path, dry: bool) -> None:
        self.case, self.out, self.dry = case, out, dry
        self.device = torch.device("cpu" if dry else "cuda")
        self.cache = None if dry else _flush()

    def run(self) -> None:
        if self.case.startswith("bert"):
            systems = SYSTEMS[3:] if "max" in self.case else SYSTEMS[:3]
            with torch.no_grad():
                self._bert(systems)
            return
        for dtype in (torch.bfloat16, torch.float32):
            self._kernel(gpu_kernels.CASES[self.case], dtype)

    def _kernel(self, case: gpu_kernels.Case, dtype: torch.dtype) -> None:
        inputs = case.inputs(dtype, self.device, self.dry)
        exact = leaves((case.exact or case.fn)(*(t.double() for t in inputs)))
        reference = error(case.fn(*inputs), exact)
        for system in SYSTEMS:
            self._result(system, dtype, case.fn, inputs, exact, reference, case.bytes(inputs))

    def _bert(self, systems: tuple[str, ...]) -> None:
        dtype = torch.bfloat16
        model, ids, mask = gpu_kernels.bert(BERT[self.case], self.dry, dtype, self.device)
        last = gpu_kernels.LastHidden(model)
        eager = last(ids, mask)
        exact = [last.double()(ids, mask)]
        last.to(dtype)
        reference = error(eager, exact)
        for system in systems:
            self._result(system, dtype, last, [ids, mask], exact, reference, 0)

    def _result(self, system, dtype, fn, inputs, exact, reference, moved) -> None:
        if self.dry and system.startswith("torch.compile"):
            return
        row = {
            "case": self.case.split()[0],
            "dtype": str(dtype).removeprefix("torch."),
            "system": system,
            "ok": False,
        }
        try:
            row |= self._measure(MAKERS[system], fn, inputs, exact, reference, moved)
        except Exception as problem:  # what failed is a result of the benchmark
            row["error"] = f"{type(problem).__name__}: {problem}"[:600]
            row["trace"] = traceback.format_exc()[-3000:]
        self._write(row)

    def _measure(self, make, fn, inputs, exact, reference, moved) -> dict:
        start = time.perf_counter()
        call = make(fn, inputs, self.dry)
        found = call(*inputs)
        if not self.dry:
            torch.cuda.synchronize()
        row: dict = {"first_call_s": time.perf_counter() - start}
        for _ in range(2):  # the second and third call may take another path than the first
            found = call(*inputs)
        row["max_error"], row["eager_error"] = error(found, exact), reference
        row["ok"] = row["max_error"] <= 2 * reference + 1e-6 * max(
            t.abs().max().item() for t in exact
        )
        if not row["ok"]:
            row["error"] = f"largest error {row['max_error']:.3g}, eager's {reference:.3g}"
        return row | self._times(lambda: call(*inputs), moved)

    def _times(self, call: Callable[[], object], moved: int) -> dict:
        if self.cache is None:
            return {"wall_ms": wall_ms(call, 1)}
        host = host_us(
            call, 50 if moved else 3
        )  # more calls of a whole model would fill the launch queue
        row: dict = {
            "ms": gpu_ms(call, self.cache, max(host, 250.0)),
            "host_us": host,
            "wall_ms": wall_ms(call, REPEATS),
        }
        if moved:
            row["gbps"] = moved / row["ms"] / 1e6
            row["percent"] = 100 * row["gbps"] / PEAK
        return row

    def _write(self, row: dict) -> None:
        with open(self.out / "gpu.jsonl", "a") as file:
            file.write(json.dumps(row) + "\n")
        print(line(row), flush=True)


# ---- the table


def line(row: dict) -> str:
    def number(key: str, form: str) -> str:
        return format(row[key], form) if row.get(key) is not None else "-"

    left = f"{row['case']:<20} {row['dtype']:<9} {row['system']:<27}"
    times = (
        f"{number('ms', '9.4f'):>9} {number('wall_ms', '9.3f'):>9} {number('host_us', '7.1f'):>8}"
    )
    speed = f"{number('gbps', '7.0f'):>7} {number('percent', '5.1f'):>6}"
    checks = (
        f"{number('max_error', '.2e'):>9} {number('eager_error', '.2e'):>9}"
        f" {number('first_call_s', '6.1f'):>7}"
    )
    verdict = "ok" if row["ok"] else "FAILED " + row.get("error", "")[:160].replace("\n", " ")
    return f"{left} {times} {speed} {checks}  {verdict}"


HEAD = (
    f"{'case':<20} {'dtype':<9} {'system':<27} {'ms':>9} {'wall ms':>9} {'host us':>8} {'GB/s':>7}"
    f" {'% peak':>6} {'error':>9} {'eager':>9} {'first s':>7}"
)


def rows(out: Path) -> list[dict]:
    path = out / "gpu.jsonl"
    return [json.loads(text) for text in path.read_text().splitlines()] if path.exists() else []


def report(out: Path, facts: dict, problems: list[str]) -> None:
    found = rows(out)
    (out / "gpu.json").write_text(
        json.dumps({"machine": facts, "results": found, "problems": problems}, indent=1)
    )
    text = [f"{key}: {value}" for key, value in facts.items()]
    text += ["", HEAD, *map(line, found), "", *problems]
    (out / "gpu.txt").write_text("\n".join(text) + "\n")


def machine(dry: bool) -> dict:
    """What the figures were taken on, the copy bandwidth included."""
    import triton

    facts = {
        "python": sys.version.split()[0],
        "torch": torch.__version__,
        "triton": triton.__version__,
    }
    if dry:
        return facts | {"device": "CPU, Triton's interpreter"}
    source = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    ms = gpu_ms(lambda: target.copy_(source), _flush())
    return facts | {
        "device": torch.cuda.get_device_name(),
        "copy GB/s": round(2 * source.numel() / ms / 1e6),
    }


# ---- the parent


def spawn(case: str, out: Path, dry: bool, seconds: float) -> str | None:
    """Run a case in a process of its own; what went wrong with the process, or None."""
    environment = {**os.environ, **({"TRITON_INTERPRET": "1"} if dry else {})}
    command = [
        sys.executable,
        "-m",
        "benchmarks.gpu",
        "--case",
        case,
        "--out",
        str(out),
        *(["--dry"] if dry else []),
    ]
    try:
        done = subprocess.run(
            command, env=environment, timeout=seconds, stderr=subprocess.PIPE, text=True
        )
    except subprocess.TimeoutExpired:
        return f"{case}: stopped after {seconds:.0f} s"
    return (
        None if done.returncode == 0 else f"{case}: exit {done.returncode}: {done.stderr[-1500:]}"
    )


def main(argv: list[str] | None = None) -> int:
    """Exit status 1 if any result of ours is missing or wrong."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument(
        "--dry", action="store_true", help="CPU tensors, Triton's interpreter, tiny sizes"
    )
    parser.add_argument("--case", choices=PLAN, help="run one case in this process")
    parser.add_argument("--only", nargs="*", choices=PLAN, default=PLAN, help="cases to run")
    parser.add_argument("--limit", type=float, default=LIMIT, help="seconds for everything")
    args = parser.parse_args(argv)
    args.out.mkdir(parents=True, exist_ok=True)
    if args.case:
        Child(args.case, args.out, args.dry).run()
        return 0
    return parent(args)


def parent(args: argparse.Namespace) -> int:
    start = time.monotonic()
    (args.out / "gpu.jsonl").unlink(missing_ok=True)
    facts, problems = machine(args.dry), []
    print(HEAD, flush=True)
    for case in args.only:
        left = args.limit - (time.monotonic() - start)
        if args.dry and case == "bert max-autotune":
            continue
        trouble = (
            spawn(case, args.out, args.dry, min(left, 300.0 if args.dry else 120.0))
            if left > 15
            else f"{case}: no time left"
        )
        problems += [trouble] if trouble else []
        report(args.out, facts, problems)
    print("\n".join([f"{key}: {value}" for key, value in facts.items()] + problems))
    ours = [row for row in rows(args.out) if row["system"].startswith("dynfix")]
    return 0 if ours and all(row["ok"] for row in ours) and not problems else 1


if __name__ == "__main__":
    sys.exit(main())
