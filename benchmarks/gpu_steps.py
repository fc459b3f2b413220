"""Whole training steps on a GPU: forward, loss, backward and update given to dynfix.compile as one
function, beside eager and torch.compile with a compiled optimizer, in turn in one process.

python benchmarks/gpu_steps.py [--rounds 15] [--only decoder,resnet50] [--systems eager,...]

For each model: seconds of the first three steps, GB at most in a step above what was there before
the model was made, the loss after ten steps; then the median milliseconds of a step.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import dynfix
import torch
from dynfix.runtime import torch_headers
from dynfix.runtime.guards import guard_native
from torch import nn
from torch.nn import functional as F

Step = Callable[[], torch.Tensor]
SYSTEMS = "eager", "ours", "ours-ro", "tc", "tc-ro"
WARM, LAST = 3, 10


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.heads = width // 64
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(self.before(x)).split(width, 2)
        heads = batch, length, self.heads, 64
        q, k, v = (part.view(heads).transpose(1, 2) for part in (q, k, v))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.dropout(self.out(mixed.transpose(1, 2).reshape(batch, length, width)))
        return x + self.dropout(self.down(F.gelu(self.up(self.between(x)))))


class Decoder(nn.Module):
    """A small GPT: learned positions, tied head."""

    def __init__(self, vocabulary: int, length: int, width: int, layers: int) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        places = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.tokens(tokens) + self.places(places)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def decoder(device: str, small: bool) -> tuple[nn.Module, Any, Callable[[], Any]]:
    vocabulary, length, width, layers, batch = (
        (64, 16, 64, 2, 2) if small else (50304, 512, 768, 6, 12)
    )
    model = Decoder(vocabulary, length, width, layers).to(device)

    def batches() -> Any:
        tokens = torch.randint(vocabulary, (batch, length + 1), device=device)
        return tokens[:, :-1].contiguous(), tokens[:, 1:].reshape(-1)

    return model, torch.optim.AdamW(model.parameters(), lr=3e-4), batches


def resnet50(device: str, small: bool) -> tuple[nn.Module, Any, Callable[[], Any]]:
    from torchvision.models import resnet18
    from torchvision.models import resnet50 as large

    model = (resnet18 if small else large)().to(device)

    def batches() -> Any:
        shape = (2, 3, 64, 64) if small else (64, 3, 224, 224)
        return torch.randn(shape, device=device), torch.randint(1000, shape[:1], device=device)

    return model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), batches


MODELS = {"decoder": decoder, "resnet50": resnet50}


def step_of(name: str, system: str, options: argparse.Namespace) -> Step:
    torch.manual_seed(0)
    device = options.device
    model, optimizer, batches = MODELS[name](device, options.small)
    forward, update = model, optimizer.step
    mode = "reduce-overhead" if system.endswith("-ro") else None
    if system.startswith("tc"):
        forward, update = torch.compile(model, mode=mode), torch.compile(optimizer.step)

    def step(inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        with torch.autocast(device, torch.bfloat16):
            outputs = forward(inputs)
            loss = F.cross_entropy(outputs.view(-1, outputs.shape[-1]), targets)
        loss.backward()
        update()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    whole = dynfix.compile(step, mode=mode) if system.startswith("ours") else step
    return lambda: whole(*batches())


def timed(step: Step, device: str) -> float:
    wait(device)
    start = time.perf_counter()
    step()
    wait(device)
    return 1e3 * (time.perf_counter() - start)


def wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def peak(device: str) -> float:
    return torch.cuda.max_memory_allocated() / 1e9 if device == "cuda" else 0.0


def prepared(name: str, system: str, options: argparse.Namespace) -> tuple[Step, str]:
    """The step after ten turns, and what was seen in them."""
    before = torch.cuda.memory_allocated() / 1e9 if options.device == "cuda" else 0.0
    step, start = step_of(name, system, options), time.perf_counter()
    for _ in range(WARM):
        step()
    wait(options.device)
    first = time.perf_counter() - start
    if options.device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    for _ in range(LAST - WARM):
        loss = step()
    text = f"first steps {first:.1f} s, {peak(options.device) - before:.2f} GB, loss {loss:.4f}"
    return step, text


def native_parts() -> None:
    """Build what a machine's first compiled functions build beside their first calls."""
    guard_native.wait()
    torch_headers.load()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--only", default=",".join(MODELS))
    parser.add_argument("--systems", default=",".join(SYSTEMS))
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--small", action="store_true", help="sizes for a CPU, to try it out")
    options = parser.parse_args()
    native_parts()
    for name in options.only.split(","):
        made: dict[str, tuple[Step, str]] = {}
        for system in options.systems.split(","):
            try:
                made[system] = prepared(name, system, options)
                print(f"{name} {system}: {made[system][1]}", flush=True)
            except Exception as error:
                print(f"{name} {system}: {type(error).__name__}: {error}"[:400], flush=True)
        times: dict[str, list[float]] = {system: [] for system in made}
        for _ in range(options.rounds):
            for system, (step, _) in made.items():
                times[system].append(timed(step, options.device))
        for system in made:
            print(f"{name} {system}: {statistics.median(times[system]):.2f} ms", flush=True)
        made.clear()
        torch.compiler.reset()


if __name__ == "__main__":
    main()
