"""A hidden state that one training step leaves and the next one detaches: one graph."""

import copy

import dynfix
import pytest
import torch
from torch import nn
from torch.nn import functional as F


class Cell(nn.Module):
    def __init__(self):
        super().__init__()
        self.x, self.h, self.out = nn.Linear(4, 6), nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, x, h):
        for part in x:
            h = torch.tanh(self.x(part) + self.h(h))
        return self.out(h), h


def no_grad(h):
    with torch.no_grad():
        return h * 0.5


CUTS = {
    "method": lambda h: h.detach(),
    "function": torch.detach,
    "data": lambda h: h.data,
    "twice": lambda h: h.detach() * 0.5 + h.detach(),
    "written": lambda h: h.detach().mul_(0.5),
    "leaf": lambda h: h.detach().requires_grad_(),
}


def steps(net, cut, after=lambda h, new: new, retain=False):
    def step(x, y, h):
        net.zero_grad()
        given = torch.zeros(2, 6) if h is None else cut(h)
        out, new = net(x, given)
        loss = F.cross_entropy(out, y)
        loss.backward(retain_graph=retain)
        return loss.detach(), new if h is None else after(h, new)

    return step


def follow(step, other, net, copied):
    """Both through the same data: values, gradients and histories are the same."""
    torch.manual_seed(0)
    states = [None, None]
    for _ in range(5):
        x, y = torch.randn(3, 2, 4), torch.randint(0, 3, (2,))
        (loss, states[0]), (again, states[1]) = step(x, y, states[0]), other(x, y, states[1])
        for one, two in ((loss, again), states):
            torch.testing.assert_close(one, two)
            assert (one.requires_grad, one.is_leaf) == (two.requires_grad, two.is_leaf)
        for one, two in zip(net.parameters(), copied.parameters(), strict=True):
            torch.testing.assert_close(one.grad, two.grad)


def hits(compiled):
    return sum(entry.hits for entry in compiled._dynfix_entry._dispatcher.entries)


@pytest.mark.covering
@pytest.mark.parametrize("retain", [False, True])
@pytest.mark.parametrize("cut", CUTS)
def test_the_state_is_detached(cut, retain):
    net = Cell()
    copied = copy.deepcopy(net)
    compiled = dynfix.compile(steps(copied, CUTS[cut], retain=retain), backend="aot_eager")
    follow(steps(net, CUTS[cut], retain=retain), compiled, net, copied)
    assert hits(compiled) == 3


@pytest.mark.parametrize(
    ("cut", "after"),
    [
        (CUTS["method"], lambda h, new: new + 0 * h),
        (CUTS["method"], lambda h, new: torch.cat([h, new])[2:]),
        (no_grad, lambda h, new: new),
    ],
)
def test_a_state_that_is_used_with_its_history_stays_in_eager(cut, after):
    net = Cell()
    copied = copy.deepcopy(net)
    compiled = dynfix.compile(steps(copied, cut, after), backend="eager")
    follow(steps(net, cut, after), compiled, net, copied)
    assert hits(compiled) == 0


def test_a_state_with_its_history_in_the_loss_raises_as_eager_does():
    net = Cell()
    compiled = dynfix.compile(steps(net, lambda h: h), backend="aot_eager")
    x, y = torch.randn(3, 2, 4), torch.randint(0, 3, (2,))
    _, h = compiled(x, y, None)
    with pytest.raises(RuntimeError, match="second time"):
        compiled(x, y, h)
