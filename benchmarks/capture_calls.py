"""What a call of captured code costs beside its kernels, and whether calls stay flat.

    python benchmarks/capture_calls.py [opaque overhead training outcomes turns objects]

`opaque`: 20 layers with a call in the middle that capture cannot know, against the same without it
(wanted: at most 1.1). `overhead`: microseconds of a call whose graphs do nothing, here and under
torch.compile (MLP: at most 0.5; a small Llama: at most 0.2). `training`: microseconds of a forward
with its backward, of models so small that the host is all there is to it, beside eager (wanted: at
most 1) and torch.compile. `outcomes`, `turns`, `objects`: 1,000 outcomes of one branch, tensor
`while` loops of up to 1,000 turns, 10,000 calls with new objects: entries, segments, memory, and
the time of a late call against eager's (at most 1.2). Processor time, one thread.
"""

import argparse
import functools
import gc
import os
import resource
import tempfile
import time
import warnings
from collections.abc import Callable
from typing import Any

import dynfix
import torch
from dynfix.runtime import torch_headers
from dynfix.runtime.guards import guard_native
from interleave import interleaved
from torch import nn


def cpu(run: Callable[[], object], repeats: int = 7, seconds: float = 0.3) -> float:
    """Seconds of processor time of one `run()`: the best of some rounds."""
    run()
    start = time.process_time()
    run()
    number = max(1, int(seconds / repeats / max(time.process_time() - start, 1e-6)))
    best = float("inf")
    for _ in range(repeats):
        start = time.process_time()
        for _ in range(number):
            run()
        best = min(best, (time.process_time() - start) / number)
    return best


class Layers(nn.Module):
    def __init__(self, unknown: Callable[[], object] | None) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.Linear(256, 256) for _ in range(20))
        self.unknown = unknown

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for number, layer in enumerate(self.layers):
            x = torch.nn.functional.gelu(layer(x)) + x
            if number == 9 and self.unknown is not None:
                self.unknown()
        return x


class File:
    """What it does is in C: the size of a file, asked at every call."""

    def __init__(self) -> None:
        self.path = tempfile.mkstemp()[1]

    def __call__(self) -> object:
        return os.stat(self.path)


def opaque() -> None:
    x = torch.randn(128, 256)
    models = {}
    for name, unknown in (("without", None), ("with", File())):
        models[name] = dynfix.compile(Layers(unknown))
        for _ in range(12):
            step(models[name], x)
            infer(models[name], x)
    for what, rounds in ((step, 60), (infer, 200)):
        times = interleaved(
            {name: functools.partial(what, model, x) for name, model in models.items()},
            rounds,
            clock=time.process_time,
        )
        without, cut = times["without"], times["with"]
        print(
            f"opaque: {what.__name__} {without}, with the call {cut}:"
            f" {cut.median / without.median:.2f}"
        )


def step(model: Callable[..., Any], x: torch.Tensor) -> None:
    model(x).sum().backward()


def infer(model: Callable[..., Any], x: torch.Tensor) -> object:
    with torch.no_grad():
        return model(x)


def null(gm: torch.fx.GraphModule, example_inputs: Any) -> Callable[..., Any]:
    """Gives the same results at every call, and computes nothing."""
    with torch.no_grad():
        made = gm(*(torch.zeros_like(each, device="cpu") for each in real(gm, example_inputs)))
    return lambda *args: made


def real(gm: torch.fx.GraphModule, example_inputs: Any) -> list[torch.Tensor]:
    return [
        torch.zeros(tuple(map(int, each.shape)), dtype=each.dtype)
        if isinstance(each, torch.Tensor)
        else each
        for each in example_inputs
    ]


def mlp() -> tuple[nn.Module, tuple[Any, ...]]:
    layers = [nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8)]
    return nn.Sequential(*layers), (torch.randn(2, 8),)


def llama() -> tuple[nn.Module, tuple[Any, ...]]:
    from transformers import LlamaConfig, LlamaModel

    config = LlamaConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=4,
        num_attention_heads=2,
        num_key_value_heads=2,
        use_cache=False,
    )
    return LlamaModel(config).eval(), (torch.randint(0, 64, (1, 8)),)


def overhead() -> None:
    for make, wanted in ((mlp, 0.5), (llama, 0.2)):
        model, args = make()
        seconds = []
        for compiler in (dynfix.compile, torch.compile):
            compiled: Any = compiler(model, backend=null)
            with torch.no_grad():
                for _ in range(3):
                    compiled(*args)
                seconds.append(cpu(lambda c=compiled, a=args: c(*a)))
        here, there = (each * 1e6 for each in seconds)
        print(f"overhead: {make.__name__} {here:.1f} us, torch.compile {there:.1f}:"
              f" {here / there:.2f} (wanted {wanted})")  # fmt: skip


class Block(nn.Module):
    """A transformer's block."""

    def __init__(self, width: int = 64, heads: int = 4) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.heads = heads

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, time, width = x.shape
        parts = self.qkv(self.norms[0](x)).view(batch, time, 3, self.heads, -1)
        q, k, v = parts.permute(2, 0, 3, 1, 4)
        seen = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).reshape(batch, time, width))
        return x + self.down(nn.functional.gelu(self.up(self.norms[1](x))))


def trained() -> dict[str, tuple[nn.Module, torch.Tensor]]:
    layers = [nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64)]
    return {
        "Linear(16, 16)": (nn.Linear(16, 16), torch.randn(8, 16)),
        "MLP of 3 layers, 64 wide": (nn.Sequential(*layers), torch.randn(8, 64)),
        "transformer block, 64 wide": (Block(), torch.randn(1, 8, 64)),
    }


def training() -> None:
    guard_native.wait()
    torch_headers.load()
    for name, (model, x) in trained().items():
        calls = {"eager": model, "ours": dynfix.compile(model), "torch": torch.compile(model)}
        for call in calls.values():
            for _ in range(5):
                step(call, x)
        times = interleaved(
            {each: functools.partial(steps, call, x) for each, call in calls.items()},
            100,
            clock=time.process_time,
        )
        shown = {each: f"{found.median * 1e6 / STEPS:.1f}" for each, found in times.items()}
        ratio = times["ours"].median / times["eager"].median
        print(f"training: {name}, us {shown}: {ratio:.2f} of eager (wanted 1)")


STEPS = 20


def steps(model: Callable[..., Any], x: torch.Tensor) -> None:
    for _ in range(STEPS):
        step(model, x)


def memory() -> int:
    gc.collect()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


def flat(
    name: str, fn: Callable[..., Any], inputs: Callable[[int], tuple[Any, ...]], n: int
) -> None:
    """Call with ever other inputs: entries, segments and memory at half and at the end, and the
    time of the last calls against eager's."""
    compiled = dynfix.compile(fn)
    found = []
    for number in range(n):
        compiled(*inputs(number))
        if number + 1 in (n // 2, n):
            entry = compiled._dynfix_entry
            segments = sum(len(recording.segments) for recording in entry.recordings)
            found.append((len(entry.recordings), segments, memory()))
    late = [inputs(number) for number in range(n, n + 20)]
    eager, ours = (cpu(lambda f=f: [f(*each) for each in late]) for f in (fn, compiled))
    print(f"{name}: recordings, segments, MiB at half {found[0]}, at the end {found[1]};"
          f" late calls {ours / eager:.2f} of eager")  # fmt: skip


def branch(x: torch.Tensor) -> torch.Tensor:
    y = torch.tanh(x @ x)
    return y * int(x.sum().item())


def loop(x: torch.Tensor) -> torch.Tensor:
    y = torch.zeros_like(x)
    while y.sum() < x.sum():
        y = y + 1.0
    return y.sin()


class Box:
    def __init__(self, tensor: torch.Tensor, scale: float) -> None:
        self.tensor, self.scale = tensor, scale


def boxed(box: Box, extra: dict[str, torch.Tensor]) -> torch.Tensor:
    return (box.tensor @ extra["w"]).relu() * box.scale


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", nargs="*")
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    square = torch.randn(64, 64)
    rows: dict[str, Callable[[], None]] = {
        "opaque": opaque,
        "overhead": overhead,
        "training": training,
        "outcomes": lambda: flat(
            "outcomes", branch, lambda n: (torch.full((64, 64), (n + 1.5) / 4096),), 1000
        ),
        "turns": lambda: flat("turns", loop, lambda n: (torch.full((4, 4), float(n % 1000)),), 60),
        "objects": lambda: flat(
            "objects", boxed, lambda n: (Box(square + n, 2.0), {"w": square}), 10_000
        ),
    }
    for name in parser.parse_args().what or rows:
        rows[name]()


if __name__ == "__main__":
    main()
