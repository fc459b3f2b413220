"""Running sums and products, in registers and in loops."""

import pytest
import torch
from dynfix.lowering.targets.triton import triton_build, triton_tile
from lowering_tests.harness import check

CASES = [((7,), 0), ((5, 100), 1), ((100, 5), 0), ((3, 40, 20), 1), ((4, 1), 1), ((2, 64), 1)]


@pytest.mark.parametrize("long", [False, True], ids=["registers", "loops"])
@pytest.mark.parametrize(("shape", "dim"), CASES)
def test_cumsum(shape, dim, long, monkeypatch):
    if long:
        monkeypatch.setattr(triton_tile, "PERSISTENT", 8)
        monkeypatch.setattr(triton_tile, "LOOPED", 16)
    check(lambda x: torch.cumsum(x * 2 - 1, dim) * 3, torch.randn(shape), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64, torch.int32, torch.bool])
def test_types(dtype):
    check(lambda x: torch.cumsum(x, 1), torch.randn(6, 50).mul(3).to(dtype))


def test_cumprod_in_loops(monkeypatch):
    monkeypatch.setattr(triton_tile, "PERSISTENT", 8)
    monkeypatch.setattr(triton_tile, "LOOPED", 16)
    check(lambda x: torch.cumprod(x, 1), torch.rand(9, 41) + 0.5, rtol=1e-4, atol=1e-5)


def test_a_few_long_rows_are_left_to_the_library(monkeypatch):
    monkeypatch.setattr(triton_build, "load_groups", lambda *_: 1 / 0)
    check(lambda x: torch.cumsum(x, 1), torch.randn(2, 5000))
