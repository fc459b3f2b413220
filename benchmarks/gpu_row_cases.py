"""The rows that `gpu_rows` times: their functions, shapes, and the elements that they move."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from . import gpu_kernels

BF16 = torch.bfloat16


@dataclasses.dataclass(frozen=True)
class Row:
    """kind: "forward"; "backward" times the gradients alone; "both" has the host in its time.

    shapes: of the inputs, (full, tiny); moved: elements that pass through memory once; grads:
    inputs that require gradients; changes: whether inputs are written to; random: whether results
    are; last: inputs that have their channels last in memory.
    """

    fn: Callable[..., Any]
    shapes: Callable[[bool], list[tuple[int, ...]]]
    moved: Callable[[list[int]], float]
    kind: str = "forward"
    grads: tuple[int, ...] = ()
    changes: bool = False
    random: bool = False
    integers: dict[int, int] = dataclasses.field(default_factory=dict)
    positive: tuple[int, ...] = ()
    dtype: torch.dtype = BF16
    last: tuple[int, ...] = ()


def rope(x, cos, sin):
    half = x.shape[-1] // 2
    turned = torch.cat((-x[..., half:], x[..., :half]), -1)
    return x * cos + turned * sin


def transpose_add(x, y):
    return x.t() + y


def group_norm_silu(x, w, b):
    return F.silu(F.group_norm(x, 32 if x.shape[1] >= 32 else 2, w, b))


def cumsum(x):
    return x.cumsum(-1)


def batch_norm_relu(x, w, b, mean, var):
    return F.relu(F.batch_norm(x, mean, var, w, b, True, 0.1, 1e-5))


def dropout_residual(x, r):
    return F.dropout(x, 0.1, True) + r


def column_sum(x):
    return x.sum(0)


def full_sum(x):
    return x.float().sum()


def cross_entropy(x, labels):
    return F.cross_entropy(x, labels)


def adamw(*tensors):
    """One step over lists: parameters, gradients, both moments."""
    n = len(tensors) // 4
    p, g, m, v = (list(tensors[k * n : (k + 1) * n]) for k in range(4))
    torch._foreach_lerp_(m, g, 0.1)
    torch._foreach_mul_(v, 0.999)
    torch._foreach_addcmul_(v, g, g, 0.001)
    torch._foreach_mul_(p, 1 - 1e-5)
    root = torch._foreach_sqrt(v)
    torch._foreach_div_(root, 0.9)
    torch._foreach_add_(root, 1e-8)
    torch._foreach_addcdiv_(p, m, root, -1e-3)


def layer_norm(x, w, b):
    return F.layer_norm(x, (x.shape[-1],), w, b)


def softmax(x):
    return torch.softmax(x, -1)


def geglu(gate, up):
    return F.gelu(gate) * up


def _rows(rows: int, cols: int, *more: tuple[int, ...]) -> Callable[[bool], list[tuple[int, ...]]]:
    def shapes(tiny: bool) -> list[tuple[int, ...]]:
        small = (24, 40) if tiny else (rows, cols)
        return [small, *(tuple(small[d] for d in which) for which in more)]

    return shapes


def _channels(tiny: bool) -> list[tuple[int, ...]]:
    shape = (2, 4, 6, 6) if tiny else (64, 256, 56, 56)
    return [shape, *[(shape[1],)] * 4]


def _groups(tiny: bool) -> list[tuple[int, ...]]:
    shape = (2, 4, 6, 6) if tiny else (32, 320, 64, 64)
    return [shape, (shape[1],), (shape[1],)]


def _rope(tiny: bool) -> list[tuple[int, ...]]:
    b, h, t, d = (1, 2, 6, 8) if tiny else (8, 32, 2048, 128)
    return [(b, h, t, d), (t, d), (t, d)]


def _adamw(tiny: bool) -> list[tuple[int, ...]]:
    sizes = [(8, 8), (3,)] if tiny else [(4096, 1024)] * 8
    return [size for _ in range(4) for size in sizes]


def _labels(rows: int, classes: int) -> Callable[[bool], list[tuple[int, ...]]]:
    return lambda tiny: [(6, 40), (6,)] if tiny else [(rows, classes), (rows,)]


NORM = _rows(16384, 4096, (1,))
ROWS = {
    "gelu_chain": Row(gpu_kernels.gelu_chain, NORM, lambda n: 2 * n[0]),
    "masked_softmax": Row(
        gpu_kernels.masked_softmax, gpu_kernels.CASES["masked_softmax"].shapes, lambda n: 2 * n[0]
    ),
    "column_sum": Row(column_sum, _rows(16384, 4096), lambda n: n[0]),
    "full_sum": Row(full_sum, _rows(16384, 4096), lambda n: n[0]),
    "cross_entropy": Row(
        cross_entropy, _labels(4096, 128256), lambda n: n[0], integers={1: 128256}
    ),
    "rms_norm": Row(gpu_kernels.rms_norm, NORM, lambda n: 2 * n[0]),
    "add_layer_norm": Row(
        gpu_kernels.add_layer_norm,
        _rows(16384, 4096, (0, 1), (1,), (1,)),
        lambda n: 4 * n[0],
    ),
    "swiglu": Row(gpu_kernels.swiglu, _rows(16384, 5504, (0, 1)), lambda n: 3 * n[0]),
    "rope": Row(rope, _rope, lambda n: 2 * n[0]),
    "transpose_add": Row(transpose_add, _rows(8192, 8192, (1, 0)), lambda n: 3 * n[0]),
    "group_norm_silu": Row(group_norm_silu, _groups, lambda n: 2 * n[0]),
    "cumsum": Row(cumsum, _rows(16384, 4096), lambda n: 2 * n[0]),
    "batch_norm_relu": Row(
        batch_norm_relu, _channels, lambda n: 3 * n[0], changes=True, positive=(4,)
    ),
    "dropout_residual": Row(
        dropout_residual, _rows(16384, 4096, (0, 1)), lambda n: 3 * n[0], random=True
    ),
    "adamw": Row(
        adamw,
        _adamw,
        lambda n: sum(n) * 7 / 4,
        changes=True,
        positive=tuple(range(32)),
        dtype=torch.float32,
    ),
    "layer_norm backward": Row(
        layer_norm,
        _rows(16384, 4096, (1,), (1,)),
        lambda n: 3 * n[0],
        "backward",
        (0, 1, 2),
    ),
    "rms_norm backward": Row(gpu_kernels.rms_norm, NORM, lambda n: 3 * n[0], "backward", (0, 1)),
    "softmax backward": Row(softmax, _rows(16384, 4096), lambda n: 3 * n[0], "backward", (0,)),
    "RMSNorm": Row(
        gpu_kernels.rms_norm, _rows(8192, 4096, (1,)), lambda n: 5 * n[0], "both", (0, 1)
    ),
    "LayerNorm": Row(
        layer_norm, _rows(8192, 4096, (1,), (1,)), lambda n: 5 * n[0], "both", (0, 1, 2)
    ),
    "SwiGLU": Row(
        gpu_kernels.swiglu, _rows(8192, 14336, (0, 1)), lambda n: 8 * n[0], "both", (0, 1)
    ),
    "GeGLU": Row(geglu, _rows(8192, 14336, (0, 1)), lambda n: 8 * n[0], "both", (0, 1)),
    "CrossEntropy": Row(
        cross_entropy,
        _labels(4096, 128256),
        lambda n: 3 * n[0],
        "both",
        (0,),
        integers={1: 128256},
    ),
    "Softmax": Row(softmax, _rows(8192, 4096), lambda n: 5 * n[0], "both", (0,)),
}


# ---- operands in another order of axes


def copied_add(x, y):
    return x.t().contiguous() + y


def copied_gelu(x):
    return F.gelu(x.t().contiguous())


def permuted_add(x, y):
    return x.permute(2, 1, 0).contiguous() + y


def to_channels_last(x):
    return F.relu(x.contiguous(memory_format=torch.channels_last))


def from_channels_last(x, y):
    return x.contiguous() + y


def images(x):
    """Pixels, channel beside channel, as planes."""
    return (x.permute(0, 3, 1, 2).contiguous() - 0.5) * 4.0


def keys(q):
    return q.permute(0, 2, 3, 1).contiguous() * 0.125


def merged_heads(o, r):
    return o.transpose(1, 2).reshape(r.shape) + r


def patches(x, places):
    return x.flatten(2).transpose(1, 2).contiguous() + places


def patches_norm(x, w, b):
    return F.layer_norm(x.flatten(2).transpose(1, 2).contiguous(), w.shape, w, b)


def unshuffle(x, y):
    return F.pixel_unshuffle(x, 2) + y


def shuffle(x, y):
    return F.pixel_shuffle(x, 2) + y


def interleaved_rope(x, cos, sin):
    turned = torch.stack((-x[..., 1::2], x[..., ::2]), -1).reshape(x.shape)
    return x * cos + turned * sin


def softmax_along_width(x):
    return torch.softmax(x.permute(0, 3, 1, 2), -1)


def softmax_of_channels(x):
    return torch.softmax(x, 1)


def norm_of_channels(x, w):
    mean, var = x.mean(1, keepdim=True), x.var(1, keepdim=True, unbiased=False)
    return (x - mean) * torch.rsqrt(var + 1e-6) * w[:, None, None]


def sums_of_copied(x, y):
    return (x.t().contiguous() + y).sum(-1)


def _of(
    shape: tuple[int, ...], tiny: tuple[int, ...], *more: Callable[..., tuple[int, ...]]
) -> Callable[[bool], list[tuple[int, ...]]]:
    """Inputs of the first one's shape, and of shapes that are made of it."""

    def shapes(small: bool) -> list[tuple[int, ...]]:
        first = tiny if small else shape
        return [first, *(other(*first) for other in more)]

    return shapes


_IMAGE, _TINY_IMAGE = (64, 256, 56, 56), (2, 20, 6, 7)
REORDERED = {
    "t copy + add": Row(copied_add, _rows(8192, 8192, (1, 0)), lambda n: 3 * n[0]),
    "gelu of t copy": Row(copied_gelu, _rows(8192, 8192), lambda n: 2 * n[0]),
    "3-d copy + add": Row(
        permuted_add,
        _of((384, 512, 384), (18, 20, 33), lambda a, b, c: (c, b, a)),
        lambda n: 3 * n[0],
    ),
    "relu to NHWC": Row(to_channels_last, _of(_IMAGE, _TINY_IMAGE), lambda n: 2 * n[0]),
    "NHWC + NCHW copy": Row(
        from_channels_last,
        _of(_IMAGE, _TINY_IMAGE, lambda *shape: shape),
        lambda n: 3 * n[0],
        last=(0,),
    ),
    "pixels to planes": Row(images, _of((64, 512, 512, 3), (2, 20, 22, 3)), lambda n: 2 * n[0]),
    "keys of heads": Row(keys, _of((8, 2048, 32, 128), (2, 20, 3, 18)), lambda n: 2 * n[0]),
    "heads to rows + add": Row(
        merged_heads,
        _of((8, 32, 2048, 128), (2, 3, 20, 18), lambda b, h, t, d: (b, t, h * d)),
        lambda n: 3 * n[0],
    ),
    "patches + places": Row(
        patches,
        _of((256, 768, 16, 16), (2, 20, 4, 5), lambda b, c, h, w: (1, h * w, c)),
        lambda n: 2 * n[0],
    ),
    "LayerNorm of patches": Row(
        patches_norm,
        _of((256, 768, 14, 14), (2, 20, 4, 5), *[lambda b, c, h, w: (c,)] * 2),
        lambda n: 2 * n[0],
    ),
    "pixel_unshuffle + add": Row(
        unshuffle,
        _of((32, 32, 256, 256), (2, 3, 18, 20), lambda b, c, h, w: (b, c * 4, h // 2, w // 2)),
        lambda n: 3 * n[0],
    ),
    "pixel_shuffle + add": Row(
        shuffle,
        _of((32, 128, 128, 128), (2, 8, 9, 10), lambda b, c, h, w: (b, c // 4, h * 2, w * 2)),
        lambda n: 3 * n[0],
    ),
    "interleaved rope": Row(interleaved_rope, _rope, lambda n: 2 * n[0]),
    "GroupNorm of NHWC": Row(group_norm_silu, _groups, lambda n: 2 * n[0], last=(0,)),
    "softmax over W of NHWC": Row(
        softmax_along_width, _of((16, 128, 128, 256), (2, 5, 20, 18)), lambda n: 2 * n[0]
    ),
    "softmax of channels": Row(
        softmax_of_channels, _of((32, 64, 128, 256), (2, 20, 5, 7)), lambda n: 2 * n[0]
    ),
    "norm of channels": Row(
        norm_of_channels,
        _of((64, 96, 112, 112), (2, 20, 5, 7), lambda b, c, h, w: (c,)),
        lambda n: 2 * n[0],
    ),
    "sums of t copy": Row(sums_of_copied, _rows(8192, 8192, (1, 0)), lambda n: 2 * n[0]),
}
ROWS |= REORDERED


def liger(fn: Callable[..., Any]) -> Callable[..., Any]:
    """What Liger-Kernel has for a row's function (its GELU is the one with tanh). Raises KeyError
    where it has nothing, ImportError where it is not installed."""
    from liger_kernel.ops import cross_entropy as losses
    from liger_kernel.ops import geglu as gelus
    from liger_kernel.ops import layer_norm as layers
    from liger_kernel.ops import rms_norm as norms
    from liger_kernel.ops import softmax as rows
    from liger_kernel.ops import swiglu as gates

    found: dict[Callable[..., Any], Callable[..., Any]] = {
        gpu_kernels.rms_norm: lambda x, w: norms.LigerRMSNormFunction.apply(x, w, 1e-6),
        layer_norm: lambda x, w, b: layers.LigerLayerNormFunction.apply(x, w, b, 1e-5),
        gpu_kernels.swiglu: gates.LigerSiLUMulFunction.apply,
        geglu: gelus.LigerGELUMulFunction.apply,
        cross_entropy: lambda x, y: losses.LigerCrossEntropyFunction.apply(x, y, None)[0],
        softmax: rows.LigerSoftmaxFunction.apply,
    }
    return found[fn]
