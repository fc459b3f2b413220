"""Train a small character-level transformer on the Declaration of Independence.

An ordinary script, with nothing of dynfix in it: `python examples/train_text.py` and `dynrun
examples/train_text.py` print the same losses; `--compile` goes through torch.compile. `--json FILE`
keeps losses and step times.
"""

import argparse
import itertools
import json
import math
import time
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F

TEXT = Path(__file__).parent / "data" / "declaration.txt"


class Block(nn.Module):
    """Causal self-attention and a gated feed-forward, each on a normalised residual."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.gate, self.up, self.down = (
            nn.Linear(width, 2 * width),
            nn.Linear(width, 2 * width),
            nn.Linear(2 * width, width),
        )

    def attention(self, x):
        batch, length, width = x.shape
        q, k, v = (
            self.qkv(x)
            .view(batch, length, 3, self.heads, width // self.heads)
            .permute(2, 0, 3, 1, 4)
        )
        scores = q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))
        hidden = torch.ones(length, length, dtype=torch.bool, device=x.device).triu(1)
        mixed = scores.masked_fill(hidden, float("-inf")).softmax(-1) @ v
        return self.out(mixed.transpose(1, 2).reshape(batch, length, width))

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        y = self.norm2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class TextModel(nn.Module):
    """Next-character logits, and the loss where targets are given."""

    def __init__(self, characters, width, heads, layers, context):
        super().__init__()
        self.token, self.position = nn.Embedding(characters, width), nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, characters)

    def forward(self, tokens, targets=None):
        x = self.token(tokens) + self.position(torch.arange(tokens.size(1), device=tokens.device))
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        if targets is None:
            return logits
        return logits, F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def batches(tokens, context, size, generator):
    while True:
        starts = torch.randint(len(tokens) - context, (size,), generator=generator)
        windows = tokens[starts[:, None] + torch.arange(context + 1)]
        yield windows[:, :-1], windows[:, 1:]


@torch.no_grad()
def complete(model, prompt, length, context, letters):
    """Greedy continuation of `prompt`, at a fixed context so that every step has one shape."""
    tokens = torch.tensor([[letters.index(c) for c in prompt.rjust(context)]])
    for _ in range(length):
        logits = model(tokens[:, -context:])
        tokens = torch.cat([tokens, logits[:, -1:].argmax(-1)], 1)
    return prompt + "".join(letters[i] for i in tokens[0, context:])


def parse():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--context", type=int, default=64)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--compile", action="store_true", help="through torch.compile")
    parser.add_argument("--json", metavar="FILE", help="write losses and step times")
    return parser.parse_args()


def train(model, step_batches, optimizer, steps):
    losses, seconds = [], []
    for step, (tokens, targets) in enumerate(itertools.islice(step_batches, steps)):
        start = time.perf_counter()
        _, loss = model(tokens, targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        seconds.append(time.perf_counter() - start)
        if step % 10 == 0 or step == steps - 1:
            print(f"step {step:3d}  loss {losses[-1]:.4f}")
    return losses, seconds


def main():
    arguments = parse()
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(0)
    text = TEXT.read_text()
    letters = sorted(set(text))
    tokens = torch.tensor([letters.index(c) for c in text])
    model = TextModel(len(letters), arguments.width, 4, arguments.layers, arguments.context)
    running = torch.compile(model) if arguments.compile else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    data = batches(tokens, arguments.context, arguments.batch, torch.Generator().manual_seed(0))
    losses, seconds = train(running, data, optimizer, arguments.steps)
    model.eval()
    print(complete(running, "We hold these truths ", 40, arguments.context, letters))
    if arguments.json:
        Path(arguments.json).write_text(json.dumps({"losses": losses, "seconds": seconds}))


if __name__ == "__main__":
    main()
