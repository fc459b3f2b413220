"""Counts and lengths that follow from the integers of a call are assumed: one graph, and right at
calls where they are others."""

import dynfix
import pytest
import torch
from counting_graphs import Counting, outside
from dynfix.rewriter.capture.dynamic_inputs import DynamicInputs
from dynfix.rewriter.capture.numbers.memory_lists import listed
from helpers import recordings

pytestmark = pytest.mark.usefixtures("no_gpu_in_use")

# so many that a call does not compare the flags themselves
X = torch.arange(144.0).view(72, 2)
A, B = torch.tensor([1, 0, 1, 1, 0, 0] * 12), torch.tensor([0, 0, 1, 0, 1, 0] * 12)


def _indexed(x, flags):
    return (x + 1)[flags * 2 == 2] * 3


def _written(x, flags):
    x = x.clone()
    x[(flags == 1).nonzero().squeeze(1)] = 7.0
    return x


def _places(x, flags):
    (rows,) = torch.where(flags + 1 > 1)
    return x[rows] + rows.shape[0]


def _repeated(x, flags):
    return torch.repeat_interleave(x, flags * 2, 0), torch.repeat_interleave(x.view(-1), 2)


def _listed(x, flags):
    parts = torch.split(x[:4], (flags[:2] + 1 + (1 - flags[:2]).flip(0)).tolist())
    return torch.cat([part.sum(0) for part in parts]) * int((flags + 1).max())


def _selected(x, flags):
    return x.masked_select((flags > 0)[:, None].expand_as(x)).exp()


def _padded(x, flags):
    rows = x.view(36, 4) * flags[:36, None]
    return rows[(x.view(36, 4) != -1).any(1)].cos()


PROGRAMS = (_indexed, _written, _places, _repeated, _listed, _selected, _padded)


@pytest.mark.covering
@pytest.mark.parametrize("backend", ["eager", "native"])
@pytest.mark.parametrize("f", PROGRAMS)
def test_one_graph_and_right(f, backend):
    compiled = dynfix.compile(f, backend=backend, fullgraph=True)
    for flags in (A, A, B, A, torch.zeros_like(A), A.flip(0), B):
        torch.testing.assert_close(compiled(X + flags.sum(), flags), f(X + flags.sum(), flags))
    assert all(len(recording.segments) == 1 for recording in recordings(compiled))


@pytest.mark.parametrize("f", [_indexed, _listed])
def test_nothing_outside_the_graph(f):
    backend = Counting()
    compiled = dynfix.compile(f, backend=backend)
    compiled(X, A)
    _, names = outside(lambda: compiled(X, A))
    assert (backend.built, backend.calls, names) == (1, 1, [])


def test_gradients():
    compiled = dynfix.compile(_indexed)
    for flags in (A, A, B, A):
        found = []
        for call in (_indexed, compiled):
            x = X.clone().requires_grad_()
            (call(x, flags) ** 2).sum().backward()
            found.append(x.grad)
        assert torch.equal(*found)


@pytest.mark.parametrize("backend", ["eager", "native"])
def test_a_wrong_assumption_leaves_nothing(backend):
    def f(x, flags):
        count = int((flags + 1).sum())
        x += count
        return x * torch.rand(2)

    compiled = dynfix.compile(f, backend=backend)
    ours, theirs = X.clone(), X.clone()
    for seed, flags in enumerate((A, A, B, B, A, A + B, A)):
        torch.manual_seed(seed)
        want = f(theirs, flags)
        torch.manual_seed(seed)
        torch.testing.assert_close(compiled(ours, flags), want)
        assert torch.equal(ours, theirs)


def test_many_values_are_not_assumed():
    moving = DynamicInputs()
    assert [moving.may_assume("place", value) for value in (3, 4, 3, 5, 6, 4)] == [True] * 4 + [
        False
    ] * 2
    assert moving.may_assume("another", True) and not moving.may_assume("another", False)


def test_floats_are_not_assumed():
    compiled = dynfix.compile(lambda x: x[x > 0] + 1)
    compiled(X)
    (recording,) = recordings(compiled)
    assert recording.segments[0].open and not recording.outcomes


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int8, torch.int32, torch.int64])
def test_lists_of_memory(dtype):
    six = A[:6]
    for tensor in (
        six,
        six.view(2, 3),
        six.view(2, 3).T,
        six[1:],
        six[:0],
        six[2],
        six.view(1, 2, 1, 3),
    ):
        found, want = listed(tensor.to(dtype)), tensor.to(dtype).tolist()
        assert (found, repr(found)) == (want, repr(want))


def test_numbers_of_repeats_that_eager_refuses_are_an_error():
    compiled = dynfix.compile(lambda x, n: torch.repeat_interleave(x, n) * 2)
    x = torch.arange(3.0)
    for n in ([1, 2, 1], [2, 1, 1]):
        torch.testing.assert_close(
            compiled(x, torch.tensor(n)), torch.repeat_interleave(x, torch.tensor(n)) * 2
        )
    with pytest.raises(RuntimeError, match="negative"):
        compiled(x, torch.tensor([-1, 4, 1]))
