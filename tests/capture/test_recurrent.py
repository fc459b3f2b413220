"""Recurrent layers stay calls of the library: nothing is decomposed, and values, gradients, layouts
and random numbers are eager's, at sizes that change."""

import weakref

import dynfix
import pytest
import torch
from dynfix.lowering import recurrent_operators
from dynfix.lowering.graph import rnn
from dynfix.rewriter.frontend import compiled_function
from helpers import recordings
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence


@pytest.fixture(params=[True, False], ids=["program", "as it is"])
def either_way(request, monkeypatch):
    """Training graphs that hold little but recurrent layers run as they are; here programs, too."""
    if request.param:
        monkeypatch.setattr(rnn, "MAX_OPERATORS_A_LAYER", -1)


SIZES = ((5, 3, 8), (7, 2, 8), (4, 3, 8), (9, 5, 8))  # the second is recorded for all sizes


class Layer(nn.Module):
    def __init__(self, kind, **settings):
        super().__init__()
        self.rnn = getattr(nn, kind)(8, 6, **settings)
        self.before = nn.Linear(8, 8)

    def forward(self, x):
        out, state = self.rnn(torch.relu(self.before(x)))
        return out * 2, state


def _flat(result):
    leaves = torch.utils._pytree.tree_leaves(result)
    return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]


def _step(call, module, x, seed):
    """Results, gradients of the parameters, and the input's."""
    torch.manual_seed(seed)
    module.zero_grad()
    x = x.clone().requires_grad_(module.training)
    results = _flat(call(x))
    if module.training:
        sum((result**2).sum() for result in results).backward()
    return results, [p.grad for p in module.parameters()], x.grad


def _pair(make, train=True):
    torch.manual_seed(0)
    eager = make().train(train)
    torch.manual_seed(0)
    return eager, make().train(train)


@pytest.mark.usefixtures("either_way")
@pytest.mark.parametrize(
    ("kind", "train", "settings"),
    [
        ("LSTM", True, {"num_layers": 2, "dropout": 0.5}),
        ("GRU", True, {"bidirectional": True, "batch_first": True, "bias": False}),
        ("LSTM", False, {"proj_size": 4, "bidirectional": True}),
        ("RNN", False, {"nonlinearity": "relu", "batch_first": True}),
    ],
)
def test_as_eager_at_every_size(kind, train, settings):
    eager, ours = _pair(lambda: Layer(kind, **settings), train)
    compiled = dynfix.compile(ours, fullgraph=True)
    for seed, size in enumerate(SIZES):
        x = torch.randn(size)
        want, got = _step(eager, eager, x, seed), _step(compiled, ours, x, seed)
        torch.testing.assert_close(got, want)
        assert [r.stride() for r in got[0]] == [r.stride() for r in want[0]]


def test_changing_sizes_are_recorded_twice(monkeypatch):
    recorded = []
    finish = compiled_function.finish
    monkeypatch.setattr(
        compiled_function, "finish", lambda *args: recorded.append(finish(*args)) or recorded[-1]
    )
    module = Layer("GRU").eval()
    compiled = dynfix.compile(module)
    for length in range(3, 9):
        with torch.no_grad():
            compiled(torch.randn(length, 3, 8))
    assert len(recorded) == 2


@pytest.mark.parametrize("kind", ["LSTM", "GRU"])
def test_one_call_of_the_library_each_way(monkeypatch, kind):
    calls = []
    monkeypatch.setattr(rnn, "MAX_OPERATORS_A_LAYER", 2)
    for name in ("_training", "_backward"):
        operator = {"_training": "rnn_training", "_backward": "rnn_backward"}[name]
        key = getattr(torch.ops.dynfix, operator).default
        function = recurrent_operators.CALLED[key]
        monkeypatch.setitem(
            recurrent_operators.CALLED,
            key,
            lambda *args, n=name, f=function: calls.append(n) or f(*args),
        )
    module = Layer(kind, num_layers=2)
    compiled = dynfix.compile(module)
    for seed in range(3):
        _step(compiled, module, torch.randn(5, 3, 8), seed)
    assert calls == ["_training", "_backward"] * 2  # the first call is eager's
    monkeypatch.setattr(
        rnn, "MAX_OPERATORS_A_LAYER", 3
    )  # the three other operators are few, and all runs as it is
    compiled = dynfix.compile(module)
    for seed in range(3):
        _step(compiled, module, torch.randn(5, 3, 8), seed)
    assert len(calls) == 4


@pytest.mark.usefixtures("either_way")
def test_state_carried_on():
    def run(call, module, cells):
        state, losses = (torch.zeros(2, 3, 6),) * 2, []
        for seed in range(4):
            torch.manual_seed(seed)
            state = tuple(part.detach() for part in state)
            out, state = call(torch.randn(5, 3, 8), state)
            module.zero_grad()
            out.sum().backward()
            losses.append((out.detach(), [p.grad.clone() for p in module.parameters()]))
        return losses

    eager, ours = _pair(lambda: nn.LSTM(8, 6, 2))
    torch.testing.assert_close(run(dynfix.compile(ours), ours, True), run(eager, eager, True))


@pytest.mark.usefixtures("either_way")
def test_backward_twice_and_frozen_weights():
    eager, ours = _pair(lambda: Layer("LSTM"))
    for module in (eager, ours):
        module.rnn.weight_ih_l0.requires_grad_(False)
    compiled = dynfix.compile(ours)
    for _ in range(3):
        x = torch.randn(5, 3, 8)
        found = []
        for call, module in ((eager, eager), (compiled, ours)):
            module.zero_grad()
            out, (_, cell) = call(x)
            out.sum().backward(retain_graph=True)
            cell.sum().backward()
            found.append([p.grad for p in module.parameters()])
        torch.testing.assert_close(found[1], found[0])


def test_the_state_dies_with_the_graph(monkeypatch):
    class Watched(recurrent_operators._State):
        __slots__ = ("__weakref__",)

        def __init__(self, *parts):
            super().__init__(*parts)
            states.append(weakref.ref(self))

    states = []
    monkeypatch.setattr(recurrent_operators, "_State", Watched)
    monkeypatch.setattr(rnn, "MAX_OPERATORS_A_LAYER", -1)
    module = Layer("GRU")
    compiled = dynfix.compile(module)
    compiled(torch.randn(5, 3, 8))
    kept, _ = compiled(torch.randn(5, 3, 8))
    compiled(torch.randn(5, 3, 8))
    assert [state() is not None for state in states] == [True, False]
    kept.sum().backward()
    del kept
    assert states[0]() is None


def test_no_random_state_is_kept_where_nothing_is_dropped():
    for settings, random in (({"num_layers": 2}, False), ({"num_layers": 2, "dropout": 0.5}, True)):
        compiled = dynfix.compile(Layer("LSTM", **settings))
        compiled(torch.randn(5, 3, 8))
        (recording,) = recordings(compiled)
        assert [segment.random for segment in recording.segments] == [random]


def test_under_autocast_as_before():
    module = nn.LSTM(4, 4).eval()
    compiled = dynfix.compile(module, fullgraph=True)
    for _ in range(3):
        x = torch.randn(2, 3, 4)
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
            want, got = _flat(module(x)), _flat(compiled(x))
        torch.testing.assert_close(got, want, rtol=2e-2, atol=2e-2)


class Packed(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.LSTM(8, 6, bidirectional=True)

    def forward(self, x, lengths):
        packed = pack_padded_sequence(x, lengths, enforce_sorted=False)
        out, state = self.rnn(packed)
        return pad_packed_sequence(out)[0], state


def test_an_lstm_that_trains_under_autocast_is_a_break():
    torch.manual_seed(0)
    net = torch.nn.LSTM(4, 6, batch_first=True)

    def fn(x):
        y = x.sin() * 2
        with torch.autocast("cpu", torch.bfloat16):
            return net(y)[0].float().cos()

    compiled = dynfix.compile(fn)
    for _ in range(3):
        x = torch.randn(2, 3, 4)
        assert torch.equal(compiled(x), fn(x))
    assert "under autocast" in str(compiled._dynfix_entry.recordings[0].sites[-1])
    with torch.no_grad():
        for _ in range(2):
            assert torch.equal(compiled(x), fn(x))


@pytest.mark.usefixtures("either_way")
def test_packed_sequences():
    eager, ours = _pair(Packed)
    compiled = dynfix.compile(ours)
    for lengths in ([5, 2, 3], [5, 2, 3], [1, 5, 3], [4, 4, 2]):
        x = torch.randn(5, 3, 8)
        found = []
        for call, module in ((eager, eager), (compiled, ours)):
            module.zero_grad()
            out, (hidden, _) = call(x, torch.tensor(lengths))
            (out.sum() + hidden.sum()).backward()
            found.append((out, hidden, [p.grad for p in module.parameters()]))
        torch.testing.assert_close(found[1], found[0])
    kept = [bool(recording.segments) for recording in recordings(compiled)]
    assert kept == [True, True]  # the second one stands for all lengths


def test_packed_sequences_of_changing_lengths_are_recorded_twice():
    """What the first recording compared (how many sequences are that long) the second one reads."""
    layer = Layer("LSTM", batch_first=True).rnn
    compiled = dynfix.compile(layer)
    for longest in (4, 5, 7, 6, 9):
        given, lengths = torch.randn(2, longest, 8), torch.tensor([longest - 2, longest])
        packed = pack_padded_sequence(given, lengths, batch_first=True, enforce_sorted=False)
        for got, wanted in zip(compiled(packed)[0], layer(packed)[0], strict=True):
            torch.testing.assert_close(got, wanted)
    assert len(recordings(compiled)) == 2
