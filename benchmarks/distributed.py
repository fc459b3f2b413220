"""Training steps of a decoder on several GPUs, in DistributedDataParallel, FSDP2 or tensor
parallelism, in turn: eager, dynfix and torch.compile.

torchrun --standalone --nproc-per-node 2 benchmarks/distributed.py [--rounds 10] [--width 1024]

For each wrapper: the median milliseconds of a step (the slowest rank's), the loss after the same
steps, and, of one profiled step, the milliseconds of collectives' kernels and the part of these
during which another kernel of the rank ran.
"""

import argparse
import statistics
from collections.abc import Callable
from typing import Any

import dynfix
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile

Step = Callable[[], float]


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.q, self.k, self.v, self.out = (nn.Linear(width, width) for _ in range(4))
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, _ = x.shape
        y = self.before(x)
        made = (f(y).view(batch, length, -1, 64).transpose(1, 2) for f in (self.q, self.k, self.v))
        mixed = F.scaled_dot_product_attention(*made, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, -1))
        return x + self.down(F.gelu(self.up(self.between(x))))


class Decoder(nn.Module):
    def __init__(self, width: int, layers: int, vocabulary: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


_PARALLEL: dict[str, Any] = {
    **dict.fromkeys(("q", "k", "v", "up"), ColwiseParallel()),
    **dict.fromkeys(("out", "down"), RowwiseParallel()),
}


def wrapped(kind: str, options: argparse.Namespace) -> nn.Module:
    torch.manual_seed(0)
    model = Decoder(options.width, options.layers, 8192).cuda()
    if kind == "ddp":
        return DistributedDataParallel(model, device_ids=[torch.cuda.current_device()])
    if kind == "tp":
        mesh = init_device_mesh("cuda", (dist.get_world_size(),))
        for block in model.blocks:
            parallelize_module(block, mesh, _PARALLEL)
        return model
    for block in model.blocks:
        fully_shard(block)
    fully_shard(model)
    return model


def step_of(kind: str, system: str, options: argparse.Namespace) -> Step:
    """One training step; gives the loss."""
    model = wrapped(kind, options)
    compiled: Any = model
    if system != "eager":
        compiled = (dynfix if system == "dynfix" else torch).compile(model)
    kinds: dict[type, list[nn.Parameter]] = {}
    for each in model.parameters():
        kinds.setdefault(type(each.data), []).append(each)
    groups = [{"params": params} for params in kinds.values()]
    optimizer = torch.optim.AdamW(groups, lr=1e-4, fused=True)
    seed = 0 if kind == "tp" else dist.get_rank()
    generator = torch.Generator("cuda").manual_seed(seed)

    def step() -> float:
        shape = options.batch, options.length
        tokens = torch.randint(8192, shape, device="cuda", generator=generator)
        with torch.autocast("cuda", torch.bfloat16):
            logits = compiled(tokens)
            loss = F.cross_entropy(logits[:, :-1].flatten(0, 1).float(), tokens[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.item()

    return step


def timed(step: Step) -> float:
    """Milliseconds of the slowest rank."""
    dist.barrier()
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    step()
    end.record()
    torch.cuda.synchronize()
    spent = torch.tensor(start.elapsed_time(end), device="cuda")
    dist.all_reduce(spent, dist.ReduceOp.MAX)
    return spent.item()


def overlap(step: Step) -> tuple[float, float, float]:
    """Milliseconds of collectives' kernels, of those beside other kernels, and of these others."""
    for _ in range(2):  # the first one waits for the profiler
        dist.barrier()
        with profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as seen:
            step()
            torch.cuda.synchronize()
    on_gpu = [e for e in seen.events() if e.device_type == torch.autograd.DeviceType.CUDA]
    spans = [(e.time_range.start, e.time_range.end, "nccl" in e.name) for e in on_gpu]
    spans = [span for span in spans if span[1] > span[0]]
    others = sorted(span[:2] for span in spans if not span[2])
    total = beside = 0.0
    for start, end, collective in spans:
        if collective:
            total += end - start
            beside += covered(start, end, others)
    busy = covered(0, float("inf"), others)
    return total / 1000, beside / 1000, busy / 1000


def covered(start: float, end: float, spans: list[tuple[float, float]]) -> float:
    """How much of an interval sorted intervals cover."""
    found, at = 0.0, start
    for low, high in spans:
        low, high = max(low, at), min(high, end)
        if high > low:
            found, at = found + high - low, high
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--kinds", default="ddp,fsdp2,tp")
    options = parser.parse_args()
    dist.init_process_group("nccl")
    torch.cuda.set_device(dist.get_rank())
    for kind in options.kinds.split(","):
        steps = {
            name: step_of(kind, name, options) for name in ("eager", "dynfix", "torch.compile")
        }
        losses = {name: [step() for _ in range(6)] for name, step in steps.items()}
        times: dict[str, list[float]] = {name: [] for name in steps}
        for _ in range(options.rounds):
            for name, step in steps.items():
                times[name].append(timed(step))
        for name, step in steps.items():
            total, beside, busy = overlap(step)
            if dist.get_rank() == 0:
                print(
                    f"{kind} {name}: {statistics.median(times[name]):.2f} ms a step, sixth loss"
                    f" {losses[name][-1]:.4f}, collectives {total:.2f} ms, {beside:.2f} of them"
                    f" beside other kernels, which took {busy:.2f} ms",
                    flush=True,
                )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
