# ruff: noqa: SIM108
"""Training steps whose models decide by a tensor: forward, backward and update are one graph, in
which patterns made the decision a choice."""

import dynfix
import pytest
import torch
from torch import nn

OPTIMIZERS = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.05),
    "momentum": lambda parameters: torch.optim.SGD(parameters, lr=0.05, momentum=0.9),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=0.01),
}
SIGNS = (1, -1, -1, 1, 1, -1, 1, -1, -1, 1)


class Model(nn.Module):
    def __init__(self, decide):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Linear(4, 8), nn.Linear(8, 1)
        self.decide, self.taken, self.kept = decide, [], []

    def forward(self, x):
        return self.last(self.decide(self, torch.tanh(self.first(x)), x))


def both_sides(model, hidden, x):
    if x.sum() > 0:
        hidden = hidden * 2
    else:
        hidden = hidden - 1
    return hidden


def one_side(model, hidden, x):
    if x.mean() > 0:
        hidden = hidden * 0.5
    return hidden


def ternary(model, hidden, x):
    return hidden * 2 if x.sum() > 0 else hidden - 1


def two_in_turn(model, hidden, x):
    if x.sum() > 0:
        hidden = hidden + 1
    if hidden.sum() > 3:
        hidden = hidden * 0.5
    return hidden


def other_leaves(model, hidden, x):
    if x.sum() > 0:
        hidden = hidden @ model.first.weight @ model.first.weight.t()
    else:
        hidden = hidden * model.first.bias
    return hidden


def kept_in_a_list(model, hidden, x):
    made = x + 1
    model.kept.append(made)
    if x.sum() > 0:
        made = made * 2
    hidden = hidden + made.sum()
    made.add_(1)
    return hidden


def plain(model, optimizer, x, y):
    loss = ((model(x) - y) ** 2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.detach()


def clipped(model, optimizer, x, y):
    optimizer.zero_grad(set_to_none=False)
    loss = (model(x) - y).abs().mean()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    optimizer.step()
    return loss.item()


def summed(model, optimizer, x, y):
    for half in (x[:3], x[3:] + 0.1):
        ((model(half) - y[: len(half)]) ** 2).mean().backward()
    optimizer.step()
    optimizer.zero_grad()


def updated_by_hand(model, optimizer, x, y):
    loss = ((model(x) - y) ** 2).mean()
    gradients = torch.autograd.grad(loss, list(model.parameters()))
    with torch.no_grad():
        for parameter, gradient in zip(model.parameters(), gradients, strict=True):
            parameter -= 0.05 * gradient
    return loss.detach()


def batch(number):
    generator = torch.Generator().manual_seed(number)
    x = torch.randn(6, 4, generator=generator).abs() * SIGNS[number]
    return x, torch.randn(6, 1, generator=generator)


def trained(step, decide, optimizer):
    model = Model(decide)
    optimizer = OPTIMIZERS[optimizer](model.parameters())
    for number in range(len(SIGNS)):
        loss = step(model, optimizer, *batch(number))
        yield loss, *(each.detach().clone() for each in model.parameters()), *model.kept
        yield [None if each.grad is None else each.grad.clone() for each in model.parameters()]


def counting(graphs):
    def backend(gm, inputs):
        graphs.append(gm)
        return gm.forward

    return backend


def compare(step, decide, optimizer, **options):
    compiled = dynfix.compile(step, **options)
    pairs = (trained(each, decide, optimizer) for each in (step, compiled))
    for number, pair in enumerate(zip(*pairs, strict=True)):
        torch.testing.assert_close(*pair, msg=lambda text, n=number: f"{n}: {text}")


@pytest.mark.covering
@pytest.mark.parametrize("step", [plain, clipped, summed, updated_by_hand])
@pytest.mark.parametrize("decide", [both_sides, one_side, ternary, two_in_turn])
def test_a_step_that_decides_is_one_graph(step, decide):
    graphs = []
    # but for the loss as a number, a break is an error
    compare(step, decide, "momentum", backend=counting(graphs), fullgraph=step is not clipped)
    assert 1 <= len(graphs) <= 3


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_steps_compiled_natively(optimizer):
    compare(plain, both_sides, optimizer)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_step_with_any_optimizer_is_one_graph(optimizer):
    graphs = []
    compare(plain, both_sides, optimizer, backend=counting(graphs), fullgraph=True)
    assert 1 <= len(graphs) <= 2


@pytest.mark.parametrize("decide", [other_leaves, kept_in_a_list])
def test_a_step_whose_decision_stays(decide):
    compare(plain, decide, "adamw", backend="eager")


class Sides(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x):
        return self.first(x) if x.mean() > 0 else self.second(x)


@pytest.mark.parametrize("backend", ["eager", "native"])
def test_sides_that_are_layers_under_autocast(backend):
    ours, theirs = Sides(), Sides()
    compiled = dynfix.compile(ours, backend=backend)
    for sign in SIGNS:
        x = torch.rand(3, 4) * sign
        with torch.autocast("cpu", torch.bfloat16):
            results = [module(x) for module in (compiled, theirs)]
        for result in results:
            assert type(result) is torch.Tensor
            result.float().square().sum().backward()
        torch.testing.assert_close(*results, rtol=1e-2, atol=1e-2)
        for one, two in zip(ours.parameters(), theirs.parameters(), strict=True):
            assert (one.grad is None) == (two.grad is None)
            if one.grad is not None:
                torch.testing.assert_close(one.grad, two.grad, rtol=1e-2, atol=5e-2)
