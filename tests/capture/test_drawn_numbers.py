"""Comparisons of random numbers that are decided whatever is drawn: rates of zero cut no graph, others do."""

import dynfix
import pytest
import torch
from torch import nn


class Layers(nn.Module):
    """Leaves out layers at a rate, as sequence models do."""

    def __init__(self, rate, compare):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))
        self.rate, self.compare = rate, compare

    def forward(self, x):
        for layer in self.layers:
            number = torch.rand([])
            if self.compare(number, self.rate):
                x = torch.relu(layer(x))
        return x


def keeps(number, rate):
    return number >= rate


def leaves(number, rate):
    return not number < rate


def shifted(number, rate):
    number -= 0.5
    return number >= rate


def check(model, compiled, calls=5):
    for _ in range(calls):
        x, state = torch.randn(2, 8), torch.get_rng_state()
        expected, after = model(x), torch.get_rng_state()
        torch.set_rng_state(state)
        torch.testing.assert_close(compiled(x), expected)
        assert torch.equal(torch.get_rng_state(), after)


@pytest.mark.parametrize("compare", [keeps, leaves])
@pytest.mark.parametrize("rate", [0.0, 0, -0.5])
def test_a_rate_of_zero_is_one_graph(compare, rate):
    model = Layers(rate, compare)
    check(model, dynfix.compile(model, fullgraph=True))


@pytest.mark.parametrize("compare", [keeps, leaves, shifted])
@pytest.mark.parametrize("rate", [0.5, 0.0])
def test_what_is_drawn_decides(compare, rate):
    model = Layers(rate, compare)
    check(model, dynfix.compile(model), calls=8)


def test_a_rate_that_changes_is_seen():
    model = Layers(0.0, keeps)
    compiled = dynfix.compile(model)
    check(model, compiled)
    model.rate = 0.7
    check(model, compiled)
    model.rate = 0.0
    check(model, compiled)
