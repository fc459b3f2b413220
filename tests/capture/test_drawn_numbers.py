"""Comparisons of random numbers that are decided whatever is drawn: rates of zero cut no graph, others do."""

import copy

import dynfix
import pytest
import torch
from counting_graphs import Counting, outside
from torch import nn


class Layers(nn.Module):
    """Leaves out layers at a rate, as sequence models do."""

    def __init__(self, rate, compare, count=3):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(count))
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


@pytest.mark.covering
@pytest.mark.parametrize("compare", [keeps, leaves, shifted])
@pytest.mark.parametrize("rate", [0.5, 0.0])
def test_what_is_drawn_decides(compare, rate):
    model = Layers(rate, compare)
    check(model, dynfix.compile(model), calls=8)


def test_calls_that_go_ever_other_ways_run_in_parts():
    """Not in eager, and no entry runs for nothing: what decides is all that stays outside."""
    model, backend = Layers(0.3, keeps, count=8), Counting()
    twin = copy.deepcopy(model)
    compiled = dynfix.compile(model, backend=backend)
    for turn in range(16):
        x, before, found = torch.randn(2, 8), backend.calls, []
        for each in (twin, compiled):
            torch.manual_seed(turn)
            result, loose = outside(lambda each=each, x=x: each(x))
            result.sum().backward()
            learnt = twin if each is twin else model
            found.append((result, torch.rand(2), *(p.grad for p in learnt.parameters())))
        for mine, theirs in zip(*found, strict=True):
            torch.testing.assert_close(mine, theirs)
        assert turn < 8 or (backend.calls > before and set(loose) <= {"aten::rand", "aten::ge"})


def test_a_rate_that_changes_is_seen():
    model = Layers(0.0, keeps)
    compiled = dynfix.compile(model)
    check(model, compiled)
    model.rate = 0.7
    check(model, compiled)
    model.rate = 0.0
    check(model, compiled)


def turned(kind):
    """Tensors that do not lie in the order of their axes, or have gaps."""
    return {
        "transposed": lambda: torch.ones(5, 7).t(),
        "channels last": lambda: torch.ones(2, 3, 4, 5).to(memory_format=torch.channels_last),
        "gaps": lambda: torch.ones(6, 16)[:, ::2],
    }[kind]


DRAWS = {
    "bernoulli_": lambda x: x.bernoulli_(0.5),
    "dropout": lambda x: torch.nn.functional.dropout(x, 0.5, True, True),
    "alpha_dropout": lambda x: torch.nn.functional.alpha_dropout(x, 0.5, True),
    "normal_": lambda x: x.normal_(),
    "uniform_": lambda x: x.uniform_(),
}


@pytest.mark.parametrize("backend", ["aot_eager", "native"])
@pytest.mark.parametrize("kind", ["transposed", "channels last", "gaps"])
@pytest.mark.parametrize("name", DRAWS)
def test_numbers_lie_where_eager_puts_them(name, kind, backend):
    program, make = DRAWS[name], turned(kind)

    def call(x):
        return program(x) + 1

    compiled = dynfix.compile(call, backend=backend)
    for seed in range(3):
        found = []
        for each in (call, compiled):
            torch.manual_seed(seed)
            given = make()
            found.append((each(given), given, torch.rand(2)))
        for mine, theirs in zip(*found, strict=True):
            torch.testing.assert_close(mine, theirs)


@pytest.mark.parametrize("backend", ["aot_eager", "native"])
def test_a_backward_draws_nothing(backend):
    def program(x):
        y = torch.nn.functional.dropout(torch.sigmoid(x), 0.5) * x
        return torch.nn.functional.dropout(torch.sigmoid(y), 0.5)

    compiled = dynfix.compile(program, backend=backend)
    for seed in range(3):
        found = []
        for each in (program, compiled):
            torch.manual_seed(seed)
            x = torch.linspace(-2, 2, 64, requires_grad=True)
            each(x).sum().backward()
            found.append((x.grad, torch.rand(2)))
        torch.testing.assert_close(*found)
