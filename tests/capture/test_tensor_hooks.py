"""Hooks on the gradients of what a call makes: those that only compute are part of the graph."""

import dynfix
import pytest
import torch
from helpers import Case, one_graph, recordings, same, tensor

GRADS = [(tensor(*values, grad=True),) for values in ((1, 2, 3), (3, -2, 1), (0, 1, -1), (2, 2, 2))]
CLOSE = (1e-5, 1e-6)
FACTOR = 3.0


def _of_a_global(g):
    return g * FACTOR


def _limited(x):
    y = x * 2
    earlier = y.sin()
    y.register_hook(lambda g: torch.clamp(g, -0.5, 0.5))
    y.register_hook(_of_a_global)
    return earlier + y.exp()


def _masked(x):
    y = x * 2
    mask = (y > 1).float() * x
    y.register_hook(lambda g: g * mask)
    y.mul_(3)
    y.register_hook(lambda g: g + 1)
    return y * 2, y.sin()


def _of_a_view(x):
    y = x * 2
    part = y[1:]
    part.register_hook(lambda g: g * 7)
    return part.sum() + y.sin().sum()


def _differentiated(x):
    y = x * 2
    y.register_hook(lambda g: g.clamp(-1, 1))
    found = torch.autograd.grad((y**2).sum(), x, retain_graph=True)[0]
    (y**3).sum().backward()
    return found, x.grad * 2


@pytest.mark.covering
@pytest.mark.parametrize("backend", ["eager", "native"])
@pytest.mark.parametrize("fn", [_limited, _masked, _of_a_view, _differentiated])
def test_a_hook_that_only_computes(fn, backend):
    one_graph(same(lambda: fn, *GRADS, backend=backend, tolerance=CLOSE))


@pytest.mark.parametrize("backend", ["eager", "native"])
def test_what_a_hook_reads_is_guarded(backend):
    class Reversed(torch.nn.Module):
        strength = 0.0

        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.layer, self.strength = torch.nn.Linear(3, 3), 0.5

        def forward(self, x):
            y = self.layer(x)
            if self.training:
                y.register_hook(lambda g: -self.strength * g)
            return y.tanh()

    def change(module):
        module.strength += 1

    fn = same(
        Reversed,
        *GRADS,
        change,
        *GRADS,
        lambda module: module.eval(),
        *GRADS,
        backend=backend,
        tolerance=CLOSE,
    )
    assert len(recordings(fn)) == 3


def _of_a_result(x):
    y = x * 2
    y.register_hook(lambda g: g * 3)
    return y, y.sin()


def _of_a_result_that_is_written(x):
    y = x * 2
    y.register_hook(lambda g: g * 3)
    y.mul_(2)
    return y, y.sin()


@pytest.mark.parametrize("backend", ["eager", "native"])
@pytest.mark.parametrize("fn", [_of_a_result, _of_a_result_that_is_written])
def test_hooks_of_a_result_come_before_later_ones(fn, backend):
    def gradients(compiled, x):
        y, other = compiled(x)
        y.retain_grad()
        y.register_hook(lambda g: g + 1)
        (y.sum() + other.sum()).backward()
        return y.grad, x.grad

    compiled = dynfix.compile(fn, backend=backend)
    for (x,) in GRADS:
        given = [x.detach().clone().requires_grad_() for _ in range(2)]
        for found, wanted in zip(
            gradients(compiled, given[0]), gradients(fn, given[1]), strict=True
        ):
            torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("backend", ["eager", "native"])
def test_hooks_of_what_begins_at_a_leaf_that_the_call_makes(backend):
    def program():
        y = torch.ones((), requires_grad=True).clone()
        y.register_hook(lambda g: g * 3)
        return y

    compiled = dynfix.compile(program, backend=backend)
    for _ in range(4):
        y = compiled()
        y.retain_grad()
        y.clone().backward()
        assert y.grad.item() == 3


def _appending(x, seen):
    y = x * 2
    y.register_hook(lambda g: seen.append(g.sum().item()))
    return y.sin()


def _deciding(x, seen):
    def smaller(g):
        return g / g.norm() if g.norm() > 1 else g

    y = x * 2
    y.register_hook(smaller)
    return y.exp()


def _kept(x, seen):
    y = x * 2
    seen.append(y.register_hook(lambda g: g * 7))
    del seen[:]
    return y.sin()


def _removed(x, seen):
    y = x * 2
    handle = y.register_hook(lambda g: g * 7)
    handle.remove()
    return y.sin()


def _bound_again(x, seen):
    total = 0
    for factor in range(3):
        y = x * (factor + 1)
        y.register_hook(lambda g: g * factor)
        total = total + y.sin()
    return total


def _two_on_a_line(x, seen):
    y = x * 2
    y.register_hook(lambda g: g + 1), y.register_hook(lambda g: seen.append(1))
    return y.sin()


@pytest.mark.covering
@pytest.mark.parametrize("backend", ["eager", "native"])
@pytest.mark.parametrize(
    "fn", [_appending, _deciding, _kept, _removed, _bound_again, _two_on_a_line]
)
def test_a_hook_that_does_more_runs_as_it_is(fn, backend):
    def make():
        seen = []
        return Case(fn=lambda x: fn(x, seen), watch=lambda: list(seen))

    same(make, *GRADS, backend=backend, tolerance=CLOSE)


class InPlace(torch.autograd.Function):
    """Takes sums of lists, and writes what it is given."""

    @staticmethod
    def forward(ctx, x, *others):
        x.mul_(2).add_(sum(each * 3 for each in others))
        ctx.mark_dirty(x)
        ctx.save_for_backward(x)
        return x

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return (g * x, *[g * 3 for _ in ctx.needs_input_grad[1:]])


@pytest.mark.parametrize("backend", ["eager", "native"])
def test_an_autograd_function_that_writes(backend):
    def fn(x):
        y = x * 3
        view = y[:2]
        z = InPlace.apply(y, x, x.sin())
        return z.sin(), z is y, view, y

    one_graph(same(lambda: fn, *GRADS, (tensor(1, 2, 3),), backend=backend, tolerance=CLOSE))
