"""A tensor where an operator takes a size: the size is read on the host and guarded, so that other
data is another recording and no graph has a shape of old."""

import dynfix
import pytest
import torch
from helpers import same, tensor

X = tensor(1, 2, 3)
NUMBERS = [torch.tensor(n) for n in ([2, 3, 3], [2, 3, 3], [1, 4, 1], [3, 4, 3], [2, 2, 1])]


def written(x, n):
    y = torch.zeros(3, 4)
    y[:, n[0] :] = 1
    return y.sum() + x


PROGRAMS = {
    "arange": lambda x, n: torch.arange(n.max()).sum() + x,
    "arange with start": lambda x, n: torch.arange(0, n.max(), 1).float() * x.sum(),
    "zeros": lambda x, n: torch.zeros(n[0], 2).sum() + x + torch.ones((n[1],)).sum(),
    "new_zeros": lambda x, n: x.new_zeros(n[0]).sum() + x.expand(n[0], 3),
    "repeat": lambda x, n: x.repeat(n[0]),
    "narrow": lambda x, n: torch.arange(6).narrow(0, 0, n[0]) + x.sum(),
    "slice": lambda x, n: x[: n[0]] * 2,
    "full": lambda x, n: torch.full((n[0],), 2.0).sum() + x,
    "tensor_split": lambda x, n: torch.tensor_split(torch.arange(6.0), n)[1].sum() + x,
    "pad": lambda x, n: torch.nn.functional.pad(x, (0, n[0])),
    "one_hot": lambda x, n: torch.nn.functional.one_hot(n).float().sum() + x,
    "written": written,
}


@pytest.mark.covering
@pytest.mark.parametrize("backend", ["eager", "native"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_size(name, backend):
    tolerance = None if backend == "eager" else (1e-5, 1e-6)
    same(lambda: PROGRAMS[name], *[(X, n) for n in NUMBERS], backend=backend, tolerance=tolerance)


@pytest.mark.parametrize("start", [torch.tensor([0]), torch.tensor(0.0), torch.tensor([0, 1])])
def test_where_a_slice_begins_is_one_whole_number(start):
    compiled = dynfix.compile(lambda x, start: x.narrow(0, start, 1) * 2)
    for _ in range(3):
        with pytest.raises(RuntimeError, match="integral"):
            compiled(torch.ones(3, 3), start)


HALVES = {
    "first": lambda x: x.chunk(2, 1)[0],
    "second": lambda x: x.chunk(2, 1)[1],
    "both": lambda x: x.chunk(2, 1),
    "rows": lambda x: x[: x.shape[1] // 4],
    "turned": lambda x: x.t().chunk(2)[0],
}


@pytest.mark.covering
@pytest.mark.parametrize("rows", [1, 9])
@pytest.mark.parametrize("half", HALVES.values(), ids=HALVES)
def test_no_size_is_read_of_a_stride_of_one_element(half, rows):
    """Autograd hands gradients in with any."""
    call = dynfix.compile(lambda x: half(x), dynamic=True)
    for size in (8, 5, 3, 3, 7, 4, 12, 16):
        x = torch.randn(rows, size, requires_grad=True)
        found, wanted = (out if isinstance(out, tuple) else (out,) for out in (call(x), half(x)))
        for one, two in zip(found, wanted, strict=True):
            assert torch.equal(one, two)
            for grad in (torch.randn(two.shape), torch.randn(two.shape[::-1]).t()):
                gradients = (torch.autograd.grad(r, x, grad, retain_graph=True) for r in (one, two))
                assert torch.equal(*(g for (g,) in gradients))


BEFORE = {
    "longer": lambda x: torch.nn.functional.pad(x, (1, 2)),
    "half": lambda x: x[:, : (x.shape[1] + 1) // 2].clone(),
}


@pytest.mark.covering
@pytest.mark.parametrize("before", BEFORE.values(), ids=BEFORE)
@pytest.mark.parametrize("half", [HALVES["first"], lambda y: (y * 2).chunk(3, 1)[1]])
def test_nor_is_one_behind_a_break(before, half):
    """Where the sizes that a graph is given are computed themselves."""

    def fn(x):
        y = before(x)
        dynfix.graph_break()
        return half(y)

    call = dynfix.compile(fn, dynamic=True)
    for size in (8, 5, 7, 7, 9, 12, 30):
        x = torch.randn(1, size, requires_grad=True)
        found, wanted = call(x), fn(x)
        grad = torch.randn(wanted.shape[::-1]).t()
        gradients = (torch.autograd.grad(result, x, grad) for result in (found, wanted))
        assert torch.equal(found, wanted) and torch.equal(*(g for (g,) in gradients))
