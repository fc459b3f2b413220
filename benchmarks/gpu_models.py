"""Whole models on a GPU beside eager and torch.compile, in every mode: milliseconds with the host,
medians of interleaved rounds, peak memory above what stood before the call, seconds of the first
call.

    python -m benchmarks.gpu_models --out DIR [--only bert,gpt2] [--kinds infer,train] [--jobs N]

Each row runs in a process of its own: they compile side by side, and are timed one after the other
while the others are stopped. Ratios are torch.compile's time in the same mode over ours.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import json
import math
import os
import signal
import statistics
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch

from .gpu_model_cases import MODELS
from .interleave import interleaved

SYSTEMS = ("eager", "tc", "tc-ro", "ours", "ours-ro")


def system(name: str, model: torch.nn.Module) -> Callable:
    import dynfix

    kind, _, mode = name.partition("-")
    mode = "reduce-overhead" if mode else None
    if kind == "eager":
        return model
    return torch.compile(model, mode=mode) if kind == "tc" else dynfix.compile(model, mode=mode)


def _loss(out: object) -> torch.Tensor:
    return (
        out.loss if getattr(out, "loss", None) is not None else _main(out).float().square().mean()
    )


def _main(out: object) -> torch.Tensor:
    if isinstance(out, torch.Tensor):
        return out
    return out.logits if hasattr(out, "logits") else out.logits_per_image  # type: ignore


@contextlib.contextmanager
def _alone(out: Path) -> Iterator[None]:
    """The machine for this process: those of the other rows are stopped meanwhile."""
    with open(out / "lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        others = [int(p.name) for p in (out / "running").iterdir() if int(p.name) != os.getpid()]
        _signal(others, signal.SIGSTOP)
        time.sleep(0.3)  # what they have queued on the GPU
        try:
            yield
        finally:
            _signal(others, signal.SIGCONT)


def _signal(groups: list[int], number: int) -> None:
    for group in groups:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(group, number)


def prepared(
    name: str, train: bool
) -> tuple[torch.nn.Module, tuple[torch.Tensor, ...], dict[str, torch.Tensor]]:
    torch.manual_seed(0)
    model, args, named = MODELS[name]()
    model = model.cuda()
    if train:
        return model.train(), args, named
    model.eval().to(torch.bfloat16)
    args = tuple(a.to(torch.bfloat16) for a in args)
    named = {k: v for k, v in named.items() if k not in {"labels", "return_loss"}}
    named = {k: v.to(torch.bfloat16) if v.is_floating_point() else v for k, v in named.items()}
    return model, args, named


def case(name: str, train: bool, rounds: int, out: Path) -> dict:
    """The row of one model."""
    model, args, named = prepared(name, train)
    row: dict = {"model": name, "train": train}
    steps: dict[str, Callable[[], object]] = {}
    reference: list[torch.Tensor] = []
    for which in SYSTEMS:
        try:
            make = train_step if train else infer_step
            step = make(system(which, model), model, args, named)
            row.update({f"{which} {key}": v for key, v in _first_calls(step, reference).items()})
            steps[which] = _synced(step)
        except Exception as problem:
            row[f"{which} problem"] = f"{type(problem).__name__}: {problem}"[:500]
            traceback.print_exc()
    with _alone(out):
        for which, times in interleaved(steps, rounds).items():
            row[f"{which} ms"] = times.median * 1e3
    profiles = {which: _profile(step) for which, step in steps.items() if "ro" not in which}
    with open(out / "profiles.txt", "a") as file:
        for which, text in profiles.items():
            file.write(f"==== {name} {'train' if train else 'infer'} {which}\n{text}\n")
    return row


def _first_calls(step: Callable[[], torch.Tensor], reference: list[torch.Tensor]) -> dict:
    start = time.perf_counter()
    step()
    torch.cuda.synchronize()
    row = {"first_s": time.perf_counter() - start}
    for _ in range(4):
        step()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    found = step()
    torch.cuda.synchronize()
    row["peak_gb"], row["before_gb"] = torch.cuda.max_memory_allocated() / 1e9, before / 1e9
    reference.append(found.clone())
    row["error"] = (found.float() - reference[0].float()).abs().max().item()
    torch.cuda.empty_cache()
    return row


def _synced(step: Callable[[], object]) -> Callable[[], object]:
    def run() -> None:
        step()
        torch.cuda.synchronize()

    return run


def _profile(step: Callable[[], object]) -> str:
    """The kernels of one step by the time that they take on the device."""
    torch.cuda.synchronize()
    kinds = [torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=kinds) as profile:
        step()
    events = [e for e in profile.key_averages() if e.self_device_time_total]
    events.sort(key=lambda e: -e.self_device_time_total)
    whole = sum(e.self_device_time_total for e in events)
    lines = [f"{whole:9.0f} us in {sum(e.count for e in events)} kernels"]
    lines += [f"{e.self_device_time_total:9.0f} {e.count:5d} {e.key[:110]}" for e in events[:28]]
    return "\n".join(lines)


def infer_step(
    call: Callable, model: torch.nn.Module, args: tuple, named: dict
) -> Callable[[], torch.Tensor]:
    def step() -> torch.Tensor:
        with torch.no_grad():
            return _main(call(*args, **named))

    return step


def train_step(
    call: Callable, model: torch.nn.Module, args: tuple, named: dict
) -> Callable[[], torch.Tensor]:
    def step() -> torch.Tensor:
        model.zero_grad(set_to_none=True)
        with torch.autocast("cuda", torch.bfloat16):
            loss = _loss(call(*args, **named))
        loss.backward()
        return loss.detach()

    return step


def line(row: dict) -> str:
    def ms(which: str) -> str:
        return f"{row[f'{which} ms']:8.2f}" if f"{which} ms" in row else "  failed"

    kind = "train" if row["train"] else "infer"
    times = " ".join(ms(which) for which in SYSTEMS)
    first = " ".join(f"{row.get(f'{which} first_s', float('nan')):6.1f}" for which in SYSTEMS)
    peaks = {w: row.get(f"{w} peak_gb", math.nan) - row.get(f"{w} before_gb", 0) for w in SYSTEMS}
    peak = " ".join(f"{peaks[which]:6.2f}" for which in SYSTEMS)
    error = " ".join(f"{row.get(f'{which} error', float('nan')):8.1e}" for which in SYSTEMS)
    return f"{row['model']:<13}{kind:<6} ms {times} | first s {first} | GB {peak} | error {error}"


def _row(options: argparse.Namespace) -> None:
    mark = options.out / "running" / str(os.getpid())
    mark.touch()
    try:
        row = case(options.case, options.train, options.rounds, options.out)
    finally:
        mark.unlink()
    with open(options.out / "models.jsonl", "a") as file:
        file.write(json.dumps(row) + "\n")
    print(line(row), flush=True)


def _run(name: str, train: bool, options: argparse.Namespace, until: float) -> None:
    left = until - time.time()
    if left < 20:
        print(f"{name}: no time left", flush=True)
        return
    command = [sys.executable, "-m", "benchmarks.gpu_models", "--case", name]
    command += ["--out", str(options.out), "--rounds", str(options.rounds)]
    command += ["--train"] * train
    with open(options.out / "errors.txt", "a") as errors:
        child = subprocess.Popen(command, stderr=errors, start_new_session=True)
        try:
            child.wait(left)
        except subprocess.TimeoutExpired:
            print(f"{name}: stopped after {left:.0f} s", flush=True)
            _signal([child.pid], signal.SIGKILL)


def summary(rows: list[dict]) -> list[str]:
    """Geometric means of the rows' ratios, by kind and mode."""
    lines = []
    for train in (False, True):
        for peer, ours in (("tc", "ours"), ("tc-ro", "ours-ro"), ("eager", "ours")):
            ratios = [
                row[f"{peer} ms"] / row[f"{ours} ms"]
                for row in rows
                if row["train"] == train and f"{peer} ms" in row and f"{ours} ms" in row
            ]
            if ratios:
                mean = math.exp(statistics.fmean(map(math.log, ratios)))
                kind = "training" if train else "inference"
                lines.append(
                    f"{kind}, {peer} / {ours}: geometric mean {mean:.3f}, least {min(ratios):.3f}"
                )
    return lines


def with_native_parts() -> None:
    """Build the extensions that check guards and hold autograd nodes, which a machine's first
    compiled functions build beside their first calls: what is timed is what follows."""
    from dynfix.runtime import build, torch_headers

    build.build_extension("guard", **torch_headers.torch_flags())
    torch_headers.load()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", default=",".join(MODELS))
    parser.add_argument("--kinds", default="infer,train")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--jobs", type=int, default=1, help="rows that compile side by side")
    parser.add_argument("--limit", type=float, default=500.0)
    parser.add_argument("--case")
    parser.add_argument("--train", action="store_true", help="of --case")
    options = parser.parse_args()
    (options.out / "running").mkdir(parents=True, exist_ok=True)
    if options.case:
        _row(options)
        return
    with_native_parts()
    print("columns: " + ", ".join(SYSTEMS), flush=True)
    until = time.time() + options.limit
    rows = [
        (name, kind == "train")
        for name in options.only.split(",")
        for kind in options.kinds.split(",")
    ]
    with ThreadPoolExecutor(options.jobs) as pool:
        list(pool.map(lambda row: _run(*row, options, until), rows))
    found = options.out / "models.jsonl"
    if found.exists():
        print("\n".join(summary([json.loads(text) for text in found.read_text().splitlines()])))


if __name__ == "__main__":
    main()
