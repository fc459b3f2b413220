"""Cold and warm starts on a GPU: seconds from the made model to the end of its second call, in a
fresh process with an empty cache folder (cold) and with what that process left (warm), dynfix and
torch.compile in the same mode.

    python -m benchmarks.gpu_start [--only llama,resnet50] [--kinds infer,train]
                                   [--modes default,max-autotune]

Importing torch and making the model do not count; compilers may use all cores.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch

from .gpu_model_cases import MODELS
from .gpu_models import infer_step, prepared, train_step
from .start import as_installed

COMPILERS = "dynfix", "torch"
CALLS = 2


def started(name: str, compiler: str, mode: str, train: bool) -> float:
    model, args, named = prepared(name, train)
    torch.cuda.synchronize()
    start = time.perf_counter()
    made = _compiler(compiler)(model, mode=None if mode == "default" else mode)
    step = (train_step if train else infer_step)(made, model, args, named)
    for _ in range(CALLS):
        step()
    torch.cuda.synchronize()
    return time.perf_counter() - start


def _compiler(name: str) -> Callable[..., Callable[..., object]]:
    if name == "torch":
        return torch.compile
    import dynfix

    return dynfix.compile


def _process(folder: Path, arguments: list[str]) -> float | None:
    caches = {"DYNFIX_CACHE_DIR": "dynfix", "TORCHINDUCTOR_CACHE_DIR": "inductor"}
    caches["TRITON_CACHE_DIR"] = "triton"
    environment = {**os.environ, **{key: str(folder / name) for key, name in caches.items()}}
    command = [sys.executable, "-m", "benchmarks.gpu_start", "--one", *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        print(done.stderr[-2000:], file=sys.stderr)
        return None
    return float(json.loads(done.stdout.splitlines()[-1]))


def row(name: str, kind: str, mode: str, compilers: list[str]) -> None:
    found: dict[str, float | None] = {}
    for compiler in compilers:
        with tempfile.TemporaryDirectory() as folder:
            for temperature in ("cold", "warm"):
                found[f"{compiler} {temperature}"] = _process(
                    Path(folder), [name, compiler, mode, kind]
                )
    texts = [f"{key} {value:.2f}" if value else f"{key} failed" for key, value in found.items()]
    for temperature in ("cold", "warm"):
        ours, theirs = (found.get(f"{compiler} {temperature}") for compiler in COMPILERS)
        if ours and theirs:
            texts.append(f"{temperature} ratio {ours / theirs:.2f}")
    print(f"{name} {kind} {mode}: {', '.join(texts)}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="llama", help=f"of {', '.join(MODELS)}")
    parser.add_argument("--kinds", default="infer,train")
    parser.add_argument("--modes", default="default,max-autotune")
    parser.add_argument("--compilers", default=",".join(COMPILERS))
    parser.add_argument("--one", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        name, compiler, mode, kind = options.one
        print(json.dumps(started(name, compiler, mode, kind == "train")))
        return
    as_installed()
    for name in options.only.split(","):
        for kind in options.kinds.split(","):
            for mode in options.modes.split(","):
                row(name, kind, mode, options.compilers.split(","))


if __name__ == "__main__":
    main()
