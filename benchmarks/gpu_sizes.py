"""Sizes that change at every call, on a GPU: models at lengths that none of the systems has seen.

    python -m benchmarks.gpu_sizes --out DIR [--lengths N] [--train]

Milliseconds of a call with the host. Each system sees N lengths one after the other, then all of
them once more, which is timed: the systems in turn, the device awaited. (A length's first call pays
for memory and for the library's kernels, whichever system makes it.) "fixed" is dynfix at one of
the lengths, compiled for it alone.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch

from .gpu_models import with_native_parts


def model(name: str) -> tuple[torch.nn.Module, int]:
    import transformers as t

    if name == "bert":
        made: torch.nn.Module = t.BertForMaskedLM(t.BertConfig(num_hidden_layers=6))
        return made, 30522
    config = t.LlamaConfig(
        vocab_size=32000,
        hidden_size=768,
        intermediate_size=2048,
        num_hidden_layers=6,
        num_attention_heads=12,
        num_key_value_heads=12,
        use_cache=False,
    )
    return t.LlamaForCausalLM(config), 32000


def systems(made: torch.nn.Module) -> dict[str, Callable]:
    import dynfix

    return {
        "eager": made,
        "tc": torch.compile(made, dynamic=True),
        "ours": dynfix.compile(made),
    }


def _call(call: Callable, made: torch.nn.Module, ids: torch.Tensor, train: bool) -> torch.Tensor:
    if not train:
        with torch.no_grad():
            return call(input_ids=ids).logits
    made.zero_grad(set_to_none=True)
    with torch.autocast("cuda", torch.bfloat16):
        loss = call(input_ids=ids, labels=ids).loss
    loss.backward()
    return loss.detach()


def _timed(run: Callable[[], torch.Tensor]) -> tuple[float, torch.Tensor]:
    torch.cuda.synchronize()
    start = time.perf_counter()
    result = run()
    torch.cuda.synchronize()
    return (time.perf_counter() - start) * 1e3, result


def case(name: str, train: bool, lengths: int) -> dict:
    torch.manual_seed(0)
    made, vocabulary = model(name)
    made = made.cuda().train(train)
    if not train:
        made = made.eval().to(torch.bfloat16)
    for module in made.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0  # so that losses can be compared
    chosen = random.Random(0).sample(range(40, 512), lengths)
    batches = [torch.randint(vocabulary, (8, length), device="cuda") for length in chosen]
    calls, row = systems(made), {"model": name, "train": train}
    times: dict[str, list[float]] = {which: [] for which in calls}
    worst = dict.fromkeys(calls, 0.0)
    for place, ids in enumerate(batches * 2):
        found = {}
        for which, call in calls.items():
            ms, found[which] = _timed(lambda call=call, ids=ids: _call(call, made, ids, train))
            if place < lengths:
                row[f"{which} first_s"] = row.get(f"{which} first_s", 0.0) + ms / 1e3
            else:
                times[which].append(ms)
        for which, result in found.items():
            error = (result.float() - found["eager"].float()).abs().max().item()
            worst[which] = max(worst[which], error)
    entry = getattr(calls["ours"], "_dynfix_entry", None)
    if entry is not None:
        row["ours recordings"] = len(entry._dispatcher.entries)
    for which, values in times.items():
        row[f"{which} ms"], row[f"{which} error"] = statistics.median(values), worst[which]
        row[f"{which} slowest"] = max(values)
    row["fixed ms"] = _fixed(made, batches[-1], train)
    row["ours ms there"] = statistics.median(
        _timed(lambda: _call(calls["ours"], made, batches[-1], train))[0] for _ in range(10)
    )
    return row


def _fixed(made: torch.nn.Module, ids: torch.Tensor, train: bool) -> float:
    import dynfix

    call = dynfix.compile(made, dynamic=False)
    times = [_timed(lambda: _call(call, made, ids, train))[0] for _ in range(14)]
    return statistics.median(times[4:])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--lengths", type=int, default=40)
    parser.add_argument("--only", default="bert,llama")
    parser.add_argument("--train", action="store_true")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    with_native_parts()
    for name in options.only.split(","):
        row = case(name, options.train, options.lengths)
        with open(options.out / "sizes.jsonl", "a") as file:
            file.write(json.dumps(row) + "\n")
        print({k: round(v, 4) if isinstance(v, float) else v for k, v in row.items()}, flush=True)


if __name__ == "__main__":
    main()
