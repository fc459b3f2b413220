"""What a call costs the host on a GPU: models so small that the device always waits.

    python -m benchmarks.gpu_host --out DIR

Microseconds of a call, medians of interleaved rounds of 20 calls each, the device awaited at the
end of a round.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from .gpu_models import SYSTEMS, system, with_native_parts
from .interleave import interleaved

CALLS = 20


class Block(torch.nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = torch.nn.LayerNorm(width)
        self.up, self.down = torch.nn.Linear(width, 2 * width), torch.nn.Linear(2 * width, width)

    def forward(self, x):
        return x + self.down(torch.nn.functional.gelu(self.up(self.norm(x))))


def models() -> dict[str, Callable[[], torch.nn.Module]]:
    nn = torch.nn
    return {
        "one-layer MLP": lambda: nn.Sequential(nn.Linear(64, 64), nn.ReLU()),
        "24 blocks": lambda: nn.Sequential(*(Block(64) for _ in range(24))),
    }


def _step(call: Callable, model: torch.nn.Module, x: torch.Tensor, train: bool) -> Callable:
    def infer() -> None:
        with torch.no_grad():
            call(x)

    def step() -> None:
        model.zero_grad(set_to_none=True)
        call(x).sum().backward()

    return step if train else infer


def _round(step: Callable) -> Callable[[], None]:
    def run() -> None:
        for _ in range(CALLS):
            step()
        torch.cuda.synchronize()

    return run


def case(
    name: str,
    make: Callable[[], torch.nn.Module],
    train: bool,
    rounds: int,
    systems: Sequence[str] = SYSTEMS,
) -> dict:
    torch.manual_seed(0)
    model = make().cuda().train(train)
    x = torch.randn(8, 64, device="cuda")
    row: dict = {"model": name, "train": train}
    steps: dict[str, Callable[[], None]] = {}
    for which in systems:
        start = time.perf_counter()
        try:
            steps[which] = _round(_step(system(which, model), model, x, train))
            steps[which]()
        except Exception as error:
            steps.pop(which, None)
            row[f"{which} failed"] = f"{type(error).__name__}: {error}"[:300]
        row[f"{which} first_s"] = time.perf_counter() - start
    for which, times in interleaved(steps, rounds).items():
        row[f"{which} us"] = times.median * 1e6 / CALLS
    return row


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--only", default=",".join(models()))
    parser.add_argument("--kinds", default="infer,train")
    parser.add_argument("--systems", default=",".join(SYSTEMS))
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    with_native_parts()
    for name, make in models().items():
        for kind in options.kinds.split(",") if name in options.only.split(",") else ():
            train = kind == "train"
            row = case(name, make, train, options.rounds, options.systems.split(","))
            with open(options.out / "host.jsonl", "a") as file:
                file.write(json.dumps(row) + "\n")
            cells = [f"{which} {row.get(f'{which} us', float('nan')):8.1f}" for which in SYSTEMS]
            print(f"{name:<14} {'training' if train else 'inference':<10} {'  '.join(cells)}")


if __name__ == "__main__":
    main()
