"""Programs whose schedules for a GPU are tested without one: the rows of the GPU benchmark, and
kinds of layers and of what is done with their results, at sizes that are used (nothing is run).

`PROGRAMS[name]()` gives a function and its inputs, on the meta device.
"""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

sys.path.append(str(Path(__file__).parents[2]))

from benchmarks.gpu_row_cases import ROWS

NHWC = torch.channels_last
Made = tuple[Callable[..., Any], list[torch.Tensor]]


def _row(name: str) -> Made:
    row = ROWS[name]
    inputs = []
    for k, shape in enumerate(row.shapes(False)):
        dtype = torch.int64 if k in row.integers else row.dtype
        value = torch.empty(shape, dtype=dtype, device="meta")
        value = value.to(memory_format=NHWC) if k in row.last else value
        inputs.append(value.requires_grad_(k in row.grads))
    return row.fn, inputs


def f32(*shape: int) -> torch.Tensor:
    return torch.empty(shape, device="meta")


def bf16(*shape: int) -> torch.Tensor:
    return torch.empty(shape, dtype=torch.bfloat16, device="meta")


def i64(*shape: int) -> torch.Tensor:
    return torch.empty(shape, dtype=torch.int64, device="meta")


def last(x: torch.Tensor) -> torch.Tensor:
    return x.to(memory_format=NHWC)


def _standardised(x, dim):
    mean, var = x.mean(dim, keepdim=True), x.var(dim, keepdim=True, unbiased=False)
    return (x - mean) * torch.rsqrt(var + 1e-5)


def _rms(x, dim):
    return x * torch.rsqrt(x.pow(2).mean(dim, keepdim=True) + 1e-5)


def _attention(q, k, v):
    return torch.softmax(q @ k.transpose(-1, -2) * 0.125, -1) @ v


def _frobenius(x):
    return x / torch.norm(x, p="fro")


def _own_gelu(x):
    return 0.5 * x * (1.0 + torch.tanh(0.7978845608 * (x + 0.044715 * x.pow(3))))


def _triplet(a, p, n):
    return F.triplet_margin_loss(a, p, n, margin=1.0)


def _conv_norm(x, w, b, s, t):
    return F.relu(F.group_norm(F.conv2d(x, w, b), 8, s, t))


def _conv_softmax(x, w, b, c):
    return torch.sigmoid((torch.softmax(F.conv_transpose2d(x, w, b, 2), 1) + c) * 2.0)


def _residual(x, w1, w2):
    return F.relu(x + F.conv2d(F.relu(F.conv2d(x, w1, padding=1)), w2, padding=1))


def _window(x):
    return x.view(32, 8, 7, 8, 7, 96).permute(0, 1, 3, 2, 4, 5).contiguous().view(-1, 49, 96)


LONG = (4096, 393216 // 8)  # rows that no program holds
MATRIX, IMAGE, CUBE = (16384, 4096), (64, 64, 112, 112), (128, 4096, 4095)

_KINDS: dict[str, tuple[Callable[..., Any], Callable[[], list[torch.Tensor]]]] = {
    # activations
    "relu": (lambda x: torch.relu(x), lambda: [f32(*LONG)]),
    "leaky_relu": (lambda x: F.leaky_relu(x, 0.01), lambda: [f32(*LONG)]),
    "gelu": (lambda x: F.gelu(x), lambda: [f32(*LONG)]),
    "gelu by hand": (_own_gelu, lambda: [f32(8192, 8192)]),
    "swish": (lambda x: x * torch.sigmoid(x), lambda: [f32(*LONG)]),
    "mish": (lambda x: F.mish(x), lambda: [f32(*LONG)]),
    "selu, odd sizes": (lambda x: torch.selu(x), lambda: [f32(4097, 4099)]),
    "hardtanh of bfloat16": (lambda x: F.hardtanh(x, -1, 1), lambda: [bf16(*LONG)]),
    # folds
    "sum of rows": (lambda x: x.sum(-1), lambda: [f32(*MATRIX)]),
    "sum of columns": (lambda x: x.sum(0), lambda: [f32(*MATRIX)]),
    "sum over the middle": (lambda x: x.sum(1, keepdim=True), lambda: [f32(*CUBE)]),
    "mean over the middle": (lambda x: x.mean(1), lambda: [f32(*CUBE)]),
    "max over the middle": (lambda x: x.amax(1), lambda: [f32(*CUBE)]),
    "prod over the middle": (lambda x: x.prod(1), lambda: [f32(128, 256, 4096)]),
    "argmax over the middle": (lambda x: x.argmax(1), lambda: [f32(*CUBE)]),
    "argmin of rows": (lambda x: x.argmin(-1), lambda: [f32(*MATRIX)]),
    "argmax of columns": (lambda x: x.argmax(0), lambda: [f32(*MATRIX)]),
    "variance over the middle": (lambda x: x.var(1), lambda: [f32(128, 256, 4096)]),
    "sum of everything": (lambda x: x.sum(), lambda: [f32(*MATRIX)]),
    "frobenius norm": (_frobenius, lambda: [f32(112, 64, 512, 512 // 4)]),
    "l1 norm of rows": (lambda x: x / x.abs().mean(1, keepdim=True), lambda: [f32(*LONG)]),
    "l2 norm of rows": (lambda x: x / x.norm(dim=1, keepdim=True), lambda: [f32(*LONG)]),
    "logsumexp of rows": (lambda x: torch.logsumexp(x, 1), lambda: [f32(*MATRIX)]),
    # softmax and norms
    "softmax of rows": (lambda x: torch.softmax(x, -1), lambda: [f32(*LONG)]),
    "log_softmax of rows": (lambda x: torch.log_softmax(x, 1), lambda: [f32(4096, 16384)]),
    "softmax of channels": (lambda x: torch.softmax(x, 1), lambda: [f32(*IMAGE)]),
    "log_softmax of 21 classes": (
        lambda x: torch.log_softmax(x, 1),
        lambda: [f32(8, 21, 512, 512)],
    ),
    "softmax over W of NHWC": (
        lambda x: torch.softmax(x.permute(0, 3, 1, 2), -1),
        lambda: [f32(16, 64, 128, 64)],
    ),
    "batch norm, inference": (
        lambda x, m, v, w, b: F.batch_norm(x, m, v, w, b),
        lambda: [f32(*IMAGE), *(f32(64) for _ in range(4))],
    ),
    "instance norm": (lambda x: F.instance_norm(x), lambda: [f32(*IMAGE)]),
    "group norm": (
        lambda x, w, b: F.group_norm(x, 8, w, b),
        lambda: [f32(*IMAGE), f32(64), f32(64)],
    ),
    "group norm of NHWC": (
        lambda x, w, b: F.group_norm(x, 8, w, b),
        lambda: [last(f32(*IMAGE)), f32(64), f32(64)],
    ),
    "RMSNorm of channels": (lambda x: _rms(x, 1), lambda: [f32(*IMAGE)]),
    "LayerNorm of channels": (lambda x: _standardised(x, 1), lambda: [f32(64, 96, 56, 56)]),
    "LayerNorm of images": (
        lambda x, w, b: F.layer_norm(x, (64, 256, 256), w, b),
        lambda: [f32(16, 64, 256, 256), f32(64, 256, 256), f32(64, 256, 256)],
    ),
    "normalize channels": (lambda x: F.normalize(x, dim=1), lambda: [f32(*IMAGE)]),
    # pooling
    "max_pool1d": (lambda x: F.max_pool1d(x, 8, 1, 4, 3), lambda: [f32(64, 192, 65536)]),
    "max_pool2d": (lambda x: F.max_pool2d(x, 4, 1, 1), lambda: [f32(32, 64, 512, 512)]),
    "max_pool2d, stride 2": (lambda x: F.max_pool2d(x, 3, 2, 1), lambda: [f32(*IMAGE)]),
    "max_pool3d": (lambda x: F.max_pool3d(x, 3, 2, 1), lambda: [f32(16, 32, 128, 128, 128)]),
    "avg_pool1d": (lambda x: F.avg_pool1d(x, 8, 1, 4), lambda: [f32(64, 128, 65536)]),
    "avg_pool2d": (lambda x: F.avg_pool2d(x, 11), lambda: [f32(16, 64, 2048, 2048)]),
    "avg_pool3d": (lambda x: F.avg_pool3d(x, 3, 2, 1), lambda: [f32(16, 32, 128, 128, 256)]),
    "global average": (lambda x: F.adaptive_avg_pool2d(x, 1), lambda: [f32(*IMAGE)]),
    # scans
    "cumsum": (lambda x: x.cumsum(1), lambda: [f32(32768, 4096)]),
    "cumprod": (lambda x: x.cumprod(1), lambda: [f32(32768, 4096)]),
    "cumsum in reverse": (lambda x: x.flip(1).cumsum(1).flip(1), lambda: [f32(32768, 4096)]),
    "cumsum, exclusive": (
        lambda x: torch.cat((torch.zeros_like(x.select(1, 0).unsqueeze(1)), x), 1)[:-1].cumsum(1),
        lambda: [f32(32768, 4096)],
    ),
    "cumsum behind zeros": (
        lambda x: torch.cat((torch.zeros_like(x[:, :1]), x[:, :-1].cumsum(1)), 1),
        lambda: [f32(32768, 4096)],
    ),
    "masked cumsum": (lambda x, m: (x * m).cumsum(1), lambda: [f32(32768, 4096), f32(32768, 4096)]),
    # losses
    "mse": (lambda x, y: F.mse_loss(x, y), lambda: [f32(*MATRIX), f32(*MATRIX)]),
    "huber": (lambda x, y: F.smooth_l1_loss(x, y), lambda: [f32(*MATRIX), f32(*MATRIX)]),
    "hinge": (lambda x, y: (1 - x * y).clamp(min=0).mean(), lambda: [f32(*MATRIX), f32(16384, 1)]),
    "kl_div": (
        lambda p, q: F.kl_div(p.log(), q, reduction="batchmean"),
        lambda: [f32(*MATRIX), f32(*MATRIX)],
    ),
    "cosine": (
        lambda x, y: (1 - F.cosine_similarity(x, y, dim=1)).mean(),
        lambda: [f32(*MATRIX), f32(*MATRIX)],
    ),
    "triplet": (_triplet, lambda: [f32(*MATRIX), f32(*MATRIX), f32(*MATRIX)]),
    "cross entropy of images": (
        lambda x, y: F.cross_entropy(x, y),
        lambda: [f32(16, 21, 256, 256), i64(16, 256, 256)],
    ),
    # products with something behind
    "linear, relu": (
        lambda x, w, b: F.relu(F.linear(x, w, b)),
        lambda: [f32(1024, 8192), f32(8192, 8192), f32(8192)],
    ),
    "linear, swish, scale": (
        lambda x, w, b: torch.sigmoid(y := F.linear(x, w, b)) * y * 2.0,
        lambda: [f32(1024, 8192), f32(8192, 8192), f32(8192)],
    ),
    "linear, sum, logsumexp": (
        lambda x, w, b: torch.logsumexp(F.linear(x, w, b).sum(1, keepdim=True), 1),
        lambda: [f32(1024, 8192), f32(8192, 8192), f32(8192)],
    ),
    "linear, group norm, hardtanh": (
        lambda x, w, b, s, t: F.hardtanh(F.group_norm(F.linear(x, w, b), 16, s, t)),
        lambda: [f32(1024, 8192), f32(8192, 8192), f32(8192), f32(8192), f32(8192)],
    ),
    "linear, gelu, softmax": (
        lambda x, w, b: torch.softmax(F.gelu(F.linear(x, w, b)), 1),
        lambda: [f32(1024, 8192), f32(8192, 8192), f32(8192)],
    ),
    "linear, dropout of none, mean": (
        lambda x, w, b: F.linear(x, w, b).mean(1, keepdim=True),
        lambda: [f32(128, 16384), f32(16384, 16384), f32(16384)],
    ),
    "product of odd sizes": (lambda x, y: x @ y, lambda: [f32(8205, 2949), f32(2949, 5921)]),
    "product of odd sizes, bfloat16": (
        lambda x, y: x @ y,
        lambda: [bf16(8205, 2949), bf16(2949, 5921)],
    ),
    "gated linear of bfloat16": (
        lambda x, w, v: F.silu(x @ w) * (x @ v),
        lambda: [bf16(4096, 4096), bf16(4096, 11008), bf16(4096, 11008)],
    ),
    "attention by hand": (
        _attention,
        lambda: [f32(32, 12, 512, 64), f32(32, 12, 512, 64), f32(32, 12, 512, 64)],
    ),
    # convolutions with something behind
    "conv, relu, bias": (
        lambda x, w, b, c: F.relu(F.conv2d(x, w, b)) + c,
        lambda: [f32(128, 64, 128, 128), f32(128, 64, 3, 3), f32(128), f32(128, 1, 1)],
    ),
    "conv, min, tanh": (
        lambda x, w, b: torch.tanh(torch.tanh(F.conv2d(x, w, b).amin(1, keepdim=True))),
        lambda: [f32(128, 16, 256, 256), f32(64, 16, 3, 3), f32(64)],
    ),
    "conv, group norm, relu": (
        _conv_norm,
        lambda: [f32(128, 8, 128, 128), f32(64, 8, 3, 3), f32(64), f32(64), f32(64)],
    ),
    "conv, instance norm, divide": (
        lambda x, w, b: F.instance_norm(F.conv2d(x, w, b)) / 2.0,
        lambda: [f32(128, 64, 128, 128), f32(128, 64, 3, 3), f32(128)],
    ),
    "conv, tanh, pool": (
        lambda x, w, b, c: F.max_pool2d(torch.tanh(F.conv2d(x, w, b)) * 2.0 + c, 4),
        lambda: [f32(128, 16, 256, 256), f32(64, 16, 3, 3), f32(64), f32(64, 1, 1)],
    ),
    "conv, gelu, mean": (
        lambda x, w, b: F.gelu(F.conv2d(x, w, b)).mean((2, 3)),
        lambda: [f32(128, 16, 256, 256), f32(64, 16, 3, 3), f32(64)],
    ),
    "conv of few channels, relu": (
        lambda x, w: F.relu(F.conv2d(x, w)),
        lambda: [f32(128, 8, 256, 256), f32(64, 8, 3, 3)],
    ),
    "conv alone": (
        lambda x, w: F.conv2d(x, w),
        lambda: [f32(16, 64, 512, 512), f32(128, 64, 1, 1)],
    ),
    "two convs, residual": (
        _residual,
        lambda: [f32(32, 64, 112, 112), f32(64, 64, 3, 3), f32(64, 64, 3, 3)],
    ),
    "transposed conv, softmax, sigmoid": (
        _conv_softmax,
        lambda: [f32(128, 64, 64, 64), f32(64, 128, 4, 4), f32(128), f32(128, 1, 1)],
    ),
    "conv3d, softmax, pool": (
        lambda x, w, b: F.max_pool3d(torch.softmax(F.conv3d(x, w, b), 1), 2),
        lambda: [f32(128, 3, 16, 32, 32), f32(16, 3, 3, 3, 3), f32(16)],
    ),
    "depthwise conv": (
        lambda x, w: F.conv2d(x, w, groups=128),
        lambda: [f32(16, 128, 256, 512), f32(128, 1, 3, 3)],
    ),
    # elementwise, operands in other orders
    "transposed view, add": (lambda x, y: x.t() + y, lambda: [f32(8192, 8192), f32(8192, 8192)]),
    "transposed copies, product": (
        lambda x, y, z: x.t().contiguous() * y + z.t().contiguous(),
        lambda: [f32(4096, 8192), f32(8192, 4096), f32(4096, 8192)],
    ),
    "transposed copy, flat": (
        lambda x, y: x.t().reshape(-1) + y,
        lambda: [f32(4096, 8192), f32(4096 * 8192)],
    ),
    "transposed copy of odd sizes": (
        lambda x, y: x.t().contiguous() + y,
        lambda: [f32(4097, 4099), f32(4099, 4097)],
    ),
    "NHWC and NCHW": (lambda x, y: x + y, lambda: [last(f32(*IMAGE)), f32(*IMAGE)]),
    "channels last, bias, sigmoid": (
        lambda x, b: torch.sigmoid(x.permute(0, 2, 3, 1).contiguous() + b),
        lambda: [f32(*IMAGE), f32(64)],
    ),
    "five axes, channels to the end": (
        lambda x: x.permute(0, 2, 3, 4, 1).contiguous().tanh(),
        lambda: [f32(16, 32, 32, 64, 64)],
    ),
    "windows": (lambda x: _window(x) * 2.0, lambda: [bf16(32, 56, 56, 96)]),
    "channel shuffle": (
        lambda x: x.view(64, 4, 58, 28, 28).transpose(1, 2).reshape(64, 232, 28, 28).relu(),
        lambda: [f32(64, 232, 28, 28)],
    ),
    "batched transpose, bias, gelu": (
        lambda x, b: F.gelu(x.transpose(1, 2).contiguous() + b),
        lambda: [bf16(64, 1024, 768), bf16(1024)],
    ),
}


def _kind(name: str) -> Made:
    function, inputs = _KINDS[name]
    return function, inputs()


PROGRAMS: dict[str, Callable[[], Made]] = {
    **{f"row {name}": lambda name=name: _row(name) for name in ROWS},
    **{name: lambda name=name: _kind(name) for name in _KINDS},
}
