"""Batched products of vectors: loops that join what is around them."""

import pytest
import torch
from dynfix.lowering.loops.kernel_graph import ExternCall

from .harness import check, check_gradients, units

SHAPES = [(40, 1, 16, 9), (40, 9, 16, 1), (40, 9, 1, 7), (40, 1, 16, 1), (3, 1, 0, 4), (0, 1, 4, 4)]


@pytest.fixture
def calls(monkeypatch):
    """Gives the library's operators of what was made so far."""
    made = units(monkeypatch)
    return lambda: [i.target for unit in made for i in unit.items if isinstance(i, ExternCall)]


@pytest.mark.covering
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_products_of_vectors(calls, shape, dtype):
    batch, rows, inner, columns = shape
    a = torch.randn(batch, rows, inner, dtype=dtype)
    b = torch.randn(batch, inner, columns, dtype=dtype)
    across = b.mT.contiguous().mT
    for other in (b, across):
        check(lambda a, b: a @ b * 2, a, other)
    if 0 not in shape:
        check_gradients(lambda a, b: (a.sin() @ b).cos(), a, b)
    assert torch.ops.aten.bmm.default not in calls()


def test_windows_are_not_written_out(calls):
    """A product over windows reads them where they lie."""

    def fn(q, k):
        windows = k.unfold(1, 5, 1)
        return torch.einsum("bnd,bndw->bnw", q, windows).softmax(-1)

    check(fn, torch.randn(2, 60, 16), torch.randn(2, 64, 16))
    assert calls() == []


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_others_are_the_librarys(calls, dtype):
    """Large matrices across the sums, true products, and what the library rounds."""
    thin = dtype == torch.bfloat16
    shapes = [((4, 1, 100), (4, 100, 80)), ((4, 3, 8), (4, 8, 5))] + [((4, 1, 8), (4, 8, 5))] * thin
    for one, two in shapes:
        check(lambda a, b: a @ b, torch.randn(one).to(dtype), torch.randn(two).to(dtype))
    assert calls() == [torch.ops.aten.bmm.default] * len(shapes)
