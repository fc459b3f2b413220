"""Cold and warm starts of a 4-layer Llama: processor seconds of a fresh process from the made model
to the end of its second call, dynfix.compile and torch.compile.

    python benchmarks/start.py [--rounds N] [--what forward training]

Cold: with an empty cache folder. Warm: the same program once more. Seconds are the process's and
its compilers' (user and system), without importing torch and transformers and making the model;
`parts` splits dynfix's. Compilers work one at a time (TORCHINDUCTOR_COMPILE_THREADS=1), since
seconds of workers that outlive the measurement would be missed.
"""

import argparse
import compileall
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

COMPILERS = ("dynfix", "torch")


def processor() -> float:
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def started(compiler: str, what: str) -> dict[str, float]:
    """In the process that is measured: seconds of loading the compiler, and of two calls."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.set_num_threads(1)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=1024,
        hidden_size=256,
        intermediate_size=688,
        num_hidden_layers=4,
        num_attention_heads=8,
        num_key_value_heads=4,
        max_position_embeddings=512,
        use_cache=False,
    )
    model = LlamaForCausalLM(config)
    tokens = torch.randint(1024, (4, 64))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3) if what == "training" else None
    marks = [(processor(), time.perf_counter())]
    if compiler == "dynfix":
        import dynfix

        compiled = dynfix.compile(model)
    else:
        compiled = torch.compile(model)
    marks.append((processor(), time.perf_counter()))
    for _ in range(2):
        _step(compiled, tokens, optimizer)
        marks.append((processor(), time.perf_counter()))
    names = ("load", "first", "second")
    found = {n: b[0] - a[0] for n, a, b in zip(names, marks, marks[1:], strict=False)}
    return found | {"all": marks[-1][0] - marks[0][0], "clock": marks[-1][1] - marks[0][1]}


def _step(compiled, tokens, optimizer) -> None:
    import torch

    if optimizer is None:
        with torch.no_grad():
            compiled(input_ids=tokens)
        return
    optimizer.zero_grad()
    compiled(input_ids=tokens, labels=tokens).loss.backward()
    optimizer.step()


def process(compiler: str, what: str, folder: str) -> dict[str, float]:
    environment = {
        **os.environ,
        "DYNFIX_CACHE_DIR": os.path.join(folder, "dynfix"),
        "TORCHINDUCTOR_CACHE_DIR": os.path.join(folder, "inductor"),
        "TORCHINDUCTOR_COMPILE_THREADS": "1",
    }
    command = [sys.executable, __file__, "--one", compiler, "--what", what]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(done.stderr)
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--what", nargs="*", default=["forward", "training"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--compilers", nargs="*", default=list(COMPILERS))
    parser.add_argument("--one", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        print(json.dumps(started(arguments.one, arguments.what[0])))
        return
    # as an installed package is; a checkout's modules would be compiled by each process
    package = Path(importlib.util.find_spec("dynfix").origin).parent
    for part in ("rewriter", "lowering", "runtime"):
        compileall.compile_dir(package / part, quiet=2)
    for what in arguments.what:
        print_rows(what, arguments.compilers, arguments.rounds)


def print_rows(what: str, compilers: list[str], rounds: int) -> None:
    seconds: dict[tuple[str, str], list[dict[str, float]]] = {}
    for _ in range(rounds):
        for compiler in compilers:
            with tempfile.TemporaryDirectory() as folder:
                for state in ("cold", "warm"):
                    found = process(compiler, what, folder)
                    seconds.setdefault((state, compiler), []).append(found)
    for (state, compiler), runs in sorted(seconds.items()):
        middle = {name: statistics.median(run[name] for run in runs) for name in runs[0]}
        parts = ", ".join(f"{name} {value:.2f}" for name, value in middle.items())
        print(f"{what}, {state}, {compiler}: {parts}", flush=True)


if __name__ == "__main__":
    main()
