"""Nearest neighbours, at eager's positions."""

import pytest
import torch
from torch.nn.functional import interpolate

from .harness import check, check_gradients

SIZES = [{"scale_factor": 2}, {"size": (7, 5)}, {"size": (33, 3)}, {"scale_factor": (1.5, 0.7)}]


@pytest.mark.parametrize("more", SIZES)
def test_nearest(more):
    check(lambda x: interpolate(x, **more) + 1, torch.randn(2, 3, 11, 6))


@pytest.mark.parametrize("size", [1, 3, 10, 47, 100])
def test_positions_that_rounding_decides(size):
    check(lambda x: interpolate(x, size=size), torch.arange(49.0).view(1, 1, 49))


def test_channels_last_and_gradient():
    x = torch.randn(2, 3, 6, 5).to(memory_format=torch.channels_last)
    check(lambda x: interpolate(x, scale_factor=3), x)
    check_gradients(lambda x: interpolate(x, scale_factor=2), torch.randn(2, 3, 4, 5))


def test_float_ranges():
    check(lambda x: x + torch.arange(6, dtype=torch.float32), torch.randn(6))


@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
@pytest.mark.parametrize("more", [{"size": (9, 8)}, {"scale_factor": (1.5, 0.7)}])
def test_images_of_bytes_are_rounded_as_by_eager(mode, more):
    x = torch.randint(0, 255, (2, 3, 16, 15), dtype=torch.uint8)
    check(lambda x: interpolate(x, mode=mode, **more) // 2, x, rtol=0, atol=0)
