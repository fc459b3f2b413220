"""Whole models on a GPU beside eager and torch.compile, in every mode: milliseconds with the host,
medians of interleaved rounds, peak memory, the first call's seconds.

    python -m benchmarks.gpu_models --out DIR [--only bert,gpt2] [--train] [--limit SECONDS]

Each model runs in a process of its own. `ratio` is torch.compile's time in the same mode over ours.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

import torch

from .interleave import interleaved

SYSTEMS = ("eager", "tc", "tc-ro", "ours", "ours-ro")


def _text(name: str, batch: int, length: int) -> tuple[torch.nn.Module, tuple, dict]:
    import transformers as t

    made = {
        "bert": lambda: t.BertForMaskedLM(t.BertConfig()),
        "gpt2": lambda: t.GPT2LMHeadModel(t.GPT2Config(use_cache=False)),
        "llama": lambda: t.LlamaForCausalLM(
            t.LlamaConfig(
                hidden_size=1024,
                intermediate_size=2816,
                num_hidden_layers=12,
                num_attention_heads=16,
                num_key_value_heads=16,
                use_cache=False,
            )
        ),
        "t5": lambda: t.T5ForConditionalGeneration(t.T5Config(use_cache=False)),
    }[name]()
    vocabulary = made.config.vocab_size
    ids = torch.randint(vocabulary, (batch, length), device="cuda")
    named = {"input_ids": ids, "labels": ids}
    return made, (), named


def _image(name: str) -> tuple[torch.nn.Module, tuple, dict]:
    if name == "vit":
        import transformers as t

        x = torch.randn(32, 3, 224, 224, device="cuda")
        return t.ViTForImageClassification(t.ViTConfig()), (), {"pixel_values": x}
    import torchvision

    made = {
        "resnet50": torchvision.models.resnet50,
        "convnext": torchvision.models.convnext_tiny,
        "swin": torchvision.models.swin_t,
        "efficientnet": torchvision.models.efficientnet_b0,
    }[name]()
    return made, (torch.randn(32, 3, 224, 224, device="cuda"),), {}


MODELS: dict[str, Callable[[], tuple[torch.nn.Module, tuple, dict]]] = {
    "bert": lambda: _text("bert", 16, 512),
    "gpt2": lambda: _text("gpt2", 8, 512),
    "llama": lambda: _text("llama", 4, 1024),
    "t5": lambda: _text("t5", 8, 512),
    "vit": lambda: _image("vit"),
    "resnet50": lambda: _image("resnet50"),
    "convnext": lambda: _image("convnext"),
    "swin": lambda: _image("swin"),
    "efficientnet": lambda: _image("efficientnet"),
}


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
    return out if isinstance(out, torch.Tensor) else out.logits  # type: ignore[attr-defined]


def case(name: str, train: bool, rounds: int) -> dict:
    """The row of one model."""
    torch.manual_seed(0)
    model, args, named = MODELS[name]()
    model = model.cuda()
    if train:
        model.train()
    else:
        model.eval().to(torch.bfloat16)
        args = tuple(a.to(torch.bfloat16) for a in args)
        named = {k: v.to(torch.bfloat16) if v.is_floating_point() else v for k, v in named.items()}
        named.pop("labels", None)
    row: dict = {"model": name, "train": train}
    steps: dict[str, Callable[[], object]] = {}
    reference = None
    for which in SYSTEMS:
        torch._dynamo.reset()
        try:
            call = system(which, model)
            make = _train_step if train else _infer_step
            step = make(call, model, args, named)
            torch.cuda.reset_peak_memory_stats()
            start = time.perf_counter()
            found = step()
            torch.cuda.synchronize()
            row[f"{which} first_s"] = time.perf_counter() - start
            for _ in range(4):
                found = step()
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
            found = step()
            torch.cuda.synchronize()
            row[f"{which} peak_gb"] = torch.cuda.max_memory_allocated() / 1e9
            row[f"{which} before_gb"] = before / 1e9
            reference = found.clone() if reference is None else reference
            row[f"{which} error"] = (found.float() - reference.float()).abs().max().item()
            steps[which] = step
        except Exception as problem:
            row[f"{which} problem"] = f"{type(problem).__name__}: {problem}"[:500]
            traceback.print_exc()

    def synced(step: Callable[[], object]) -> Callable[[], object]:
        def run() -> None:
            step()
            torch.cuda.synchronize()

        return run

    for which, times in interleaved({k: synced(s) for k, s in steps.items()}, rounds).items():
        row[f"{which} ms"] = times.median * 1e3
    return row


def _infer_step(
    call: Callable, model: torch.nn.Module, args: tuple, named: dict
) -> Callable[[], torch.Tensor]:
    def step() -> torch.Tensor:
        with torch.no_grad():
            return _main(call(*args, **named))

    return step


def _train_step(
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
    peak = " ".join(f"{row.get(f'{which} peak_gb', float('nan')):6.2f}" for which in SYSTEMS)
    error = " ".join(f"{row.get(f'{which} error', float('nan')):8.1e}" for which in SYSTEMS)
    return f"{row['model']:<13}{kind:<6} ms {times} | first s {first} | GB {peak} | error {error}"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", default=",".join(MODELS))
    parser.add_argument("--train", action="store_true")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--limit", type=float, default=500.0)
    parser.add_argument("--case")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    if options.case:
        row = case(options.case, options.train, options.rounds)
        with open(options.out / "models.jsonl", "a") as file:
            file.write(json.dumps(row) + "\n")
        print(line(row), flush=True)
        return
    print("columns: " + ", ".join(SYSTEMS), flush=True)
    until = time.time() + options.limit
    for name in options.only.split(","):
        left = until - time.time()
        if left < 20:
            print(f"{name}: no time left", flush=True)
            continue
        command = [sys.executable, "-m", "benchmarks.gpu_models", "--case", name]
        command += ["--out", str(options.out), "--rounds", str(options.rounds)]
        command += ["--train"] * options.train
        with open(options.out / "errors.txt", "a") as errors:
            try:
                subprocess.run(command, timeout=left, stderr=errors)
            except subprocess.TimeoutExpired:
                print(f"{name}: stopped after {left:.0f} s", flush=True)


if __name__ == "__main__":
    main()
