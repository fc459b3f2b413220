"""Recurrent layers of several kinds, and `generate`: processor time beside eager's, interleaved.

    python benchmarks/layers_and_generate.py rnn [--kinds LSTM GRU] [--sizes small middle]
    python benchmarks/layers_and_generate.py generate [--kinds gpt2 llama] [--sizes 32x2 256x4]

`rnn`: one and two layers, both directions, batch first, packed sequences; a training step and
inference. `generate`: greedy, sampled and by beams; the second identical call must record nothing.
One thread.
"""

import argparse
import copy
import functools
import time
import warnings
from collections.abc import Callable
from typing import Any

import dynfix
import torch
from interleave import interleaved
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

SIZES = {"small": (16, 32, 10, 4), "middle": (64, 128, 20, 16)}  # input, hidden, length, batch
ROWS = {
    "1 layer": ({}, False),
    "2 layers": ({"num_layers": 2}, False),
    "1 layer, both ways": ({"bidirectional": True}, False),
    "2 layers, both ways, batch first": (
        {"num_layers": 2, "bidirectional": True, "batch_first": True},
        False,
    ),
    "1 layer, packed": ({"batch_first": True}, True),
    "2 layers, both ways, packed": (
        {"num_layers": 2, "bidirectional": True, "batch_first": True},
        True,
    ),
}
WAYS: dict[str, dict[str, Any]] = {
    "greedy": {"do_sample": False},
    "sampled": {"do_sample": True, "top_k": 20, "temperature": 0.8},
    "beams": {"num_beams": 3, "do_sample": False},
}


class Tagger(nn.Module):
    def __init__(self, kind: str, width: int, hidden: int, **settings: Any) -> None:
        super().__init__()
        self.rnn = getattr(nn, kind)(width, hidden, **settings)
        self.head = nn.Linear(hidden * (1 + self.rnn.bidirectional), 4)

    def forward(self, x: torch.Tensor, lengths: torch.Tensor | None = None) -> torch.Tensor:
        first = self.rnn.batch_first
        if lengths is None:
            return self.head(self.rnn(x)[0])  # type: ignore[no-any-return]
        packed = pack_padded_sequence(x, lengths, batch_first=first, enforce_sorted=False)
        out, _ = pad_packed_sequence(self.rnn(packed)[0], batch_first=first)
        return self.head(out)  # type: ignore[no-any-return]


def train(model: nn.Module, *args: torch.Tensor) -> None:
    model.zero_grad(set_to_none=True)
    model(*args).square().sum().backward()


def infer(model: nn.Module, *args: torch.Tensor) -> object:
    with torch.no_grad():
        return model(*args)


def compared(eager: Callable[[], object], ours: Callable[[], object], rounds: int) -> str:
    steps = {"eager": eager, "dynfix": ours}
    found = interleaved(steps, rounds, warm=5, clock=time.process_time)
    ratio = found["dynfix"].median / found["eager"].median
    return f"eager {found['eager']}, dynfix {found['dynfix']}: {ratio:.2f}"


def repeated(run: Callable[..., object], times: int, *args: Any) -> Callable[[], None]:
    def all_of_them() -> None:
        for _ in range(times):
            run(*args)

    return all_of_them


def rnn(kinds: list[str], sizes: list[str], rounds: int) -> None:
    for kind in kinds or ["LSTM", "GRU"]:
        for size in sizes or SIZES:
            width, hidden, length, batch = SIZES[size]
            for row, (settings, packed) in ROWS.items():
                torch.manual_seed(0)
                model = Tagger(kind, width, hidden, **settings)
                compiled = dynfix.compile(copy.deepcopy(model))
                first = model.rnn.batch_first
                x = torch.randn(*((batch, length) if first else (length, batch)), width)
                lengths = torch.randint(length // 2, length + 1, (batch,))
                args = (x, lengths) if packed else (x,)
                times = 10 if size == "small" else 1
                for run in (train, infer):
                    pair = (repeated(run, times, each, *args) for each in (model, compiled))
                    print(f"{kind} {size}, {row}, {run.__name__}: {compared(*pair, rounds)}")


def language_model(name: str, width: int, layers: int) -> Any:
    import transformers

    shared = {"vocab_size": 256, "bos_token_id": 0, "eos_token_id": None}
    if name == "gpt2":
        config: Any = transformers.GPT2Config(n_embd=width, n_layer=layers, n_head=4, **shared)
        return transformers.GPT2LMHeadModel(config).eval()
    config = transformers.LlamaConfig(
        hidden_size=width,
        intermediate_size=2 * width,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        **shared,
    )
    return transformers.LlamaForCausalLM(config).eval()


def generated(model: Any, words: torch.Tensor, settings: dict[str, Any]) -> Any:
    torch.manual_seed(1)
    mask = torch.ones_like(words)
    return model.generate(words, attention_mask=mask, max_new_tokens=24, pad_token_id=0, **settings)


def generate(kinds: list[str], sizes: list[str], rounds: int) -> None:
    for name in kinds or ["gpt2", "llama"]:
        for size in sizes or ["32x2", "256x4"]:
            torch.manual_seed(0)
            model = language_model(name, *map(int, size.split("x")))
            compiled: Any = dynfix.compile(copy.deepcopy(model))
            words = torch.randint(1, 256, (2, 8))
            for way, settings in WAYS.items():
                ours = functools.partial(generated, compiled, words, settings)
                eager = functools.partial(generated, model, words, settings)
                same = torch.equal(ours(), eager())
                recorded = len(compiled._dynfix_entry.recordings)
                ours()
                more = len(compiled._dynfix_entry.recordings) - recorded
                told = f"equal {same}, recorded again {more}"
                print(f"{name} {size}, {way}: {compared(eager, ours, rounds)}; {told}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("rnn", "generate"))
    parser.add_argument("--kinds", nargs="*", default=[])
    parser.add_argument("--sizes", nargs="*", default=[])
    parser.add_argument("--rounds", type=int, default=20)
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    {"rnn": rnn, "generate": generate}[options.what](options.kinds, options.sizes, options.rounds)


if __name__ == "__main__":
    main()
