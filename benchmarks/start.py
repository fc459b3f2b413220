"""Cold and warm starts of small models (Llama of 4 layers, BERT, T5): processor seconds of a fresh
process from the made model to the end of its second call, dynfix.compile and torch.compile.

    python benchmarks/start.py [--rounds N] [--what forward training step] [--models llama bert t5]

`--what step`: forward, loss, backward and AdamW in one function given to dynfix.compile, to the end
of the third call (the first makes the optimizer's state); torch.compile is given the model and the
optimizer's step. `--layers N` instead of 4. `--backend aot_eager`: capture and AOTAutograd alone,
without kernels.

Cold: with an empty cache folder. Warm: the same program once more. Seconds are the process's and
its compilers' (user and system), without importing torch and transformers and making the model;
of them `build` are the C++ compiler's. Compilers work one at a time
(TORCHINDUCTOR_COMPILE_THREADS=1), since seconds of workers that outlive the measurement would be
missed.
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


def llama(layers):
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=1024,
        hidden_size=256,
        intermediate_size=688,
        num_hidden_layers=layers,
        num_attention_heads=8,
        num_key_value_heads=4,
        max_position_embeddings=512,
        use_cache=False,
    )
    return LlamaForCausalLM(config), {}


def bert(layers):
    from transformers import BertConfig, BertForMaskedLM

    config = BertConfig(
        vocab_size=1024,
        hidden_size=256,
        intermediate_size=1024,
        num_hidden_layers=layers,
        num_attention_heads=8,
        max_position_embeddings=512,
    )
    return BertForMaskedLM(config), {}


def t5(layers):
    import torch
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(
        vocab_size=1024,
        d_model=256,
        d_kv=32,
        d_ff=1024,
        num_layers=layers,
        num_heads=8,
        use_cache=False,
    )
    return T5ForConditionalGeneration(config), {
        "decoder_input_ids": torch.randint(1024, (4, 32)),
    }


MODELS = {"llama": llama, "bert": bert, "t5": t5}


def started(arguments: argparse.Namespace) -> dict[str, float]:
    """In the process that is measured: seconds of loading the compiler, and of each call."""
    import torch

    torch.set_num_threads(1)
    torch.manual_seed(0)
    what = arguments.what[0]
    model, given = MODELS[arguments.models[0]](arguments.layers)
    model.train(what != "forward")
    tokens = torch.randint(1024, (4, 64))
    given = {"input_ids": tokens, **given}
    if what != "forward":
        given["labels"] = given.get("decoder_input_ids", tokens)
    options = {} if arguments.backend is None else {"backend": arguments.backend}
    marks = [(processor(), time.perf_counter())]
    if arguments.one == "dynfix":
        from dynfix import compile as compiler
    else:
        from torch import compile as compiler
    whole = what == "step" and arguments.one == "dynfix"
    call = CALLS[what](model if whole else compiler(model, **options), given, compiler)
    call = compiler(call, **options) if whole else call
    marks.append((processor(), time.perf_counter()))
    names = ("load", "first", "second", "third")[: 4 if what == "step" else 3]
    for _ in names[1:]:
        call()
        marks.append((processor(), time.perf_counter()))
    found = {n: b[0] - a[0] for n, a, b in zip(names, marks, marks[1:], strict=False)}
    times = os.times()
    found |= {"build": times.children_user + times.children_system}
    return found | {"all": marks[-1][0] - marks[0][0], "clock": marks[-1][1] - marks[0][1]}


def forward(model, given, compiler):
    import torch

    @torch.no_grad()
    def call():
        model(**given)

    return call


def training(model, given, compiler):
    import torch

    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    def call():
        optimizer.zero_grad()
        model(**given).loss.backward()
        optimizer.step()

    return call


def step(model, given, compiler):
    import torch

    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    update = optimizer.step
    if compiler is torch.compile:
        update = compiler(update)

    def call():
        loss = model(**given).loss
        loss.backward()
        update()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    return call


CALLS = {"forward": forward, "training": training, "step": step}


def process(compiler: str, folder: str, options: list[str]) -> dict[str, float]:
    environment = {
        **os.environ,
        "DYNFIX_CACHE_DIR": os.path.join(folder, "dynfix"),
        "TORCHINDUCTOR_CACHE_DIR": os.path.join(folder, "inductor"),
        "TORCHINDUCTOR_COMPILE_THREADS": "1",
    }
    command = [sys.executable, __file__, "--one", compiler, *options]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(done.stderr)
    return json.loads(done.stdout.splitlines()[-1])


def as_installed() -> None:
    """Compile the package's modules, which each process would do for a checkout's."""
    package = Path(importlib.util.find_spec("dynfix").origin).parent
    for part in ("rewriter", "lowering", "runtime"):
        compileall.compile_dir(package / part, quiet=2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--what", nargs="*", choices=CALLS, default=[*CALLS])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--compilers", nargs="*", default=list(COMPILERS))
    parser.add_argument("--models", nargs="*", choices=MODELS, default=["llama"])
    parser.add_argument("--backend")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        print(json.dumps(started(arguments)))
        return
    as_installed()
    for model in arguments.models:
        for what in arguments.what:
            options = ["--models", model, "--what", what, "--layers", str(arguments.layers)]
            options += ["--backend", arguments.backend] if arguments.backend else []
            print_rows(f"{model} {what}", arguments.compilers, arguments.rounds, options)


def print_rows(title: str, compilers: list[str], rounds: int, options: list[str]) -> None:
    seconds: dict[tuple[str, str], list[dict[str, float]]] = {}
    for _ in range(rounds):
        for compiler in compilers:
            with tempfile.TemporaryDirectory() as folder:
                for state in ("cold", "warm"):
                    found = process(compiler, folder, options)
                    seconds.setdefault((state, compiler), []).append(found)
    for (state, compiler), runs in sorted(seconds.items()):
        middle = {name: statistics.median(run[name] for run in runs) for name in runs[0]}
        parts = ", ".join(f"{name} {value:.2f}" for name, value in middle.items())
        print(f"{title}, {state}, {compiler}: {parts}", flush=True)


if __name__ == "__main__":
    main()
