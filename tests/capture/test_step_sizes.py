"""Training steps, and loops, whose sizes or turns are others at each call."""

import random

import dynfix
import pytest
import torch
import torch.nn.functional as F
from differentiated import BACKENDS, assert_same, state_of, trace_of
from dynfix.rewriter.frontend.compiled_versions import FEW_SIZES
from helpers import recordings
from torch import nn

SIZES = (5, 7, 3, 9, 12, 4)


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell, self.last = nn.LSTM(4, 6), nn.Linear(6, 3)

    def forward(self, x):
        out, _ = self.cell(x[:, None])
        return self.last(out[:, 0])


class Attentive(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0)
        self.last = nn.Linear(4, 3)

    def forward(self, x):
        mask = torch.triu(torch.full((len(x), len(x)), float("-inf")), 1)
        return self.last(self.layer(x, src_mask=mask))


def plain():
    return nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 3))


STEPS = {"adam": torch.optim.Adam, "sgd": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9)}


@pytest.mark.covering
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("optimizer", STEPS)
@pytest.mark.parametrize("net", [plain, Recurrent, Attentive])
def test_one_recording_of_a_step_serves_every_size(net, optimizer, backend):
    """Beside the first call's, which makes the optimizer's state."""

    def make():
        model = net().double()
        optimize = STEPS[optimizer](model.parameters())

        def step(x, y):
            optimize.zero_grad()
            loss = F.cross_entropy(model(x), y) * len(x)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimize.step()
            return loss.detach()

        def arguments(i):
            x = torch.randn(SIZES[i], 4, dtype=torch.float64)
            return x, torch.arange(SIZES[i]) % 3

        return step, state_of(model, optimize), arguments

    made = []

    def compiled(fn):
        made.append(dynfix.compile(fn, backend=backend))
        return made[-1]

    want = trace_of(make, lambda fn: fn, len(SIZES))
    assert_same(trace_of(make, compiled, len(SIZES)), want)
    assert len(recordings(made[0])) == 2 and not any(r.sites for r in recordings(made[0]))


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_mean_over_images_of_moving_number(backend):
    """Whose gradient is divided by a float of sizes."""

    def make():
        layers = nn.Conv2d(1, 4, 3, 2, 1), nn.ReLU(), nn.ConvTranspose2d(4, 1, 4, 2, 1)
        model = nn.Sequential(*layers).double()
        optimize = torch.optim.SGD(model.parameters(), 0.1)

        def step(x):
            optimize.zero_grad()
            loss = F.mse_loss(model(x), x)
            loss.backward()
            optimize.step()
            return loss.detach()

        return step, state_of(model), lambda i: (torch.randn(SIZES[i], 1, 8, 8).double(),)

    made = []

    def compiled(fn):
        made.append(dynfix.compile(fn, backend=backend, fullgraph=True))
        return made[-1]

    want = trace_of(make, lambda fn: fn, len(SIZES))
    assert_same(trace_of(make, compiled, len(SIZES)), want)
    assert len(recordings(made[0])) == 2


class Turns(nn.Module):
    """As many turns as there are rows; `chosen` says which of two layers each takes."""

    def __init__(self, chosen):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)])
        self.chosen = chosen

    def forward(self, x):
        h = torch.zeros(4)
        made = []
        for t in range(len(x)):
            layer = self.layers[self.chosen()]
            h = torch.tanh(layer(h + x[t]))
            made.append(h)
        return torch.stack(made).cumsum(0)


CALLS = FEW_SIZES + 5


def rows(i):
    return (torch.arange(4.0 * (i + 4)).view(-1, 4) / 10,)


@pytest.mark.covering
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("drawn", [True, False])
def test_a_loop_that_is_another_at_each_call_runs_in_parts(backend, drawn, recwarn):
    """Not one recording for each number of turns, or for each way that what is drawn takes."""
    dynfix.reset()
    made = []

    def make():
        random.seed(2)
        model = Turns((lambda: random.random() < 0.5) if drawn else (lambda: 1))

        def called(x):
            model.zero_grad()
            result = made[-1](x)
            result.sum().backward()
            return result

        made.append(model)
        return called, state_of(model), rows

    def compiled(fn):
        made[-1] = dynfix.compile(made[-1], backend=backend)
        return fn

    want = trace_of(make, lambda fn: fn, CALLS)
    assert_same(trace_of(make, compiled, CALLS), want)
    assert len(recordings(made[-1])) == (2 if drawn else FEW_SIZES + 3)
    told = [str(w.message) for w in recwarn if "is not one graph" in str(w.message)]
    expected = "a random number decides" if drawn else "a size that changes decides"
    assert expected in told[0] and f"{__file__.rpartition('/')[2]}:" in told[0]


def test_few_draws_are_a_recording_each():
    """And many that always come out alike."""

    def few(x):
        return x * 2 if random.random() < 0.5 else x + 1

    def alike(x):
        for _ in range(9):
            if random.random() < 2:
                x = x + 1
        return x

    for fn, most in ((few, 2), (alike, 2)):
        compiled = dynfix.compile(fn, backend="eager")
        for i in range(8):
            x = torch.full((3,), float(i))
            state = random.getstate()
            want = fn(x)
            random.setstate(state)
            assert torch.equal(compiled(x), want)
        assert len(recordings(compiled)) == most and not recordings(compiled)[-1].sites


def test_all_such_functions_are_whole_under_fullgraph():
    compiled = dynfix.compile(Turns(lambda: 1), backend="eager", fullgraph=True)
    for i in range(5):
        compiled(*rows(i))
    assert len(recordings(compiled)) == 5


class Routed(nn.Module):
    """Each expert gets the rows that its gate chooses; what it makes is added where they were."""

    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(4, 2)
        self.experts = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)])

    def forward(self, x):
        gates = self.gate(x).softmax(-1)
        out = torch.zeros_like(x)
        for i, expert in enumerate(self.experts):
            mask = gates.argmax(-1) == i
            if mask.any():
                out[mask] += torch.tanh(expert(x[mask])) * gates[mask, i][:, None]
        return out * 2


@pytest.mark.parametrize("backend", BACKENDS)
def test_shapes_that_the_data_decides_are_not_recorded_one_by_one(backend, recwarn):
    dynfix.reset()
    made = []

    def make():
        made.append(Routed())

        def called(x):
            made[0].zero_grad()
            result = made[-1](x)
            result.sum().backward()
            return result

        return called, state_of(made[0]), lambda i: (torch.randn(8, 4),)

    def compiled(fn):
        made[0] = made[-1]
        made.append(dynfix.compile(made[-1], backend=backend))
        return fn

    want = trace_of(make, lambda fn: fn, 9)
    made.clear()
    assert_same(trace_of(make, compiled, 9), want)
    assert len(recordings(made[-1])) <= 3
    told = [str(w.message) for w in recwarn if "is not one graph" in str(w.message)]
    assert told and all("out[mask] +=" in each or "mask = " in each for each in told)


def _half_is_stretched(x, mask):
    half = x[: x.shape[0] // 2]
    count = torch.unique(x).numel()  # ends the graph
    return torch.where(mask > 0, half, 1.5), count


def _pool_is_stretched(x, mask):
    pooled = torch.nn.functional.max_pool2d(x[None, None], 2)
    count = torch.unique(x).numel()
    return mask + pooled, count


@pytest.mark.parametrize("body", [_half_is_stretched, _pool_is_stretched])
def test_a_computed_size_that_is_one_is_stretched_in_the_next_graph(body):
    compiled = dynfix.compile(body, dynamic=True)
    for count in (3, 3, 3, 2, 3, 2):
        x, mask = torch.randn(count, 3), torch.randn(count, 3)
        torch.testing.assert_close(compiled(x, mask), body(x, mask), rtol=0, atol=0)
