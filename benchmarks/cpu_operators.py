"""Single operators and small compositions on the CPU, eager beside dynfix: what is slower compiled?

    python benchmarks/cpu_operators.py [--backward] [--rounds 9] [--only NAMES] [--all]

Processor time of one thread, the least of interleaved rounds, each of some milliseconds; eager's
over dynfix's. Without --all only the rows under 0.95 are printed, and how many there are in all.
"""

import argparse
import time
import warnings
from collections.abc import Callable
from typing import Any

import dynfix
import torch
import torch.nn.functional as F

ROUND = 4e-3  # seconds
Function = Callable[[torch.Tensor], Any]


def _cases() -> dict[str, tuple[Function, torch.Tensor]]:
    torch.manual_seed(0)
    image, matrix = torch.randn(8, 32, 56, 56), torch.randn(1024, 1024)
    last = image.contiguous(memory_format=torch.channels_last)
    mask, rows = matrix > 0, torch.randint(1024, (1024,))
    places, table = torch.randint(1024, (1024, 1024)), torch.randn(5000, 128)
    bias = torch.randint(225, (128, 128))
    words, whole = torch.randint(5000, (64, 128)), torch.randint(1000, (1024, 1024))

    def resized(mode: str) -> Function:
        return lambda x: F.interpolate(x, scale_factor=2, mode=mode)

    def padded(mode: str) -> Function:
        return lambda x: F.pad(x, (3, 3, 3, 3), mode=mode)

    images: dict[str, Function] = {
        "avg_pool2d": lambda x: F.avg_pool2d(x, 3, 2, 1),
        "max_pool2d": lambda x: F.max_pool2d(x, 3, 2, 1),
        "adaptive_avg_pool2d": lambda x: F.adaptive_avg_pool2d(x, 7),
        "overlapping averages": lambda x: F.adaptive_avg_pool2d(x, 10),
        "means of 7 x 7": lambda x: F.avg_pool2d(x, 7, 1, 3),
        "maxima of 9 x 9": lambda x: F.max_pool2d(x, 9, 1, 4),
        "bilinear to 61 x 47": lambda x: F.interpolate(x, size=(61, 47), mode="bilinear"),
        "global average": lambda x: x.mean((2, 3)),
        **{f"interpolate {mode}": resized(mode) for mode in ("nearest", "bilinear", "bicubic")},
        **{
            f"pad {mode}": padded(mode) for mode in ("constant", "reflect", "replicate", "circular")
        },
        "pixel_shuffle": lambda x: F.pixel_shuffle(x, 2),
        "group_norm": lambda x: F.group_norm(x, 8),
        "instance_norm": F.instance_norm,
        "softmax over channels": lambda x: x.softmax(1),
        "normalize over channels": F.normalize,
    }
    matrices: dict[str, Function] = {
        **{f.__name__: f for f in (torch.exp, torch.log, torch.sin, torch.tanh, torch.erf)},
        **{f.__name__: f for f in (F.gelu, F.mish, F.softplus, torch.sigmoid, torch.lgamma)},
        "x ** 3": lambda x: x**3,
        "fmod": lambda x: x.fmod(1.3),
        "layer_norm": lambda x: F.layer_norm(x, (1024,)),
        "rms_norm": lambda x: F.rms_norm(x, (1024,)),
        **{f"softmax {dim}": (lambda x, dim=dim: x.softmax(dim)) for dim in (0, 1)},
        "log_softmax": lambda x: x.log_softmax(-1),
        **{f"cumsum {dim}": (lambda x, dim=dim: x.cumsum(dim)) for dim in (0, 1)},
        **{f"max {dim}": (lambda x, dim=dim: x.max(dim).values) for dim in (0, 1)},
        **{f"argmax {dim}": (lambda x, dim=dim: x.argmax(dim)) for dim in (0, 1)},
        **{f"var {dim}": (lambda x, dim=dim: x.var(dim)) for dim in (0, 1)},
        "topk": lambda x: x.topk(10).values,
        "sort": lambda x: x.sort(-1).values,
        "gather": lambda x: x.gather(1, places),
        "index_select": lambda x: x.index_select(0, rows),
        "index_add": lambda x: x.index_add(0, rows, matrix),
        "scatter_add": lambda x: x.scatter_add(1, places, matrix),
        "masked_fill": lambda x: x.masked_fill(mask, 0.0),
        "product with a mask": lambda x: torch.where(x > 0, x, 0.0) * mask,
        "sum under a mask": lambda x: (x * mask).sum(-1),
        "tril": torch.tril,
        "roll": lambda x: x.roll(3, 1),
        "flip": lambda x: x.flip(1),
        "transpose": lambda x: x.t().contiguous(),
        "repeat_interleave": lambda x: x.repeat_interleave(2, 0),
        "cross_entropy": lambda x: F.cross_entropy(x, rows),
        "bce_with_logits": lambda x: F.binary_cross_entropy_with_logits(x, mask.float()),
        "smooth_l1_loss": lambda x: F.smooth_l1_loss(x, x * 2),
        "cosine_similarity": lambda x: F.cosine_similarity(x, x + 1),
        "dropout": lambda x: F.dropout(x, 0.1),
        "glu of odd rows": lambda x: F.glu(x[:, :66]),
        "logaddexp of odd rows": lambda x: torch.logaddexp(x[:, :39], x[:, 1:40]),
        "softmax with a picked bias": lambda x: (x.view(64, 128, 128) + x[0][bias]).softmax(-1),
        "softmax of segments": lambda x: (
            x.exp()[0] / x.new_zeros(8).index_add(0, rows % 8, x.exp()[0])[rows % 8]
        ),
    }
    chain: Function = lambda x: (x * 2 + 1).relu()  # noqa: E731
    cases = {name: (fn, image) for name, fn in images.items()}
    cases |= {f"{name}, channels-last": (fn, last) for name, fn in images.items()}
    cases |= {name: (fn, matrix) for name, fn in matrices.items()}
    halves = (torch.bfloat16, torch.float16)
    cases |= {f"chain, {str(kind).split('.')[1]}": (chain, matrix.to(kind)) for kind in halves}
    cases |= {
        f"softmax, {str(k).split('.')[1]}": (matrices["softmax 1"], matrix.to(k)) for k in halves
    }
    cases["embedding"] = lambda x: F.embedding(x, table), words
    cases["whole numbers, // and %"] = lambda x: x // 7 + x % 5, whole
    cases["8 x 8, a sum"] = lambda x: (x + 1).sum(), matrix[:8, :8].contiguous()
    return cases


def _steps(fn: Function, x: torch.Tensor, backward: bool) -> list[Callable[[], Any]]:
    def own(x: torch.Tensor) -> Any:
        return fn(x)

    ways = fn, dynfix.compile(own)
    if not backward:
        return [lambda way=way: way(x) for way in ways]  # type: ignore[misc]
    leaf = x.detach().clone().requires_grad_()
    seed = torch.randn_like(fn(leaf))
    return [lambda way=way: torch.autograd.grad(way(leaf), leaf, seed) for way in ways]  # type: ignore[misc]


def _least(steps: list[Callable[[], Any]], rounds: int) -> list[float]:
    for _ in range(4):
        for step in steps:
            step()
    start = time.process_time()
    steps[0]()
    count = max(1, int(ROUND / max(time.process_time() - start, 1e-6)))
    found: list[list[float]] = [[] for _ in steps]
    for _ in range(rounds):
        for step, times in zip(steps, found, strict=True):
            start = time.process_time()
            for _ in range(count):
                step()
            times.append((time.process_time() - start) / count)
    return [min(times) for times in found]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backward", action="store_true", help="gradients as well")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--all", action="store_true")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    count = 0
    for name, (fn, x) in _cases().items():
        given_up = given.backward and not (x.is_floating_point() and "arg" not in name)
        if given_up or (given.only and name not in given.only):
            continue
        eager, ours = _least(_steps(fn, x, given.backward), given.rounds)
        count += 1
        if given.all or eager / ours < 0.95:
            print(f"{name:<34} {eager / ours:6.2f}   eager {eager * 1e3:8.3f} ms", flush=True)
    print(f"{count} rows")


if __name__ == "__main__":
    main()
