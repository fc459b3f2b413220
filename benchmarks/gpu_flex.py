"""FlexAttention on a GPU: eager, torch.compile(flex_attention) and ours.

    python -m benchmarks.gpu_flex [--out FILE] [--only NAMES] [--lengths 4096,16384] [--tiles]

Every variant is first compared with float64 at a small length (--times: not). Then the systems
take turns, round after round, in one process, and CUDA events time them; a system that fails is
noted. --eager: eager, too, where it has memory. --tiles times kernels of other tiles, to choose
those of `triton_attention`. --dry: small sizes on CPU tensors in Triton's interpreter.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch.nn.attention import flex_attention as flex

HEADS, TOKENS, CHECKED, ROUNDS = 16, 16384, 384, 8
MOST_DENSE = 4096  # the longest that eager has memory for
Call = Callable[..., torch.Tensor]


def _causal(b: Any, h: Any, i: Any, j: Any) -> Any:
    return i >= j


def _window(b: Any, h: Any, i: Any, j: Any) -> Any:
    return (i >= j) & (i - j < 256)


class Variant:
    """One way to attend. `mask` and `score` are made of what is captured for a length."""

    def __init__(
        self,
        name: str,
        mask: Callable[..., Any] | None = None,
        score: Callable[..., Any] | None = None,
        captured: Callable[[int, Any], torch.Tensor] | None = None,
        size: int = 64,
        kv_heads: int = HEADS,
    ) -> None:
        self.name, self.size, self.kv_heads = name, size, kv_heads
        self.mask, self.score, self.captured = mask, score, captured

    def functions(self, length: int, device: Any) -> tuple[Any, Any]:
        """score_mod and mask_mod, or None."""
        table = self.captured(length, device) if self.captured is not None else None
        return tuple(
            made(table) if made is not None and table is not None else made
            for made in (self.score, self.mask)
        )

    def inputs(self, batch: int, length: int, device: Any, dtype: Any) -> list[torch.Tensor]:
        heads = (HEADS, self.kv_heads, self.kv_heads)
        return [torch.randn(batch, n, length, self.size, device=device, dtype=dtype) for n in heads]


def _documents(length: int, device: Any) -> torch.Tensor:
    return torch.arange(length, device=device) // max(length // 8 + 5, 1)


def _biases(length: int, device: Any) -> torch.Tensor:
    generator = torch.Generator(device).manual_seed(2)
    return torch.randn(HEADS, 2 * length, device=device, generator=generator)


def _alibi(s: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
    return s + torch.exp2(-((h + 1) * 8.0 / HEADS)) * (j - i)


VARIANTS = (
    Variant("full"),
    Variant("causal", _causal),
    Variant("window", _window),
    Variant(
        "documents",
        lambda ids: lambda b, h, i, j: (ids[i] == ids[j]) & (i >= j),
        captured=_documents,
    ),
    Variant(
        "bias",
        score=lambda table: lambda s, b, h, i, j: s + table[h, i - j + table.shape[1] // 2],
        captured=_biases,
    ),
    Variant("alibi", _causal, _alibi),
    Variant("softcap", _causal, lambda s, b, h, i, j: 20 * torch.tanh(s / 20)),
    Variant("gqa 128", _causal, size=128, kv_heads=4),
)


def attend(variant: Variant, length: int, device: Any, function: Call) -> Call:
    score, mask = variant.functions(length, device)
    block_mask = None
    if mask is not None:
        block_mask = flex.create_block_mask(mask, None, None, length, length, device)
    grouped = variant.kv_heads != HEADS
    return lambda q, k, v: function(
        q, k, v, score_mod=score, block_mask=block_mask, enable_gqa=grouped
    )


def dense(variant: Variant, length: int, device: Any) -> Call:
    """The formula, for float64."""
    score, mask = variant.functions(length, device)

    def call(q: Any, k: Any, v: Any) -> Any:
        group = q.shape[1] // k.shape[1]
        k, v = (each.repeat_interleave(group, 1) for each in (k, v))
        scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
        sizes = enumerate(scores.shape)
        places = [
            torch.arange(n, device=device).view([-1 if d == e else 1 for e in range(4)])
            for d, n in sizes
        ]
        if score is not None:
            scores = score(scores, *places)
        if mask is not None:
            scores = scores.masked_fill(~mask(*places), -math.inf)
        return scores.softmax(-1).to(v.dtype) @ v

    return call


def systems(
    variant: Variant, length: int, device: Any, dry: bool, eager: bool = True
) -> dict[str, Call]:
    import dynfix

    options = {"target": "triton", "strict": True} if dry else {"strict": True}
    ours = attend(variant, length, device, flex.flex_attention)
    made = {"ours": dynfix.compile(ours, fullgraph=True, dynamic=False, options=options)}
    if not dry:
        compiled = torch.compile(flex.flex_attention, dynamic=False)
        made["compile"] = attend(variant, length, device, compiled)
    if eager and length <= MOST_DENSE:
        made["eager"] = attend(variant, length, device, flex.flex_attention)
    return made


# ---- right answers


def errors(variant: Variant, device: Any, dry: bool) -> dict[str, float]:
    """The largest error of results and gradients of each system, in those of the formula in the
    same dtype: 1 is as good."""
    length = 160 if dry else CHECKED
    dtype = torch.float16 if dry else torch.bfloat16  # which the interpreter does not multiply
    inputs = variant.inputs(1, length, device, dtype)
    torch.manual_seed(1)
    upstream = torch.randn(1, HEADS, length, variant.size, device=device).to(dtype)
    torch.manual_seed(0)
    formula = dense(variant, length, device)
    exact = _results(formula, [each.double() for each in inputs], upstream, not dry)
    plain = _results(formula, inputs, upstream, not dry)
    usual = [_distance(*pair) for pair in zip(plain, exact, strict=True)]
    found = {}
    torch.manual_seed(0)
    for name, call in systems(variant, length, device, dry).items():
        try:
            for _ in range(3):
                got = _results(call, inputs, upstream, not dry)
        except Exception:  # torch.compile's, for want of memory on the chip
            found[name] = math.inf
            continue
        distances = [_distance(*pair) for pair in zip(got, exact, strict=True)]
        found[name] = max(d / max(u, 1e-3) for d, u in zip(distances, usual, strict=True))
        torch.manual_seed(0)
    return found


def _results(call: Call, inputs: list[torch.Tensor], upstream: Any, trains: bool) -> list[Any]:
    given = [each.detach().clone().requires_grad_(trains) for each in inputs]
    result = call(*given)
    if trains:
        result.backward(upstream.to(result.dtype))
    return [result.detach(), *(each.grad for each in given if trains)]


def _distance(found: torch.Tensor, exact: torch.Tensor) -> float:
    return ((found.double() - exact).norm() / exact.norm()).item()


# ---- times


def steps(call: Call, inputs: list[torch.Tensor]) -> dict[str, Callable[[], object]]:
    trained = [each.detach().clone().requires_grad_() for each in inputs]
    upstream = torch.randn_like(inputs[0])

    def forward() -> object:
        with torch.no_grad():
            return call(*inputs)

    def both() -> object:
        return torch.autograd.grad(call(*trained), trained, upstream)

    return {"forward": forward, "both": both}


def milliseconds(runs: dict[str, Callable[[], object]], rounds: int = ROUNDS) -> dict[str, float]:
    """The median time of each, which take turns."""
    found: dict[str, list[float]] = {name: [] for name in runs}
    for run in runs.values():
        for _ in range(3):
            run()
    for _ in range(rounds):
        for name, run in runs.items():
            found[name].append(_timed(run))
    return {name: statistics.median(times) for name, times in found.items()}


def _timed(run: Callable[[], object], repeats: int = 4) -> float:
    ends = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
    torch.cuda.synchronize()
    ends[0].record()
    for _ in range(repeats):
        run()
    ends[1].record()
    torch.cuda.synchronize()
    return ends[0].elapsed_time(ends[1]) / repeats


def measured(variant: Variant, length: int, eager: bool) -> dict[str, Any]:
    inputs = variant.inputs(max(TOKENS // length, 1), length, "cuda", torch.bfloat16)
    row: dict[str, Any] = {"variant": variant.name, "length": length, "failed": {}}
    calls = {}
    for name, call in systems(variant, length, "cuda", False, eager).items():
        try:
            made = steps(call, inputs)
            for each in made.values():
                each()
            calls[name] = made
        except Exception as error:  # torch.compile does, for want of memory on the chip
            row["failed"][name] = f"{type(error).__name__}: {str(error)[:300]}"
    for what in ("forward", "both"):
        row[what] = milliseconds({name: each[what] for name, each in calls.items()})
        if {"ours", "compile"} <= calls.keys():
            row[f"{what}_ratio"] = row[what]["compile"] / row[what]["ours"]
    return row


# ---- tiles

TILES = {
    ("_FORWARD_BLOCKS", 64): "128,128,4,3 128,128,4,2 64,128,4,3 64,64,4,4",
    ("_FORWARD_BLOCKS", 128): "128,128,8,3 128,128,8,2 128,64,8,4 64,128,4,2",
    ("_QUERY_BLOCKS", 64): "64,64,4,3 64,64,4,4 64,64,4,2 64,128,4,2",
    ("_QUERY_BLOCKS", 128): "64,64,4,2 64,64,4,3 64,64,4,1 64,32,4,3",
    ("_KEYS_BLOCKS", 64): "128,64,4,2 64,64,4,3 64,64,4,2 128,64,4,1",
    ("_KEYS_BLOCKS", 128): "64,64,4,2 64,64,4,3 32,64,4,3 64,64,4,1",
}


def tiles(variant: Variant, length: int) -> Iterator[dict[str, Any]]:
    """Time on the device of each kernel with each of the tiles."""
    from dynfix.lowering.targets.triton import triton_attention as target

    count = max(len(text.split()) for text in TILES.values())
    inputs = variant.inputs(max(TOKENS // length, 1), length, "cuda", torch.bfloat16)
    for number in range(count):
        chosen = {}
        for (table, size), text in TILES.items():
            blocks = [tuple(map(int, each.split(","))) for each in text.split()]
            if size == variant.size:
                chosen[table] = blocks[number % len(blocks)]
                getattr(target, table)[2, size] = (chosen[table],)
        torch.compiler.reset()
        try:
            ours = systems(variant, length, "cuda", False, False)["ours"]
            both = steps(ours, inputs)["both"]
            times = _kernels(both)
        except Exception as error:  # a tile that does not fit
            times = {"failed": str(error)[-200:]}
        yield {"variant": variant.name, "length": length, "tiles": chosen, "us": times}


def _kernels(run: Callable[[], object]) -> dict[str, float]:
    """Microseconds of each kernel, in the order of their first launches."""
    for _ in range(3):
        run()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for _ in range(5):
            run()
        torch.cuda.synchronize()
    found: dict[str, list[float]] = {}
    for event in profile.events():
        if "attention" in event.name:
            found.setdefault(event.name, []).append(event.device_time)
    return {name: round(statistics.median(times), 1) for name, times in found.items()}


# ---- the command


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("gpu_flex.json"))
    parser.add_argument("--only", default="")
    parser.add_argument("--lengths", default="4096,16384")
    for flag in ("--times", "--eager", "--tiles", "--dry"):
        parser.add_argument(flag, action="store_true")
    args = parser.parse_args(argv)
    chosen = [v for v in VARIANTS if not args.only or v.name in args.only.split(",")]
    lengths = [int(each) for each in args.lengths.split(",")]
    rows: list[dict[str, Any]] = []
    for row in _rows(args, chosen, lengths):
        rows.append(row)
        print(line(row), flush=True)
        args.out.write_text(json.dumps(rows, indent=1))
    for what in ("forward_ratio", "both_ratio"):
        ratios = [row[what] for row in rows if what in row]
        if ratios:
            mean = statistics.geometric_mean(ratios)
            print(f"{what}: geometric mean {mean:.3f}, least {min(ratios):.3f}")
    return 0


def _rows(
    args: argparse.Namespace, chosen: list[Variant], lengths: list[int]
) -> Iterator[dict[str, Any]]:
    if args.tiles:
        for variant in chosen:
            yield from tiles(variant, lengths[0])
        return
    for variant in () if args.times else chosen:
        yield {
            "variant": variant.name,
            "errors": errors(variant, "cpu" if args.dry else "cuda", args.dry),
        }
    for length in () if args.dry else lengths:
        for variant in chosen:
            torch.compiler.reset()
            yield measured(variant, length, args.eager)


def line(row: dict[str, Any]) -> str:
    if "errors" in row:
        texts = (f"{name} {value:.2f}" for name, value in row["errors"].items())
        return f"{row['variant']:>10} errors: {', '.join(texts)}"
    if "tiles" in row:
        return json.dumps(row)
    parts = [f"{row['variant']:>10} {row['length']:>6}"]
    for what in ("forward", "both"):
        times = ", ".join(f"{name} {value:.3f}" for name, value in row[what].items())
        ratio = row.get(f"{what}_ratio")
        parts.append(f"{what}: {times} ms" + (f", {ratio:.3f} of torch.compile" if ratio else ""))
    return "  ".join((*parts, *(f"{name} failed" for name in row["failed"])))


if __name__ == "__main__":
    sys.exit(main())
