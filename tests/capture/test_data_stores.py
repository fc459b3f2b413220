"""`tensor.data = value`: the tensor keeps its identity and gets the value's memory."""

import copy

import dynfix
import pytest
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Linear(4, 4), nn.Linear(4, 4)
        self.register_buffer("mean", torch.ones(3))

    def forward(self, x):
        return self.two(self.one(x))


def by_hand(model, x):
    loss = model(x).square().mean()
    loss.backward()
    for p in model.parameters():
        p.data = p.data - 0.1 * p.grad
        p.grad = None
    return loss.detach()


def average(model, x):
    out = x * 2
    for p, q in zip(model.one.parameters(), model.two.parameters(), strict=True):
        q.data = 0.9 * q.data + 0.1 * p.data
    return out


def gives_back(model, x):
    p = model.one.weight
    p.data = p.data * 2
    return p


def shares(model, x):
    p = model.one.weight
    y = p.data * 2
    p.data = y
    y.add_(1)
    return y


def old_memory_is_written(model, x):
    p = model.one.weight
    old = p.data
    p.data = old * 2
    old.add_(1)
    return old


def buffer(model, x):
    model.mean.data = model.mean * 0.5 + x.mean()
    return x * 2


def read_after(model, x):
    with torch.no_grad():
        model.one.weight.data = model.one.weight.data * 0.5
        return model.one(x)


def momentum_encoder(model, x):
    y = model.one(x)
    with torch.no_grad():
        for p, q in zip(model.one.parameters(), model.two.parameters(), strict=True):
            q.data = q.data * 0.9 + p.data * 0.1
        k = model.two(x.flip(0))
        model.two.bias.data = model.two.bias.data + 1
        model.mean.data = model.mean * 2
    return (y * k).sum(1), model.mean * 3


def read_with_gradients(model, x):
    model.one.weight.data = model.one.weight.data * 0.5
    return model.one(x)


def written_after(model, x):
    with torch.no_grad():
        model.one.weight.data = model.one.weight.data * 0.5
        model.one.weight.mul_(2)
        return model.one(x)


def of_an_input(model, x):
    model.one.weight.data = model.two.weight.data
    return x + 1


def swapped(model, x):
    one, two = model.one.weight, model.two.weight
    with torch.no_grad():
        kept = one.data
        one.data = two.data
        two.data = kept
        return one - two + x[0]


def of_a_view(model, x):
    flat = x.repeat(2, 2).flatten()
    with torch.no_grad():
        torch.nn.utils.vector_to_parameters(flat, model.one.parameters())
        flat.add_(1)
        return model.one.weight * 2, model.one.bias + 1


def other_shape(model, x):
    model.one.weight.data = torch.zeros(2, 2)
    return x + 1


def before_its_backward(model, x):
    y = model.one(x).square().sum()
    model.one.weight.data = model.one.weight.data * 0.5
    return y


CAPTURED = by_hand, average, gives_back, shares, old_memory_is_written, buffer, read_after
CAPTURED += momentum_encoder, of_an_input, swapped, of_a_view
BREAKS = read_with_gradients, written_after, other_shape, before_its_backward


def memory(tensor):
    return tensor.untyped_storage()._cdata


@pytest.mark.parametrize("backend", ["native", "eager"])
@pytest.mark.parametrize("function", CAPTURED + BREAKS)
def test_as_in_eager(function, backend):
    eager = Model()
    ours = copy.deepcopy(eager)
    for model in (eager, ours):  # others keep the memory that was there
        model.held = [model.one.weight.data, model.one.weight.detach()]
    compiled = dynfix.compile(function, backend=backend, fullgraph=function in CAPTURED)
    for _ in range(5):
        x = torch.randn(3, 4)
        expected, found = function(eager, x), compiled(ours, x)
        torch.testing.assert_close(found, expected)
        if function in (before_its_backward, momentum_encoder, read_with_gradients):
            for result in (expected, found):
                result = result[0] if isinstance(result, tuple) else result
                result.sum().backward()
        pairs = [*zip(eager.parameters(), ours.parameters(), strict=True)]
        pairs += [(eager.mean, ours.mean), *zip(eager.held, ours.held, strict=True)]
        for one, two in pairs:
            torch.testing.assert_close(two, one)
            torch.testing.assert_close(two.grad, one.grad)
            assert two.requires_grad == one.requires_grad
        expected, found = (
            each[0] if isinstance(each, tuple) else each for each in (expected, found)
        )
        assert (found is ours.one.weight) == (expected is eager.one.weight)
        same = [memory(r) == memory(m.one.weight) for r, m in ((expected, eager), (found, ours))]
        assert same[0] == same[1]


def test_writes_through_data_are_not_counted():
    def f(x, w):
        y = x * w
        w.data.mul_(2)
        return y

    call = dynfix.compile(f)
    for gradients in (True, False, True, True):
        seen = []
        for function in (f, call):
            x, w = (torch.full((3,), 2.0, requires_grad=gradients) for _ in range(2))
            before, y = w._version, function(x, w)
            if gradients:
                y.sum().backward()
            seen.append(
                (w._version - before, w.tolist(), y.tolist(), gradients and x.grad.tolist())
            )
        assert seen[0] == seen[1]
