"""Peak memory of training steps on a GPU, each system in a process of its own: of the first step,
which records and compiles, and of the fifth.

    python -m benchmarks.gpu_memory --out DIR [--only bert,llama] [--systems eager,tc,ours]
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

import torch

from .gpu_model_cases import MODELS
from .gpu_models import system, train_step


def peaks(name: str, which: str) -> dict[str, float]:
    """Bytes at most in the first step and in the fifth, and what stands before each."""
    torch.manual_seed(0)
    model, args, named = MODELS[name]()
    step = train_step(system(which, model.cuda().train()), model, args, named)
    found = {}
    for call in range(5):
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        step()
        torch.cuda.synchronize()
        if call in (0, 4):
            key = "steady" if call else "first"
            found[key], found[f"{key} before"] = torch.cuda.max_memory_allocated(), before
    return found


def _in_process(name: str, which: str) -> dict[str, float]:
    command = [sys.executable, "-m", __spec__.name, "--case", f"{name},{which}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    if done.returncode:
        print(done.stderr[-3000:], file=sys.stderr, flush=True)
        return {}
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", default="bert,gpt2,llama,vit,resnet50,swin")
    parser.add_argument("--systems", default="eager,tc,ours")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--case", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.case:
        print(json.dumps(peaks(*options.case.split(","))))
        return
    rows = {}
    for name in options.only.split(","):
        rows[name] = {which: _in_process(name, which) for which in options.systems.split(",")}
        for which, row in rows[name].items():
            text = " ".join(f"{key} {value / 2**20:.0f}" for key, value in row.items())
            print(f"{name:<9}{which:<6} MiB: {text}", flush=True)
    if options.out:
        (options.out / "gpu_memory.json").write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
