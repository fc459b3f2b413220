"""Convolutions of each of a few channels by itself, on turned images."""

import pytest
import torch
from dynfix.lowering.loops.kernel_graph import ExternCall

from .harness import check, check_gradients, units

F = torch.nn.functional
aten = torch.ops.aten


def turned(made):
    """For each library convolution, whether its image is in channels-last order."""
    calls = [item for unit in made for item in unit.items if isinstance(item, ExternCall)]
    convolutions = (aten.convolution.default, aten.convolution_backward.default)
    images = [call.args[0] for call in calls if call.target in convolutions]
    return [image.strides[1] == 1 for image in images]


@pytest.mark.covering
@pytest.mark.parametrize("channels", [2, 3, 8])
@pytest.mark.parametrize(
    "settings",
    [{}, {"padding": 2}, {"stride": 2, "padding": 1}, {"dilation": (1, 2), "padding": (0, 3)}],
    ids=str,
)
def test_forward_and_gradients(monkeypatch, channels, settings):
    made = units(monkeypatch)
    x, w = torch.randn(2, channels, 19, 17), torch.randn(channels, 1, 3, 5)
    check(
        lambda x, w: F.conv2d(x * 2, w, groups=channels, **settings) + 1, x, w, rtol=1e-4, atol=1e-5
    )
    check_gradients(lambda x, w: F.conv2d(x.sin(), w, groups=channels, **settings).tanh(), x, w)
    assert turned(made) == [True] * 3


def test_bias_and_an_image_that_needs_no_gradient(monkeypatch):
    made = units(monkeypatch)
    image, w, b = torch.randn(3, 3, 20, 20), torch.randn(3, 1, 5, 5), torch.randn(3)
    check_gradients(lambda w, b: F.conv2d(image_of(w), w, b, padding=2, groups=3), w, b)
    check(lambda x, w, b: F.conv2d(x, w, b, groups=3).relu(), image, w, b, rtol=1e-4, atol=1e-5)
    assert all(turned(made))


def image_of(w):
    return torch.ones(2, 3, 16, 16) * w.detach().sum()


@pytest.mark.parametrize(
    "shape, weight, groups",
    [
        ((2, 16, 20, 20), (16, 1, 3, 3), 16),  # more channels
        ((2, 4, 20, 20), (8, 1, 3, 3), 4),  # two results for each
        ((2, 4, 20, 20), (4, 2, 3, 3), 2),  # two channels together
        ((2, 3, 6, 6), (3, 1, 3, 3), 3),  # a small image
    ],
)
def test_others_stay(monkeypatch, shape, weight, groups):
    made = units(monkeypatch)
    x, w = torch.randn(shape), torch.randn(weight)
    check(lambda x, w: F.conv2d(x, w, groups=groups) + 1, x, w, rtol=1e-4, atol=1e-5)
    assert turned(made) == [False]


def test_images_in_channels_last_order_stay(monkeypatch):
    made = units(monkeypatch)
    x = torch.randn(2, 3, 20, 20).to(memory_format=torch.channels_last)
    w = torch.randn(3, 1, 3, 3)
    check_gradients(lambda x, w: F.conv2d(x, w, groups=3) * 2, x, w)
    assert all(turned(made))
