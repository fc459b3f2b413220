"""Convolutions as matrix products inside of a kernel, with what reads them."""

import dynfix
import pytest
import torch
from dynfix.lowering.lowerings import lower_implicit_gemm
from dynfix.lowering.targets.triton import triton_target
from torch import nn

PRECISION = torch.backends.cudnn.conv


@pytest.fixture(autouse=True)
def small(monkeypatch, tmp_path):
    monkeypatch.setenv("DYNFIX_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(lower_implicit_gemm, "_LEAST_POINTS", 1)
    before, PRECISION.fp32_precision = PRECISION.fp32_precision, "tf32"
    yield
    PRECISION.fp32_precision = before


@pytest.fixture
def kernels(monkeypatch):
    """The texts of the kernels that are printed."""
    texts = []
    printed = triton_target.print_kernel

    def noted(*given, **named):
        made = printed(*given, **named)
        texts.append(made.text)
        return made

    monkeypatch.setattr(triton_target, "print_kernel", noted)
    return texts


class Layer(nn.Module):
    def __init__(self, *conv, sides=2, then=torch.relu, kind="Conv", **named):
        super().__init__()
        self.conv, self.then = getattr(nn, f"{kind}{sides}d")(*conv, **named), then

    def forward(self, x):
        return self.then(self.conv(x))


def compiled(module):
    return dynfix.compile(module.eval(), options={"target": "triton"}, fullgraph=True)


def close(module, call, *shape, tolerance=2e-6):
    with torch.no_grad():
        for _ in range(3):
            x = torch.randn(shape)
            made, expected = call(x), module(x)
            assert made.stride() == expected.stride()
            torch.testing.assert_close(made, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (Layer(3, 8, 3), (2, 3, 9, 9)),
        (Layer(3, 20, 3, 2, 1, bias=False), (2, 3, 9, 11)),
        (Layer(5, 17, (1, 3), (1, 2), (0, 1), (2, 1)), (2, 5, 8, 10)),
        (Layer(3, 16, 3, 1, 1, sides=3), (1, 3, 5, 6, 4)),
        (Layer(4, 16, 5, sides=1), (3, 4, 40)),
        (Layer(3, 8, 3, then=lambda y: y), (2, 3, 9, 9)),
        (Layer(3, 8, 3, then=lambda y: y.permute(0, 2, 3, 1).contiguous() * 2), (2, 3, 9, 9)),
        (Layer(3, 8, 3, then=lambda y: y.softmax(1)), (2, 3, 9, 9)),
        (Layer(3, 8, 3, then=lambda y: (y, y.sum(1))[0] + 1), (2, 3, 9, 9)),
        (Layer(3, 8, 3, padding=1, padding_mode="reflect"), (2, 3, 9, 9)),
        (Layer(3, 8, 3, kind="ConvTranspose"), (2, 3, 7, 9)),
        (Layer(3, 8, (1, 3, 3), (1, 2, 2), 1, kind="ConvTranspose", sides=3), (2, 3, 3, 4, 5)),
        (
            Layer(5, 8, (4, 3), (3, 1), (1, 2), (1, 0), dilation=(2, 1), kind="ConvTranspose"),
            (2, 5, 6, 7),
        ),
    ],
)
def test_few_channels(layer, shape, kernels):
    close(layer, compiled(layer), *shape)
    assert any("tl.dot" in text for text in kernels)


def test_what_reads_the_result_stands_in_the_kernel(kernels):
    layer = Layer(3, 8, 3, then=lambda y: torch.tanh(y) * 2)
    close(layer, compiled(layer), 2, 3, 12, 12)
    assert all("tl.dot" in text and text.count("tl.store") == 1 for text in kernels)


def test_channels_side_by_side_are_rounded_by_what_makes_them(kernels):
    """Two convolutions: the second one reads what the first one's kernel has rounded."""
    net = nn.Sequential(
        nn.Conv2d(16, 16, 3), nn.ReLU(), nn.Conv2d(16, 32, 3), nn.Hardswish(), nn.Conv2d(32, 8, 1)
    )
    layer = Layer(8, 8, 1)
    layer.conv = net
    close(layer, compiled(layer), 2, 16, 12, 12, tolerance=1e-2)
    products = [text for text in kernels if 'input_precision="tf32"' in text]
    assert products
    assert any("m.to_tf32(" in text.partition("tl.dot")[2] for text in products)


def test_numbers_that_are_none():
    layer = Layer(3, 8, 3, then=lambda y: y * 1)
    call = compiled(layer)
    close(layer, call, 1, 3, 8, 8)
    for number in (float("nan"), float("inf")):
        x = torch.randn(1, 3, 8, 8)
        x[0, 1, 4, 4] = number
        with torch.no_grad():
            made, expected = call(x), layer(x)
        assert torch.equal(made.isfinite(), expected.isfinite())


def test_gradients_pass():
    layer = Layer(3, 8, 3)
    call = dynfix.compile(layer, options={"target": "triton"}, fullgraph=True)
    for _ in range(3):
        x = torch.randn(2, 3, 8, 8)
        one, other = (x.clone().requires_grad_() for _ in range(2))
        call(one).sin().sum().backward()
        weight, layer.conv.weight.grad = layer.conv.weight.grad, None
        layer(other).sin().sum().backward()
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(weight, layer.conv.weight.grad, rtol=1e-4, atol=1e-5)
        layer.conv.weight.grad = None


def test_full_precision_is_left_to_the_library(kernels):
    PRECISION.fp32_precision = "ieee"
    layer = Layer(3, 8, 3)
    close(layer, compiled(layer), 2, 3, 9, 9)
    assert not any("tl.dot" in text for text in kernels)


def test_a_change_of_precision_compiles_again(kernels):
    layer = Layer(3, 8, 3)
    call = compiled(layer)
    close(layer, call, 2, 3, 9, 9)
    count = sum("tl.dot" in text for text in kernels)
    PRECISION.fp32_precision = "ieee"
    close(layer, call, 2, 3, 9, 9)
    assert sum("tl.dot" in text for text in kernels) == count
    assert not any("tl.dot" in text for text in kernels[count:])
