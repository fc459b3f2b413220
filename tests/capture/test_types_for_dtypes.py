"""Python's types and torch's tensor types where an operator takes a dtype."""

import numpy as np
import pytest
import torch
from helpers import one_graph, same, tensor

PROGRAMS = {
    "to": lambda x: (x.to(bool), x.to(int), x.to(float), x.to(complex)),
    "twice": lambda x: x.to(int).to(float) + 8,
    "zeros": lambda x: torch.zeros(3, dtype=float) + x.sum(),
    "arange": lambda x: (torch.arange(3, dtype=int) + x.sum(), x.new_ones(2, dtype=bool)),
    "tensor": lambda x: torch.tensor([1, 2], dtype=float) * x.mean(),
    "sum": lambda x: (torch.sum(x, dtype=float), x.cumsum(0, dtype=complex)),
    "type": lambda x: (x.type(torch.HalfTensor), x.type(torch.LongTensor), x.type(torch.int8)),
    "numbers of NumPy": lambda x: torch.LongTensor([np.int64(1), np.int32(2)]) + x.sum(),
}


@pytest.mark.covering
@pytest.mark.parametrize("backend", ["eager", "native"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_one_graph(name, backend):
    tolerance = None if backend == "eager" else (1e-5, 1e-6)
    steps = [(tensor(2, 3) * scale,) for scale in (1, -2, 3)]
    one_graph(same(lambda: PROGRAMS[name], *steps, backend=backend, tolerance=tolerance))


def test_what_torch_refuses_raises():
    same(lambda: lambda x: (x + 1).type(float), (tensor(2),), (tensor(2),))
    same(lambda: lambda x: torch.zeros(2, dtype=str) + x, (tensor(2),), (tensor(2),))
