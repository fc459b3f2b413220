"""Gradients of products along an axis, against the library: with zeros and without."""

import pytest
import torch

from .harness import check_gradients, units

FORMS = [
    lambda x: x.prod(-1),
    lambda x: torch.prod(x, 0, keepdim=True),
    lambda x: x.prod(1, True) * 2,
    lambda x: x.prod(),
    lambda x: torch.prod(input=x, dim=1),
    lambda x: x.sigmoid().prod(dim=1),
    lambda x: x.prod(1, dtype=torch.float64),
]


@pytest.mark.covering
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("zeros", [0, 1, 2, 5])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_gradient(form, zeros, dtype):
    x = torch.randn(7, 5)
    x[0, :zeros] = 0
    x[3, 4] = -0.0 if zeros else 1
    halves = dtype == torch.bfloat16
    check_gradients(form, x.to(dtype), rtol=0.05 if halves else 1e-4, atol=0.05 if halves else 1e-5)


def test_of_a_number():
    check_gradients(lambda x: x.prod() * x.prod(0), torch.tensor(3.0))


def test_no_scan_is_made(monkeypatch):
    found = units(monkeypatch)
    check_gradients(lambda x: x.prod(-1), torch.randn(6, 40))
    stores = [s for unit in found for item in unit.items for n in item.nests for s in n.stores]
    assert stores and all(store.combine is None for store in stores)
