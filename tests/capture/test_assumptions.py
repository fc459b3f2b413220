"""Counts and lengths that follow from the integers of a call are assumed: one graph, and right at
calls where they are others."""

import dynfix
import pytest
import torch
from dynfix.rewriter.capture.reads import listed
from helpers import Counting, outside, recordings

X = torch.arange(12.0).view(6, 2)
A, B = torch.tensor([1, 0, 1, 1, 0, 0]), torch.tensor([0, 0, 1, 0, 1, 0])


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
    rows = x.view(3, 4) * flags[:3, None]
    return rows[(x.view(3, 4) != -1).any(1)].cos()


PROGRAMS = (_indexed, _written, _places, _repeated, _listed, _selected, _padded)


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
    compiled = dynfix.compile(_indexed, backend="eager")
    for count in range(6):
        flags = (torch.arange(6) <= count).long()
        torch.testing.assert_close(compiled(X, flags), _indexed(X, flags))
    assert len(recordings(compiled)[-1].segments) > 1


def test_floats_are_not_assumed():
    compiled = dynfix.compile(lambda x: x[x > 0] + 1, backend="eager")
    compiled(X)
    assert recordings(compiled)[0].sites


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int8, torch.int32, torch.int64])
def test_lists_of_memory(dtype):
    for tensor in (A, A.view(2, 3), A.view(2, 3).T, A[1:], A[:0], A[2], A.view(1, 2, 1, 3)):
        found, want = listed(tensor.to(dtype)), tensor.to(dtype).tolist()
        assert (found, repr(found)) == (want, repr(want))
