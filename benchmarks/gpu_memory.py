"""Peak memory of a training step on a GPU: python -m benchmarks.gpu_memory [--only bert,llama]"""

from __future__ import annotations

import argparse

import torch

from .gpu_model_cases import MODELS
from .gpu_models import system, train_step


def peak(name: str, which: str) -> tuple[float, float]:
    """GB at most, and of these what stands before the step."""
    torch.manual_seed(0)
    model, args, named = MODELS[name]()
    model = model.cuda().train()
    step = train_step(system(which, model), model, args, named)
    for _ in range(3):
        step()
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    step()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() / 1e9, before / 1e9


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", default="bert,llama,gpt2")
    parser.add_argument("--systems", default="eager,tc,ours")
    options = parser.parse_args()
    for name in options.only.split(","):
        for which in options.systems.split(","):
            highest, before = peak(name, which)
            print(f"{name} {which}: {highest:.2f} GB, before {before:.2f}", flush=True)
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
