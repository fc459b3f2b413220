"""A model whose batches and sequences change in size: eager, dynfix.compile and torch.compile, in
one process.

`python benchmarks/sizes.py [--threads N] [--rounds N] [--width N] [--layers N] [--inference]`

Seconds until every size was called once, then interleaved times at each size. Needs transformers;
random weights.
"""

import argparse
import copy
import sys
import time

import dynfix
import torch
import transformers
from interleave import interleaved
from rich.console import Console
from rich.table import Table

COMPILERS = {
    "eager": lambda model: model,
    "dynfix.compile": dynfix.compile,
    "torch.compile": torch.compile,
}
SIZES = ((8, 64), (8, 96), (12, 48), (3, 128), (16, 37), (5, 101), (10, 80))


def bert(width, layers):
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=1000,
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=max(width // 32, 1),
        intermediate_size=4 * width,
        max_position_embeddings=256,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    return transformers.BertForMaskedLM(config)


def batches():
    make = torch.Generator().manual_seed(0)
    for size, length in SIZES:
        ids, labels = torch.randint(1000, (2, size, length), generator=make)
        yield {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": labels}


def training_call(model, batch):
    def call():
        model.zero_grad()
        loss = model(**batch).loss
        loss.backward()
        return loss.detach()

    return call


def inference_call(model, batch):
    def call():
        with torch.no_grad():
            return model(**batch).loss

    return call


def first_calls(models, make):
    """Name -> (seconds until every size was called once, largest difference of a loss from
    eager's)."""
    losses, found = {}, {}
    for name, model in models.items():
        start = time.perf_counter()
        losses[name] = torch.stack([make(model, batch)() for batch in batches()])
        found[name] = (
            time.perf_counter() - start,
            (losses[name] - losses["eager"]).abs().max().item(),
        )
    return found


def page(models, make, rounds, title):
    """Times at each size, as ratios to eager's and torch.compile's: above 1 means faster than
    it."""
    table = Table(title=title, title_justify="left")
    for heading in ("batch x length", *models, "eager / dynfix", "torch.compile / dynfix"):
        table.add_column(heading, justify="right")
    for (size, length), batch in zip(SIZES, batches(), strict=True):
        times = interleaved({name: make(model, batch) for name, model in models.items()}, rounds)
        ours = times["dynfix.compile"].median
        ratios = [f"{times[peer].median / ours:.2f}x" for peer in ("eager", "torch.compile")]
        table.add_row(f"{size} x {length}", *map(str, times.values()), *ratios)
    return table


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name, value in {"threads": 1, "rounds": 10, "width": 128, "layers": 2}.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--inference", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    model = bert(arguments.width, arguments.layers)
    models = {name: compiler(copy.deepcopy(model)) for name, compiler in COMPILERS.items()}
    make = inference_call if arguments.inference else training_call
    console = Console(width=None if sys.stdout.isatty() else 120)
    for name, (seconds, difference) in first_calls(models, make).items():
        console.print(
            f"{name}: {seconds:.1f} s until every size was called once, loss within"
            f" {difference:.1e} of eager"
        )
    what = "inference" if arguments.inference else "forward and backward"
    console.print(page(models, make, arguments.rounds, f"{what}, {arguments.threads} thread(s)"))


if __name__ == "__main__":
    main()
