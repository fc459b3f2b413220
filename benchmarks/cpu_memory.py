"""Peak memory of a training step on the CPU: eager, torch.compile, dynfix.

    python benchmarks/cpu_memory.py [--only bert,llama,conv] [--systems eager,torch,dynfix]

Each row is a process of its own, which takes four steps, lets go of what it can, and takes four
more: megabytes at most in these above what was resident before them. Parameters, the optimizer's
state and the compiler's modules are resident before; gradients, activations, and memory that is
kept for later calls are not.
"""

import argparse
import ctypes
import gc
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import dynfix
import torch
from dynfix.runtime.programs import arena, result_memory
from torch import nn
from torch.nn import functional as F

STEPS = 4
SYSTEMS: dict[str, Callable[[Any], Any]] = {
    "eager": lambda model: model,
    "torch": torch.compile,
    "dynfix": dynfix.compile,
}


def bert() -> tuple[nn.Module, dict[str, Any]]:
    from transformers import BertConfig, BertForMaskedLM

    config = BertConfig(
        vocab_size=8192,
        hidden_size=256,
        num_hidden_layers=6,
        num_attention_heads=4,
        intermediate_size=1024,
    )
    return BertForMaskedLM(config), _text(config.vocab_size)


def llama() -> tuple[nn.Module, dict[str, Any]]:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=8192,
        hidden_size=256,
        num_hidden_layers=6,
        num_attention_heads=4,
        intermediate_size=688,
        use_cache=False,
    )
    return LlamaForCausalLM(config), _text(config.vocab_size)


def _text(vocabulary: int) -> dict[str, Any]:
    ids = torch.randint(vocabulary, (8, 128))
    return {"input_ids": ids, "labels": ids}


class Residual(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(channels, channels, 3, 1, 1, bias=False),
            nn.BatchNorm2d(channels),
            nn.ReLU(),
            nn.Conv2d(channels, channels, 3, 1, 1, bias=False),
            nn.BatchNorm2d(channels),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu(x + self.layers(x))


class ConvNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        stages: list[nn.Module] = []
        for inside, outside in ((3, 32), (32, 64), (64, 128)):
            stages += [nn.Conv2d(inside, outside, 3, 2, 1, bias=False), nn.BatchNorm2d(outside)]
            stages += [nn.ReLU(), Residual(outside), Residual(outside)]
        self.stages = nn.Sequential(*stages)
        self.head = nn.Linear(128, 10)

    def forward(self, images: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor]:
        return (F.cross_entropy(self.head(self.stages(images).mean((2, 3))), labels),)


def conv() -> tuple[nn.Module, dict[str, Any]]:
    return ConvNet(), {"images": torch.randn(32, 3, 96, 96), "labels": torch.arange(32) % 10}


MODELS = {"bert": bert, "llama": llama, "conv": conv}


def measured(name: str, system: str) -> float:
    """Megabytes."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model, given = MODELS[name]()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    call = SYSTEMS[system](model.train())
    result_memory.load()

    def steps() -> None:
        for _ in range(STEPS):
            call(**given)[0].backward()
            optimizer.step()
            optimizer.zero_grad()

    steps()
    _let_go()
    before = _resident("VmRSS")
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")  # the peak begins anew
    steps()
    return (_resident("VmHWM") - before) / 1e6


def _let_go() -> None:
    native = result_memory._Engine.native
    arena._free.clear()
    if native is not None:
        kept = result_memory.kept_at_most()
        native.keep_at_most(0)
        native.keep_at_most(kept)
    gc.collect()
    ctypes.CDLL("libc.so.6").malloc_trim(0)


def _resident(field: str) -> int:
    with open("/proc/self/status") as file:
        line = next(line for line in file if line.startswith(field))
    return int(line.split()[1]) * 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default=",".join(MODELS))
    parser.add_argument("--systems", default=",".join(SYSTEMS))
    parser.add_argument("--row", nargs=2, help="one model and system, in this process")
    options = parser.parse_args()
    if options.row:
        print(f"{measured(*options.row):.0f}")
        return
    for name in options.only.split(","):
        for system in options.systems.split(","):
            command = [sys.executable, __file__, "--row", name, system]
            done = subprocess.run(command, capture_output=True, text=True)
            found = (done.stdout or done.stderr).strip().splitlines()[-1]
            print(f"{name} {system}: {found} MB", flush=True)


if __name__ == "__main__":
    main()
