"""Products whose rows are not aligned, in padded rows: the same numbers, and contiguous."""

import pytest
import torch
from dynfix.lowering.targets import aligned_products


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("sizes", [(5, 16, 33), (33, 7, 16), (1, 9, 1), (8, 8, 8)])
@pytest.mark.parametrize("transposed", [False, True])
def test_products(dtype, sizes, transposed):
    m, k, n = sizes
    a = torch.randn(m, k).to(dtype)
    b = torch.randn(n, k).to(dtype).t() if transposed else torch.randn(k, n).to(dtype)
    bias = torch.randn(n).to(dtype)
    for found, expected in (
        (aligned_products.mm(a, b), torch.mm(a, b)),
        (aligned_products.addmm(bias, a, b), torch.addmm(bias, a, b)),
        (aligned_products.mm(b.t(), a.t()), torch.mm(b.t(), a.t())),
    ):
        assert found.is_contiguous() and found.dtype == dtype
        torch.testing.assert_close(found, expected)
