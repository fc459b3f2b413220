"""Operands in another order of axes, folds over channels: tiles of two sides, columns in registers,
and the loops that take their place where a program holds less."""

import math

import pytest
import torch
import torch.nn.functional as F
from dynfix.lowering.targets.triton import triton_split, triton_tile
from lowering_tests import test_sink
from lowering_tests.harness import check, check_gradients

NHWC = torch.channels_last
CASES = {
    "copy": (lambda x, y: x.t().contiguous() + y, (33, 129), (129, 33)),
    "flat copy": (lambda x, y: x.t().reshape(-1) * y, (64, 96), (6144,)),
    "three axes": (lambda x: x.permute(2, 0, 1).contiguous().sin(), (17, 19, 33)),
    "planes": (lambda x: x.permute(0, 3, 1, 2).contiguous() * 2, (2, 33, 35, 3)),
    "unshuffle": (lambda x: F.pixel_unshuffle(x, 3) + 1, (2, 3, 99, 66)),
    "patches": (
        lambda x, p: x.flatten(2).transpose(1, 2).contiguous() + p,
        (2, 48, 7, 7),
        (49, 48),
    ),
    "to channels last": (lambda x: x.contiguous(memory_format=NHWC).relu(), (2, 17, 9, 11)),
    "sums": (lambda x, y: (x.t().contiguous() + y).sum(-1), (65, 130), (130, 65)),
    "groups": (
        lambda x: F.group_norm(x.contiguous(memory_format=NHWC), 4),
        (3, 20, 7, 9),
    ),
    "softmax along W": (lambda x: torch.softmax(x.permute(0, 3, 1, 2), -1), (2, 5, 33, 20)),
    "softmax of channels": (lambda x: torch.softmax(x, 1), (2, 21, 9, 11)),
    "interleaved": (
        lambda x, c: x * c + torch.stack((-x[..., 1::2], x[..., ::2]), -1).reshape(x.shape) * c,
        (3, 17, 14),
        (17, 14),
    ),
    "interleaved integers": (
        lambda x: (
            y := x.mul(9).int(),
            torch.stack((y[..., 1::2], y[..., ::2]), -1).view_as(y) - y,
        )[1],
        (5, 34),
    ),
    "other rows": (
        lambda x, y: torch.stack((x[1:, 1::2], x[:-1, ::2]), -1).view(2, 16) * y + x[1:] * x[:-1],
        (3, 16),
        (2, 16),
    ),
    "neighbours of every other": (
        lambda x: x[:, ::2].repeat_interleave(2, 1) + x[:, 1::2].repeat_interleave(2, 1) * x,
        (5, 300),
    ),
    "three in turn": (
        lambda x, y: torch.stack((x, y + 1, x * 2), 2).flatten(1).sum(1),
        (7, 19),
        (7, 19),
    ),
    "joined, cut": (
        lambda x, y: torch.cat((x, y), 1).view(4, 3, 10)[:, :, 1:].exp() + 1,
        (4, 13),
        (4, 17),
    ),
    "softmax of odd images": (lambda x: torch.softmax(x, 1), (3, 40, 7, 7)),
    "no channels": (lambda x: (torch.softmax(x, 1), x.sum(1)), (3, 0, 7, 8)),
    "no images": (lambda x: torch.softmax(x, 1), (0, 40, 7, 8)),
    "norm of patches": (
        lambda x, w: F.layer_norm(x.flatten(2).transpose(1, 2).contiguous(), (48,), w),
        (2, 48, 14, 14),
        (48,),
    ),
    "norm of channels": (
        lambda x, w: (x - x.mean(1, True)) * x.var(1, keepdim=True).rsqrt() * w[:, None, None],
        (2, 96, 7, 9),
        (96,),
    ),
}


@pytest.mark.parametrize("short", [False, True], ids=["registers", "loops"])
@pytest.mark.parametrize("name", CASES)
def test_reordered(name, short, monkeypatch):
    if short:
        for module in (triton_tile, triton_split):
            monkeypatch.setattr(module, "PERSISTENT", 64)
            monkeypatch.setattr(module, "LOOPED", 32)
    function, *shapes = CASES[name]
    check(function, *(torch.randn(shape) for shape in shapes), rtol=1e-4, atol=1e-5)


WINDOWS = {
    "average": (lambda x: F.avg_pool3d(x, 3, 2, 1), (1, 2, 5, 6, 7)),
    "average of what there is": (
        lambda x: F.avg_pool3d(x, 3, 2, 1, count_include_pad=False, ceil_mode=True),
        (1, 2, 6, 5, 7),
    ),
    "large": (lambda x: F.avg_pool2d(x, 11, 7) + 1, (2, 3, 33, 40)),
    "largest": (lambda x: F.max_pool3d(x, 3, 2, 1), (1, 2, 5, 6, 7)),
    "written out": (lambda x: F.max_pool1d(x, 5, 1, 2), (2, 3, 41)),
    "stencil": (lambda x: x[:, 2:] + x[:, 1:-1] * 2 - x[:, :-2], (5, 131)),
    "strides": (lambda x: F.avg_pool2d(x.transpose(2, 3), 5, 3, 2), (1, 2, 9, 12)),
    "overlapping": (lambda x: x.unfold(-1, 20, 2).sum(-1), (3, 70)),
    "blocks": (lambda x: x.view(2, 5, 4, 6, 8).sum((2, 4)), (2, 20, 48)),
}


@pytest.mark.parametrize(
    ("name", "dtype"),
    [(name, torch.float32) for name in WINDOWS]
    + [
        (name, torch.bfloat16)
        for name in ("large", "written out", "stencil", "overlapping", "blocks")
    ],
)
def test_windows_are_folded_in_turn(name, dtype, monkeypatch):
    monkeypatch.setattr(triton_tile, "MAX_WINDOWS", 4)
    function, shape = WINDOWS[name]
    x = torch.randn(shape).to(dtype)
    x.view(-1)[::41], x.view(-1)[7], x.view(-1)[60] = -math.inf, math.nan, math.inf
    rough = 1e-5 if dtype == torch.float32 else 2e-2
    check(function, x, rtol=rough, atol=rough)


@pytest.mark.parametrize("shape", [(1, 20, 4, 8), (2, 3, 9, 6)])
def test_places_of_maxima_count_along_the_plane(shape):
    x = torch.randn(shape).relu().contiguous(memory_format=NHWC)
    x[0, 1, 2, 3], x[0, 2] = math.nan, -math.inf
    check(lambda x: F.max_pool2d_with_indices(x, 3, 1, 1)[1] + 1, x)
    check(lambda x: F.max_pool2d_with_indices(x, (3, 2), (2, 1), (1, 0), (1, 2))[1] + 1, x)
    y = torch.randn(shape).to(memory_format=NHWC)
    check_gradients(lambda x: F.max_pool2d(x.relu(), 3, 1, 1), y)


@pytest.mark.parametrize("name", test_sink.SCANS)
def test_scans_store_in_another_order(name):
    test_sink.test_scans_store_in_another_order(name)


def depthwise(*shape, kernel=(3, 3), **more):
    """A convolution of each channel by itself, between what joins it."""
    groups, multiplier = shape[1], more.pop("multiplier", 1)
    convolve = (F.conv1d, F.conv2d, F.conv3d)[len(shape) - 3]
    weight = torch.randn(groups * multiplier, 1, *kernel)

    def function(x, w, b):
        return F.relu(convolve(x * 2, w, b, groups=groups, **more)) + 1

    return function, torch.randn(shape), weight, torch.randn(groups * multiplier)


DEPTHWISE = {
    "plain": lambda: depthwise(2, 5, 9, 11),
    "planes": lambda: depthwise(1, 3, 18, 18),
    "padded": lambda: depthwise(2, 5, 9, 11, kernel=(5, 5), padding=2),
    "strides": lambda: depthwise(2, 5, 9, 11, stride=(2, 3), padding=1, dilation=(1, 2)),
    "one side": lambda: depthwise(2, 4, 9, 11, kernel=(3, 1), multiplier=2),
    "signals": lambda: depthwise(2, 4, 40, kernel=(7,), padding=3),
    "volumes": lambda: depthwise(1, 3, 5, 6, 7, kernel=(2, 3, 3), padding=1),
    "many products": lambda: depthwise(1, 3, 12, 12, kernel=(7, 7)),
}


@pytest.mark.parametrize("name", DEPTHWISE)
def test_convolutions_of_single_channels(name):
    function, *inputs = DEPTHWISE[name]()
    check(function, *inputs, rtol=1e-4, atol=1e-5)
    check(lambda x, w, b: function(x, w, None), *inputs, rtol=1e-4, atol=1e-5)
    inputs[0].view(-1)[::37] = math.nan
    check(function, *inputs, rtol=1e-4, atol=1e-5)


def test_convolutions_of_single_channels_in_bfloat16():
    function, *inputs = depthwise(2, 5, 9, 11, padding=1)
    check(function, *(each.bfloat16() for each in inputs), rtol=2e-2, atol=2e-2)
    check_gradients(function, *inputs)


GROUPS = {
    "norm": lambda x: F.group_norm(x, 4),
    "sums": lambda x: x.unflatten(1, (4, 5)).sum((2, 3, 4)),
    "extremes": lambda x: (y := x.unflatten(1, (4, 5)), y.amax((2, 3, 4)), y.amin((2, 3, 4)))[1:],
    "places": lambda x: x.unflatten(1, (4, 5)).flatten(2).argmax(-1),
    "softmax": lambda x: torch.logsumexp(x.unflatten(1, (4, 5)), (2, 3, 4)),
}


@pytest.mark.parametrize("side", [8, 9], ids=["parts alike", "a shorter one"])
@pytest.mark.parametrize("name", GROUPS)
def test_groups_of_channels_that_lie_last(name, side, monkeypatch):
    """Each channel is a column of its own, of which parts are folded."""
    monkeypatch.setattr(triton_split, "LEAST_SPLIT", 256)
    monkeypatch.setattr(triton_split, "FEWEST", 16)
    x = (torch.randn(2, 20, side, side) * 2 + 30).contiguous(memory_format=NHWC)
    check(GROUPS[name], x, rtol=1e-4, atol=1e-4)
    x[0, 7, 3, 5], x[1, 8:11] = math.nan, math.inf
    check(GROUPS[name], x, rtol=1e-4, atol=1e-4)


def test_columns_are_folded_in_parts():
    x, y = torch.randn(1000, 70), torch.randn(70, 1000)
    check(lambda x, y: (x.t().contiguous() + y).sum(-1), x, y, rtol=1e-4, atol=1e-4)


def test_columns_that_are_picked():
    """Neighbours come from anywhere."""
    table, picked = torch.randn(40, 100), torch.randint(100, (130,))
    check(lambda t, i: torch.softmax(t[:, i], 0), table, picked, rtol=1e-4, atol=1e-5)


def test_special_numbers_stay_in_their_columns():
    x = torch.randn(2, 40, 6, 8) * 30
    x[0, 3, 2, 1], x[0, 5, 2, 2], x[1, :, 1, 1], x[1, 0, 5, 7] = math.nan, math.inf, -math.inf, 3e38
    check(
        lambda x: (torch.softmax(x, 1), x.amax(1), F.normalize(x, dim=1)), x, rtol=1e-4, atol=1e-5
    )


@pytest.mark.parametrize("name", ["copy", "unshuffle", "softmax of channels", "interleaved"])
def test_bfloat16(name):
    function, *shapes = CASES[name]
    inputs = (torch.randn(shape).bfloat16() for shape in shapes)
    check(function, *inputs, rtol=2e-2, atol=2e-2)
