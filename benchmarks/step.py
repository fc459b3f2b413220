"""Training steps of the example model, or of a small CNN: eager, dynfix.compile and torch.compile,
interleaved in one process.

`python benchmarks/step.py [--threads N] [--rounds N] [--width N] [--layers N] [--model text|cnn]
[--inference | --whole]`

With --whole, dynfix.compile is given the whole step (forward, loss, backward, AdamW), and
torch.compile the model and the optimizer's step.
"""

import argparse
import copy
import sys
import time
from pathlib import Path

import dynfix
import torch
from interleave import interleaved
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
from train_text import TextModel


class ImageModel(torch.nn.Module):
    """The CNN of PyTorch's digits example; gives (logits, loss) as the text model does."""

    def __init__(self):
        super().__init__()
        nn = torch.nn
        self.layers = nn.Sequential(
            *(nn.Conv2d(1, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Dropout(0.25), nn.Flatten(), nn.Linear(9216, 128), nn.ReLU(), nn.Dropout(0.5)),
            nn.Linear(128, 10),
        )

    def forward(self, images, targets=None):
        logits = self.layers(images)
        if targets is None:
            return logits, None
        return logits, torch.nn.functional.nll_loss(logits.log_softmax(1), targets)


COMPILERS = {
    "eager": lambda model: model,
    "dynfix.compile": dynfix.compile,
    "torch.compile": torch.compile,
}


def training_step(model, tokens, targets):
    """A closure over one model and its optimizer: forward, backward, AdamW; the loss stays a
    tensor."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

    def step():
        optimizer.zero_grad()
        _, loss = model(tokens, targets)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def whole_step(compiler, model, tokens, targets):
    """The same step, compiled as far as the compiler goes."""
    if compiler is COMPILERS["dynfix.compile"]:
        return dynfix.compile(training_step(model, tokens, targets))
    step = training_step(compiler(model), tokens, targets)
    if compiler is COMPILERS["torch.compile"]:
        (optimizer,) = (
            cell.cell_contents
            for cell in step.__closure__
            if isinstance(cell.cell_contents, torch.optim.Optimizer)
        )
        optimizer.step = torch.compile(optimizer.step)
    return step


def inference_step(model, tokens, targets):
    model.eval()

    def step():
        with torch.no_grad():
            return model(tokens)

    return step


def steps(arguments, make=training_step):
    """Name -> step, each on a copy of one model and the same batch; and the seconds of each first
    call."""
    torch.manual_seed(0)
    if arguments.model == "cnn":
        model = ImageModel()
        images = torch.randn(arguments.batch, 1, 28, 28)
        batch = images, torch.randint(10, (arguments.batch,))
    else:
        model = TextModel(64, arguments.width, 4, arguments.layers, arguments.context)
        batch = torch.randint(64, (2, arguments.batch, arguments.context))
    made, first = {}, {}
    for name, compiler in COMPILERS.items():
        mine = copy.deepcopy(model)
        whole = make is whole_step
        made[name] = make(compiler, mine, *batch) if whole else make(compiler(mine), *batch)
        start = time.perf_counter()
        made[name]()
        first[name] = time.perf_counter() - start
    return made, first


def table(times, first, title):
    """Step times with the ratio to each compiler: above 1 means faster than it."""
    page = Table(title=title, title_justify="left")
    for heading in (
        "",
        "median step (quartiles)",
        "eager / it",
        "torch.compile / it",
        "first call",
    ):
        page.add_column(heading, justify="right" if heading else "left")
    for name, one in times.items():
        ratios = [f"{times[peer].median / one.median:.2f}x" for peer in ("eager", "torch.compile")]
        page.add_row(name, str(one), *ratios, f"{first[name]:.1f} s")
    return page


def add_sizes(parser):
    for name, value in {
        "threads": 1,
        "rounds": 30,
        "batch": 16,
        "context": 64,
        "width": 64,
        "layers": 2,
    }.items():
        parser.add_argument(f"--{name}", type=int, default=value)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    add_sizes(parser)
    parser.add_argument("--model", choices=("text", "cnn"), default="text")
    parser.add_argument("--inference", action="store_true")
    parser.add_argument("--whole", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    make = inference_step if arguments.inference else training_step
    made, first = steps(arguments, whole_step if arguments.whole else make)
    what = "inference" if arguments.inference else "whole step" if arguments.whole else "training"
    console = Console(width=None if sys.stdout.isatty() else 110)
    console.print(
        table(interleaved(made, arguments.rounds), first, f"{what}, {arguments.threads} thread(s)")
    )


if __name__ == "__main__":
    main()
