"""A word language model with two recurrent layers, in eager and compiled, steps interleaved.

CPU seconds of the process: `python benchmarks/recurrent.py LSTM 200 [--inference] [--rounds 20]`.
"""

import argparse
import copy
import statistics
import time
from typing import Any

import dynfix
import torch
from torch import nn

WORDS, LENGTH, BATCH = 2000, 35, 20


class Words(nn.Module):
    def __init__(self, kind: str, width: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, width)
        self.rnn = getattr(nn, kind)(width, width, 2, dropout=0.2)
        self.head, self.drop = nn.Linear(width, WORDS), nn.Dropout(0.2)

    def forward(self, words: torch.Tensor, state: Any, following: torch.Tensor) -> Any:
        out, state = self.rnn(self.drop(self.embedding(words)), state)
        scores = torch.log_softmax(self.head(self.drop(out)).flatten(0, 1), -1)
        return nn.functional.nll_loss(scores, following), state


class Step:
    """One step after the other, the state carried on."""

    def __init__(self, model: nn.Module, call: Any, state: Any) -> None:
        self.model, self.call, self.state = model, call, state
        self.seconds: list[float] = []

    def __call__(self, seed: int, *texts: torch.Tensor) -> float:
        torch.manual_seed(seed)
        self.model.zero_grad(set_to_none=True)
        self.state = torch.utils._pytree.tree_map(torch.Tensor.detach, self.state)
        start = time.process_time()
        with torch.set_grad_enabled(self.model.training):
            loss, self.state = self.call(texts[0], self.state, texts[1])
            if self.model.training:
                loss.backward()
        self.seconds.append(time.process_time() - start)
        return float(loss.detach())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=("LSTM", "GRU"))
    parser.add_argument("width", type=int)
    parser.add_argument("--inference", action="store_true")
    parser.add_argument("--rounds", type=int, default=20)
    options = parser.parse_args()
    torch.set_num_threads(1)
    model = Words(options.kind, options.width).train(not options.inference)
    other = copy.deepcopy(model)
    zeros = torch.zeros(2, BATCH, options.width)
    state = (zeros, zeros) if options.kind == "LSTM" else zeros
    steps = {
        "eager": Step(model, model, state),
        "dynfix": Step(other, dynfix.compile(other), state),
    }
    texts = torch.randint(WORDS, (LENGTH, BATCH)), torch.randint(WORDS, (LENGTH * BATCH,))
    for seed in range(3 + options.rounds):
        losses = [step(seed, *texts) for step in steps.values()]
        assert abs(losses[0] - losses[1]) < 1e-4, losses
    for name, step in steps.items():
        seconds = step.seconds[3:]
        print(
            f"{name:7} median {statistics.median(seconds) * 1e3:.2f} ms, least"
            f" {min(seconds) * 1e3:.2f} ms; first three calls {sum(step.seconds[:3]):.1f} s"
        )


if __name__ == "__main__":
    main()
