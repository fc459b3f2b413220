"""Accesses across the last axis are turned in blocks; positions made of axes are evaluated."""

import pytest
import torch
from dynfix.lowering.targets import cpp_build
from torch.nn import functional as F

from .harness import check


@pytest.fixture
def sources(monkeypatch):
    """The C++ of every library that is built."""
    found = []
    build = cpp_build.build_shared
    monkeypatch.setattr(
        cpp_build, "build_shared", lambda text, **rest: found.append(text) or build(text, **rest)
    )
    return found


def kernels(sources):
    return "".join(text[text.index('extern "C" int64_t') :] for text in sources)


def make(shape, dtype):
    if dtype.is_floating_point:
        return torch.randn(shape).to(dtype)
    return torch.randint(0, 2 if dtype == torch.bool else 100, shape).to(dtype)


@pytest.mark.parametrize(
    "dtype",
    [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int8, torch.bool],
    ids=str,
)
@pytest.mark.parametrize("shape", [(64, 128), (33, 70), (200, 131), (8, 300)], ids=str)
def test_transposed_operands(dtype, shape, sources):
    check(
        lambda a, b: torch.where(a == b.t(), a, b.t()), make(shape, dtype), make(shape[::-1], dtype)
    )
    assert "op_transpose" in kernels(sources)


def test_several_operands_lie_across(sources):
    a, b, c = (
        make((3, 40, 50), torch.float32),
        make((3, 50, 40), torch.float32),
        make((50, 40), torch.float32),
    )
    check(lambda a, b, c: a + b.transpose(1, 2) * c.t(), a, b, c)
    assert kernels(sources).count("op_transpose") == 2


def test_results_that_lie_across(sources):
    def both(x):
        y = x * 2
        return y, y.permute(0, 2, 1).contiguous()

    check(both, make((4, 37, 90), torch.float32))


def test_to_channels_last():
    check(lambda x: x.permute(0, 2, 3, 1).contiguous() + 1, make((2, 24, 9, 11), torch.float32))
    check(
        lambda x: x.contiguous(memory_format=torch.channels_last) + 1,
        make((2, 24, 9, 11), torch.float32),
    )


@pytest.mark.parametrize("mode", ["nearest", "bilinear"])
@pytest.mark.parametrize("scale", [2, 3, 4, 1.5, 0.5])
def test_upsampling(mode, scale, sources):
    check(
        lambda x: F.interpolate(x, scale_factor=scale, mode=mode) + 1,
        make((2, 3, 40, 42), torch.float32),
    )
    if scale in (2, 4) or (mode == "nearest" and scale == 3):
        assert "is_outside" not in kernels(sources)


def test_corners_aligned():
    check(
        lambda x: F.interpolate(x, size=(57, 90), mode="bilinear", align_corners=True),
        make((2, 3, 40, 42), torch.float32),
    )


def test_a_computed_position_out_of_range_still_raises():
    def beyond(x):
        return x[:, torch.arange(8) * 5] + 1

    with pytest.raises(IndexError):
        check(beyond, make((4, 12), torch.float32))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
def test_whole_numbers_in_floating_point(dtype):
    check(lambda x: x + torch.arange(3, 203, 2, dtype=dtype), make((4, 100), dtype))
    check(lambda x: x + torch.arange(100, dtype=dtype) * 0.3, make((4, 100), dtype))
    check(lambda x: x + torch.arange(0, 10, 0.1, dtype=dtype), make((4, 100), dtype))
