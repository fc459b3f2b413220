"""One kernel serves every size: sizes that only a call knows are arguments of kernels."""

import pytest
import torch
from dynfix.lowering.targets.triton import triton_target
from dynfix.runtime.gpu import launch_triton
from lowering_tests.harness import CHECKED
from lowering_tests.symbolic import check_sizes, check_training

F = torch.nn.functional
TRITON = CHECKED.replace(target="triton")
SIZES = [(7, 12), (2, 2), (3, 17), (13, 40), (5, 300)]  # the first is compiled for


def pair(a, b):
    return torch.randn(a, b), torch.randn(a, b)


CASES = {
    "pointwise": lambda x, y: (x * y[0] + y[:, :1]).tanh() * x.shape[1],
    "transposed": lambda x, y: x.t() * y.t() + x.t().contiguous(),
    "joined": lambda x, y: torch.cat([x, y.exp()]) + 1,
    "rows": lambda x, y: (x * y).softmax(-1) + x.amax(-1, keepdim=True),
    "columns": lambda x, y: (x.sum(0), y.var(0), (x + y).sum()),
    "positions": lambda x, y: x[torch.arange(x.shape[0] - 1, -1, -1)] + y.argmax(1)[:, None],
}


@pytest.mark.parametrize("name", CASES)
def test_every_size(name):
    call = check_sizes(CASES[name], pair, SIZES, options=TRITON, rtol=1e-4, atol=1e-4)
    assert call.kernels[0] and not any("arange" in extern for extern in call.externs)


def test_training_of_rows_of_known_length():
    def fn(x, w, b):
        return F.gelu(F.layer_norm(x, (40,), w, b))

    def make(a, b):
        return torch.randn(a, 40), torch.randn(40), torch.randn(40)

    sizes = [(7, 0), (2, 0), (33, 0), (5, 0)]
    call = check_training(fn, make, sizes, static=((0, 1), 1, 2), options=TRITON)
    assert len(call.externs) == 0


def test_what_32_bits_do_not_hold_is_counted_in_64(monkeypatch):
    printed = []
    original = triton_target.print_kernel
    monkeypatch.setattr(
        triton_target,
        "print_kernel",
        lambda *a, **k: printed.append(original(*a, **k)) or printed[-1],
    )
    check_sizes(lambda x, y: x * y + 1, pair, SIZES, options=TRITON)
    kernel = next(kernel for kernel in printed if kernel.wider is not None)
    numbers = len(kernel.numbers)
    shape = launch_triton._shape(kernel)
    assert shape(*[30] * numbers)[1] <= launch_triton._INT32 < shape(*[100_000] * numbers)[1]
    assert "int64" in kernel.wider.text and not kernel.wide
