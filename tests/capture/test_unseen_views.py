"""Views that a call makes without gradients, or of one element several times, and writes."""

import dynfix
import pytest
import torch
from helpers import tensor

BACKENDS = ("eager", "native")


@pytest.mark.parametrize("backend", ["eager", "native"])
def test_a_view_made_without_gradients_that_is_asked_for_one(backend):
    def program(x):
        x.requires_grad_()
        return x * 2

    compiled = dynfix.compile(program, backend=backend)
    for each in (program, compiled, compiled, compiled):
        leaf = tensor(1, 2, 3, grad=True)
        with torch.no_grad():
            view = leaf[1:]
        each(view).sum().backward()
        assert torch.equal(view.grad, torch.full((2,), 2.0)) and leaf.grad is None


@pytest.mark.parametrize("backend", ["eager", "native"])
def test_a_part_of_a_leaf_is_written_without_gradients(backend):
    """Autograd refuses the written view whatever it is asked."""

    def program(x):
        with torch.no_grad():
            x[0].zero_()
        return x.exp()

    compiled = dynfix.compile(program, backend=backend, fullgraph=True)
    for seed in range(3):
        torch.manual_seed(seed)
        x = torch.randn(3, 2, requires_grad=True)
        y = x.detach().clone().requires_grad_()
        for each, given in ((program, x), (compiled, y)):
            each(given).sum().backward()
        assert torch.equal(x, y)
        torch.testing.assert_close(y.grad, x.grad)


def test_a_stretched_view_that_is_written_behind_a_break():
    def fn(x):
        made = torch.broadcast_to(x.clamp(-1, 1), (2, *x.shape))
        made[1:] = 1
        return made * 2

    call = dynfix.compile(fn)
    for _ in range(6):
        x = torch.randn(3, 5, requires_grad=True)
        y = x.detach().clone().requires_grad_()
        found, expected = call(x), fn(y)
        torch.testing.assert_close(found, expected)
        found.sum().backward()
        expected.sum().backward()
        torch.testing.assert_close(x.grad, y.grad)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_view_of_a_view_made_without_gradients_leads_nowhere(backend):
    def program(x):
        y = x.sin()
        with torch.no_grad():
            turned, part = x.t(), y[1:]
        return turned, turned.unsqueeze(0), part[:, 1:], y

    compiled = dynfix.compile(program, backend=backend)
    for seed in range(3):
        torch.manual_seed(seed)
        x = torch.randn(3, 3, requires_grad=True)
        y = x.detach().clone().requires_grad_()
        for each, given in ((program, x), (compiled, y)):
            made = each(given)
            assert [one.requires_grad for one in made] == [True] * 4
            sum(one.exp().sum() for one in made[1:]).backward()
        torch.testing.assert_close(y.grad, x.grad)


def through_data(x):
    first, second = x.split(2)
    x.data.mul_(2)
    return first, second.t()


def without_gradients(x):
    with torch.no_grad():
        x.mul_(2)
    first, second = x.split(2)
    return first, second.t()


@pytest.mark.parametrize("program", [through_data, without_gradients])
@pytest.mark.parametrize("backend", BACKENDS)
def test_parts_of_an_input_that_is_written_share_its_memory(backend, program):

    compiled = dynfix.compile(program, backend=backend)
    for _ in range(3):
        x = torch.randn(4, 4, requires_grad=True)
        was = x.detach().clone()
        first, second = compiled(x)
        assert torch.equal(x, was * 2) and torch.equal(first, x[:2])
        assert first.untyped_storage().data_ptr() == x.data_ptr()
        assert second.untyped_storage().data_ptr() == x.data_ptr()
        (first.sum() + second.sum() * 3).backward()
        assert torch.equal(x.grad, torch.tensor([1.0, 1, 3, 3])[:, None].expand(4, 4))
