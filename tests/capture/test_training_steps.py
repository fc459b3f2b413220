"""Differentiation inside a compiled function: `autograd.grad`, `backward()`, `.grad`."""

import dynfix
import pytest
import torch
import torch.nn.functional as F
from differentiated import BACKENDS, batch, check, net, state_of
from torch import nn

# -- torch.autograd.grad


def gradient_penalty():
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))

    def penalty(x):
        x = x.clone()
        (slope,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
        return ((slope.norm(dim=1) - 1) ** 2).mean()

    return penalty, state_of(model), lambda i: (batch(i)[0].requires_grad_(),)


def attack():
    model = net()

    def perturbed(x, y):
        x = x.clone().requires_grad_(True)
        for _ in range(2):
            (slope,) = torch.autograd.grad(F.cross_entropy(model(x), y), x)
            x = (x + 0.1 * slope.sign()).detach().requires_grad_(True)
        return x.detach()

    return perturbed, state_of(model), batch


def second_derivative():
    w = torch.randn(3, requires_grad=True)

    def curvature(x):
        (slope,) = torch.autograd.grad((w**3 * x).sum(), w, create_graph=True)
        (curve,) = torch.autograd.grad(slope.sum(), w)
        return curve

    return curvature, lambda: [w], lambda i: (torch.ones(3) * i,)


def sign_of_its_own_leaf():
    def stepped(x):
        x = x.detach().requires_grad_(True)
        (slope,) = torch.autograd.grad((x**3).sum(), x)
        return x + slope.sign()

    return stepped, list, lambda i: (torch.ones(3) + i,)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    "make", [gradient_penalty, attack, second_derivative, sign_of_its_own_leaf]
)
def test_gradients_are_taken_inside_one_graph(make, backend):
    check(make, backend)


# -- backward() and .grad


def accumulating():
    model = net()

    def fn(x, y):
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        return loss.detach()

    return fn, state_of(model), batch


def passed_through():
    p, q = nn.Parameter(torch.randn(3)), nn.Parameter(torch.randn(3))

    def fn(v):
        (p + q).backward(v)

    return fn, lambda: [p, q], lambda i: (torch.ones(3) * (i + 1),)


def read_and_cleared():
    w = torch.randn(4, requires_grad=True)

    def fn(x):
        y = (x * w).sum()
        y.backward()
        slope = w.grad
        w.grad = None
        with torch.no_grad():
            w.sub_(slope * 0.1)
        return slope

    return fn, lambda: [w], lambda i: (torch.ones(4) * (i + 1),)


def tied():
    a, b = nn.Linear(4, 4), nn.Linear(4, 4)
    b.weight = a.weight

    def fn(x, y):
        (a(x).sum() + b(x).relu().sum()).backward()

    return fn, lambda: [a.weight, a.bias, b.bias], batch


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("make", [accumulating, passed_through, read_and_cleared, tied])
def test_backward_leaves_what_it_leaves_in_eager(make, backend):
    check(make, backend)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_gradient_that_is_replaced_between_calls(backend):
    def make():
        p = nn.Parameter(torch.randn(3))

        def fn(v):
            (p * v).sum().backward()
            return p.grad + 1

        def arguments(i):
            if i in (2, 4):
                p.grad = torch.ones(3) if i == 2 else None
            return (torch.ones(3) * (i + 1),)

        return fn, lambda: [p], arguments

    check(make, backend, calls=6)


@pytest.mark.parametrize("backend", BACKENDS)
def test_parameters_that_are_frozen_and_thawed(backend):
    def make():
        model = net()

        def fn(x, y):
            F.cross_entropy(model(x), y).backward()

        def arguments(i):
            for p in model[0].parameters():
                p.requires_grad_(i % 2 == 0)
            return batch(i)

        return fn, state_of(model), arguments

    check(make, backend, calls=6)


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_is_no_gradient_of_this_graph_alone_stays_eager(backend):
    """Hooks that come later, inputs with a history, sparse gradients."""

    def hooked():
        model, called = net(), []

        def fn(x, y):
            F.cross_entropy(model(x), y).backward()
            return len(called)

        def arguments(i):
            if i == 2:
                model[0].weight.register_hook(lambda slope: called.append(1))
            if i == 3:
                model[2].weight.register_post_accumulate_grad_hook(lambda p: called.append(1))
            return batch(i)

        return fn, state_of(model), arguments

    def with_history():
        model, w = net(), torch.randn(4, requires_grad=True)

        def fn(x, y):
            F.cross_entropy(model(x), y).backward()

        return fn, state_of(model), lambda i: (batch(i)[0] * (w if i != 1 else 1), batch(i)[1])

    def sparse():
        table = nn.Embedding(10, 4, sparse=True)

        def fn(x):
            table(x).sum().backward()

        return fn, lambda: [table.weight.grad.to_dense()], lambda i: (torch.tensor([i, i + 1]),)

    for make in (hooked, with_history, sparse):
        check(make, backend, calls=5, fullgraph=False)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_loss_whose_history_was_used(backend):
    p, kept = nn.Parameter(torch.randn(3)), []

    def fn(v):
        loss = (p * p * v).sum()
        loss.backward()
        kept.append(loss)
        return loss

    compiled = dynfix.compile(fn, backend=backend, fullgraph=True)
    for _ in range(4):
        loss = compiled(torch.ones(3))
        assert loss is kept[-1] and loss.requires_grad and loss.grad_fn is not None
        with pytest.raises(RuntimeError, match="backward through the graph a second time"):
            loss.backward()


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_loss_whose_saved_tensor_was_written(backend):
    def fn():
        x = torch.ones(3, requires_grad=True)
        loss = (x * x).sum()
        with torch.no_grad():
            x *= 2
        return loss

    compiled = dynfix.compile(fn, backend=backend)
    for _ in range(4):
        loss = compiled()
        for _ in range(2):
            with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                loss.backward()


@pytest.mark.parametrize("backend", BACKENDS)
def test_backward_twice(backend):
    def make():
        p = nn.Parameter(torch.randn(3))

        def fn(v):
            loss = (p * p * v).sum()
            loss.backward(retain_graph=True)
            loss.backward()
            try:
                loss.backward()
            except RuntimeError:
                return 1
            return 0

        return fn, lambda: [p], lambda i: (torch.ones(3) * i,)

    check(make, backend, fullgraph=False)


@pytest.mark.parametrize("backend", BACKENDS)
def test_printed_tensors_show_their_history(backend, capsys):
    w = torch.ones(3, requires_grad=True)

    def fn(x):
        y = (x * w).sum()
        print(y)
        return y * 2

    compiled = dynfix.compile(fn, backend=backend)
    for i in range(3):
        compiled(torch.full((3,), float(i)))
    texts = capsys.readouterr().out.splitlines()
    assert texts == [f"tensor({3 * i}., grad_fn=<SumBackward0>)" for i in range(3)]
