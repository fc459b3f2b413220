"""Parameters, and layers with some, that a captured call makes and uses."""

import dynfix
import pytest
import torch
from helpers import one_graph, rows, same
from torch import nn

PLAIN = [(rows(4, 3),), (rows(4, 3) + 1,), (rows(4, 3) * 2,)]
LEARNT = [((rows(4, 3) * n).requires_grad_(),) for n in (1, 2, 3)]
CLOSE = (1e-4, 1e-5)


def a_norm(x):
    return nn.LayerNorm(3)(x) * 2


def drawn_weights(x):
    return nn.Linear(3, 2)(x).relu()


def running_statistics(x):
    return nn.BatchNorm1d(3)(x) + 1


def convolution(x):
    return nn.Sequential(nn.Conv1d(4, 2, 1), nn.GELU(), nn.PReLU())(x[None])


def a_parameter(x):
    w = nn.Parameter(torch.full((3,), 2.0))
    y = x * w
    return y, y.detach(), w.shape, y.retains_grad


def seen_without_gradients(x):
    y = nn.Parameter(torch.full((2, 3), 2.0)) * 3
    with torch.no_grad():
        part = y[0]
    return part, part.requires_grad, y, y * 2, x + 1


def differentiated(x):
    w = nn.Parameter(torch.full((3,), 2.0))
    ((x.detach() * w) ** 2).sum().backward()
    return w.grad * x


def mapped(x):
    w = nn.Parameter(torch.full((3,), 2.0))
    return torch.func.vmap(lambda row: row * w)(x)


def attention(x):
    return nn.MultiheadAttention(3, 1)(x, x, x)[0]


@pytest.mark.covering
@pytest.mark.parametrize("backend", ["eager", "native"])
@pytest.mark.parametrize("steps", [PLAIN, LEARNT], ids=["plain", "learnt"])
@pytest.mark.parametrize(
    "program",
    [
        a_norm,
        drawn_weights,
        running_statistics,
        convolution,
        a_parameter,
        seen_without_gradients,
        differentiated,
        mapped,
        attention,
    ],
)
def test_one_graph(program, steps, backend):
    tolerance = CLOSE if backend == "native" else None
    one_graph(same(lambda: program, *steps, backend=backend, tolerance=tolerance), 1)

    def without_gradients(x):
        with torch.no_grad():
            return program(x)

    if program is not differentiated:
        same(lambda: without_gradients, *steps, backend=backend, tolerance=tolerance)


def used_and_returned(x):
    w = nn.Parameter(torch.full((3,), 2.0))
    return x * w, w


def behind_a_break(x):
    w = nn.Parameter(torch.full((3,), 2.0))
    y = x * w
    print(y.sum().item() > 3)
    return (y * w).exp() if y.sum() > 3 else y


def inside_of_a_mapped_function(x):
    return torch.func.vmap(lambda row: row * nn.Parameter(torch.full((3,), 2.0)))(x)


@pytest.mark.parametrize(
    "program", [used_and_returned, behind_a_break, inside_of_a_mapped_function]
)
def test_what_is_eagers(program):
    same(lambda: program, *PLAIN, *LEARNT)


class Sliced(nn.Module):
    def __init__(self):
        super().__init__()
        self.rows = nn.ParameterList([nn.Parameter(torch.full((3,), float(n))) for n in range(3)])

    def forward(self, x):
        for row in self.rows[1:]:
            x = x * row
        return x


@pytest.mark.parametrize("backend", ["eager", "native"])
def test_a_slice_of_a_list_of_parameters(backend):
    tolerance = CLOSE if backend == "native" else None
    one_graph(same(Sliced, *PLAIN, *LEARNT, backend=backend, tolerance=tolerance), 2)


class Marked(nn.Module):
    """As the encoders of speech do in training, for checkpoints around frozen layers."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(3, 2)


class Viewed(Marked):
    def forward(self, x):
        rows = x[:, None]
        rows.requires_grad = True
        return self.layer(rows).relu(), rows.requires_grad


class Returned(Marked):
    def forward(self, x):
        twice = x * 2
        twice.requires_grad = True
        return self.layer(twice), twice


class Asked(Marked):
    def forward(self, x):
        twice = x * 2
        twice.requires_grad = True
        (gradient,) = torch.autograd.grad(self.layer(twice).exp().sum(), twice)
        return gradient + x


class Unmarked(Marked):
    def forward(self, x):
        twice = x * 2
        twice.requires_grad = True
        y = self.layer(twice)
        twice.requires_grad = False
        return y, self.layer(twice)


class Computed(Marked):
    """An error in eager."""

    def forward(self, x):
        y = self.layer(x)
        y.requires_grad = False
        return y


class Whole(Marked):
    def forward(self, x):
        x = x.int()
        x.requires_grad = True
        return x


class Given(Marked):
    def forward(self, x):
        x.requires_grad = True
        return self.layer(x)


@pytest.mark.covering
@pytest.mark.parametrize("backend", ["eager", "native"])
@pytest.mark.parametrize("make", [Viewed, Returned, Asked, Unmarked, Computed, Whole, Given])
def test_a_tensor_is_told_that_it_needs_a_gradient(make, backend):
    compiled = same(make, *PLAIN, backend=backend, tolerance=CLOSE)
    if make is Viewed:
        one_graph(compiled, 1)


def scaled(x, y):
    leaf = nn.Parameter(x.detach().clone()) * 2
    return y * 3, leaf


def written(x, y):
    leaf = nn.Parameter(x.detach().clone()) * 2
    y.mul_(2)
    return y * 3, leaf


@pytest.mark.parametrize("function", [scaled, written])
@pytest.mark.parametrize("make", [lambda x: x[1:], lambda x: x * 1, lambda x: x.view(-1)])
def test_a_leaf_of_the_call_beside_an_input_with_a_history(function, make):
    call = dynfix.compile(function)
    for _ in range(4):
        x = torch.randn(3, 4, requires_grad=True)
        found, expected = ([*each(x, make(x * 2))] for each in (call, function))
        ours, theirs = (torch.autograd.grad(each[0].sum(), x)[0] for each in (found, expected))
        torch.testing.assert_close(ours, theirs)
        for result in found:  # and may be written afterwards
            with torch.no_grad():
                result.mul_(2)
            result.mul_(2)
        torch.testing.assert_close(found, [each * 4 for each in expected])


@pytest.mark.parametrize("view", [lambda x: x.view_as(x), lambda x: x[1:], lambda x: x.t()[None]])
def test_a_view_without_gradients_behind_a_break_leads_nowhere(view):
    def function(x):
        with torch.no_grad():
            made = view(x)
        dynfix.graph_break()
        return made * 2 + x.sum()

    call = dynfix.compile(function)
    for _ in range(4):
        x = torch.randn(3, 3, requires_grad=True)
        found, expected = call(x), function(x)
        torch.testing.assert_close(found, expected)
        ours, theirs = (torch.autograd.grad(each.sum(), x)[0] for each in (found, expected))
        torch.testing.assert_close(ours, theirs)


def test_a_written_branch_to_a_leaf_of_the_call_beside_one_to_an_input():
    """Eager raises where a backward goes to both, and not where it goes to the input alone."""

    def fn(x, y):
        largest = torch.max(nn.Parameter(x.detach().clone()) * 2)
        total = largest + y.sum()
        largest.add_(2)
        return total

    call = dynfix.compile(fn)
    for _ in range(3):
        x, y = torch.randn(7, 1), torch.randn(7, 3, requires_grad=True)
        for each in (call, fn):
            found = each(x, y).mul_(3)
            assert torch.equal(torch.autograd.grad(found, y)[0], torch.full((7, 3), 3.0))
            with pytest.raises(RuntimeError, match="modified by an inplace"):
                each(x, y).backward()


def written_with_a_gradient(x):
    y = x * 3
    w = nn.Parameter(torch.full((3,), 2.0))
    dynfix.graph_break()
    y -= w
    return y, y * 2


def written_after_all(x):
    y = nn.Parameter(x.detach().clone()) * 2
    dynfix.graph_break()
    y.cumsum_(0)
    return y, y.requires_grad


@pytest.mark.covering
@pytest.mark.parametrize("backend", ["eager", "native"])
@pytest.mark.parametrize("program", [written_with_a_gradient, written_after_all])
@pytest.mark.parametrize("steps", [PLAIN, LEARNT], ids=["plain", "learnt"])
def test_what_a_made_parameter_changes_behind_a_break(program, steps, backend):
    same(lambda: program, *steps, backend=backend, tolerance=CLOSE)
