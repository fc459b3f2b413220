"""torch's own samples, compiled and in eager. The whole table is `python -m tests.operators.sweep`
or the slow tests."""

import pytest
import torch

from .op_tables import operators
from .sweep import check

# Operators whose lowerings differ in kind; forward and backward.
QUICK = (
    "mul softmax cumsum index_add index_copy scatter_reduce.amax gather"
    " nn.functional.layer_norm nn.functional.avg_pool2d nn.functional.max_pool2d where cat"
    " nn.functional.cross_entropy slice_scatter clamp std argmax"
).split()


@pytest.mark.parametrize("name", QUICK)
def test_samples(name):
    found = check(name, torch.float32, 2, True)
    assert found["samples"] and not found["differences"], found
    assert not found["eager"], found


@pytest.mark.parametrize("name", ["add", "mul", "clamp", "index_add", "scatter_add", "cumsum"])
def test_samples_written_in_place(name):
    found = check(name, torch.float32, 2, False, variant="inplace")
    assert found["samples"] and not found["differences"], found


@pytest.mark.parametrize("name", ["any", "var", "std", "double", "long", "softmax.with_dtype"])
def test_samples_of_complex_numbers(name):
    found = check(name, torch.complex64, 2, True)
    assert found["samples"] and not found["differences"], found
    assert not found["eager"], found


@pytest.mark.parametrize(
    "name", ["linspace", "nn.functional.embedding_bag", "nn.functional.unfold"]
)
def test_samples_of_bfloat16(name):
    found = check(name, torch.bfloat16, 16, True)
    assert found["samples"] and not found["differences"], found
    assert not found["eager"], found


@pytest.mark.slow
@pytest.mark.parametrize("name", operators())
def test_every_sample(name):
    found = check(name, torch.float32, None, True) or {"differences": []}
    assert not found["differences"], found["differences"]
