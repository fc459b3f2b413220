"""Accuracy of the functions written out in `triton_math`, against float64."""

import pytest
import torch
import triton
import triton.language as tl
from dynfix.lowering.targets.triton import triton_math as m
from dynfix.runtime.gpu.triton_kernels import load_source

NAMES = ("erf", "erf_fast", "tanh", "sigmoid", "sigmoid_fast", "exp_fast", "digamma")
HEADER = (
    "import triton\nimport triton.language as tl\nfrom dynfix.lowering.targets.triton import triton_math"
    " as m\n"
)
KERNEL = """

@triton.jit
def k_{name}(x, y, n):
    i = tl.program_id(0) * 1024 + tl.arange(0, 1024)
    tl.store(y + i, m.{name}(tl.load(x + i, mask=i < n, other=0.0)), mask=i < n)
"""
MODULE = load_source(HEADER + "".join(KERNEL.format(name=name) for name in NAMES), "math")


def run(name, x):
    y = torch.empty_like(x)
    getattr(MODULE, "k_" + name)[(triton.cdiv(x.numel(), 1024),)](x, y, x.numel())
    return y


def exact(name, x):
    return getattr(torch, name.removesuffix("_fast"))(x.double())


def grid():
    return torch.cat(
        [torch.linspace(-6, 6, 8001), torch.linspace(-0.7, 0.7, 8001), torch.logspace(-20, 0, 200)]
    )


def ulps(found, wanted):
    reference = wanted.float().abs()
    step = (torch.nextafter(reference, torch.tensor(torch.inf)) - reference).double()
    return ((found.double() - wanted).abs() / step).max().item()


@pytest.mark.parametrize(
    ("name", "limit"),
    [("erf", 4), ("tanh", 4), ("sigmoid", 4), ("sigmoid_fast", 10), ("exp_fast", 10)],
)
def test_within_ulps_of_float64(name, limit):
    x = grid()
    assert ulps(run(name, x), exact(name, x)) <= limit


def test_fast_erf_is_right_to_16_bits():
    """Absolutely, relatively near zero, and so well towards -1 that 1 + erf is right in GELU's tail."""
    x = torch.linspace(-6, 6, 8001)
    error = (run("erf_fast", x).double() - exact("erf_fast", x)).abs()
    assert error.max() <= 1.2e-5
    near, far = x.abs() < 0.1, x.abs() > 3
    assert (error[near] <= 3e-4 * x[near].abs() + 6e-8).all()
    assert error[far].max() <= 2e-7


def test_digamma():
    x = torch.cat([torch.linspace(0.01, 30, 500), torch.linspace(-4.9, -0.1, 49)])
    torch.testing.assert_close(
        run("digamma", x), torch.digamma(x.double()).float(), rtol=1e-4, atol=1e-5, equal_nan=True
    )


@pytest.mark.parametrize("name", ["erf", "erf_fast", "tanh", "sigmoid", "sigmoid_fast"])
def test_ends_of_the_line(name):
    x = torch.tensor([torch.nan, torch.inf, -torch.inf, 0.0, 100.0, -100.0])
    torch.testing.assert_close(
        run(name, x), exact(name, x).float(), rtol=1e-6, atol=1e-6, equal_nan=True
    )


def test_the_tests_run_in_the_interpreter():
    assert m.INTERPRETED and tl is not None
