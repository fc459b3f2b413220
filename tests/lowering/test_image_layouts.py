"""Convolution nets work in channels-last order, and nobody sees it."""

import dynfix
import pytest
import torch
from pass_list import wrap_pass
from torch import nn


class Net(nn.Module):
    def __init__(self, channels=16):
        super().__init__()
        self.first = nn.Conv2d(3, channels, 3, 2, 1)
        self.norm = nn.BatchNorm2d(channels)
        self.second = nn.Conv2d(channels, channels, 3, 1, 1, bias=False)
        self.up = nn.ConvTranspose2d(channels, 5, 2, 2)

    def forward(self, x):
        y = torch.relu(self.norm(self.first(x)))
        z = self.second(y) + y
        return self.up(z), y, z.mean((2, 3)), z.flatten(1)


@pytest.fixture
def rewritten(monkeypatch):
    found = []

    def watched(original):
        def prefer(gm, examples):
            made = original(gm, examples)
            found.append(made is not gm)
            return made

        return prefer

    wrap_pass(monkeypatch, "channels last", watched)
    return found


@pytest.mark.covering
@pytest.mark.parametrize("size", [1, 3, 7, 17, 33])
@pytest.mark.parametrize("train", [False, True])
def test_results_and_layouts_are_those_of_eager(size, train, rewritten):
    torch.manual_seed(0)
    ours, theirs = Net().train(train), Net().train(train)
    theirs.load_state_dict(ours.state_dict())
    call = dynfix.compile(ours, dynamic=False)
    for turn in range(3):
        x = torch.randn(2, 3, size, size + 1)
        if turn == 2:
            x = x.contiguous(memory_format=torch.channels_last)
        with torch.set_grad_enabled(train):
            found, expected = call(x), theirs(x)
        for one, two in zip(found, expected, strict=True):
            torch.testing.assert_close(one, two, rtol=1e-4, atol=1e-5)
            assert turn == 2 or one.stride() == two.stride()
        if train:
            for results in (found, expected):
                sum(r.square().sum() for r in results).backward()
            for one, two in zip(ours.parameters(), theirs.parameters(), strict=True):
                torch.testing.assert_close(one.grad, two.grad, rtol=1e-3, atol=1e-3)
                assert one.grad.stride() == two.grad.stride()
            for one, two in zip(ours.buffers(), theirs.buffers(), strict=True):
                torch.testing.assert_close(one, two)
    assert size == 1 or rewritten[0]


DRAWING = {
    "dropout": lambda x: torch.dropout(x, 0.5, True),
    "rand_like": torch.rand_like,
    "in place": lambda x: x.normal_(),
    "bernoulli": lambda x: torch.bernoulli(x.sigmoid()),
}


@pytest.mark.parametrize("draw", DRAWING.values(), ids=DRAWING)
def test_random_numbers_are_drawn_in_the_order_of_eager(draw):
    torch.manual_seed(0)
    narrow, wide = nn.Conv2d(16, 8, 1), nn.Conv2d(16, 8, 3, padding=1)

    def function(x):
        return draw(torch.cat([narrow(x), wide(x)], 1).relu()) * 2

    call = dynfix.compile(function)
    with torch.no_grad():
        for seed in range(3):
            x, results = torch.randn(2, 16, 5, 5), []
            for called in (function, call):
                torch.manual_seed(seed)
                results.append(called(x))
            torch.testing.assert_close(*results, rtol=1e-5, atol=1e-5)


class Pair(nn.Module):
    def __init__(self, between):
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 16, 3), nn.Conv2d(16, 16, 3)
        self.between = between

    def forward(self, x):
        y = self.second(self.first(x))
        return self.between(y)


def _written_through_rows(y):
    rows = y.reshape(y.shape[0], -1)
    rows.mul_(2)
    return y + 1


def _written_through_a_view(y):
    y.view(-1, y.shape[3]).mul_(2)
    return y + 1


def _written_through_contiguous(y):
    y.contiguous().add_(1)
    return y * 2


def _written_beside_a_copy(y):
    other = y.contiguous(memory_format=torch.channels_last)
    y.mul_(2)
    return y + other


def _written_beside_rows(y):
    rows = y.flatten(1)
    y.mul_(2)
    return rows.sum(1)


@pytest.mark.parametrize(
    "between",
    [
        _written_through_rows,
        _written_through_a_view,
        _written_through_contiguous,
        _written_beside_a_copy,
        _written_beside_rows,
    ],
)
def test_writes_reach_what_they_reach_in_eager(between):
    model = Pair(between)
    call = dynfix.compile(model)
    with torch.no_grad():
        for _ in range(3):
            x = torch.randn(2, 3, 8, 7)
            torch.testing.assert_close(call(x), model(x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("between", [lambda y: (y, y.flatten(1)), lambda y: (y, y.contiguous())])
def test_results_share_memory_as_in_eager(between):
    model = Pair(between)
    call = dynfix.compile(model)
    with torch.no_grad():
        for _ in range(3):
            first, second = call(torch.randn(2, 3, 8, 7))
            first.zero_()
            assert not second.any()


def test_a_run_that_fails_leaves_no_autocast():
    def function(x):
        with torch.autocast("cpu", torch.bfloat16):
            return model(x).float()

    model = Pair(lambda y: y.view(torch.int32).view(torch.bfloat16))
    call = dynfix.compile(function)
    with torch.no_grad():
        for _ in range(3):
            x = torch.randn(2, 3, 7, 8)
            torch.testing.assert_close(call(x), function(x), rtol=0.05, atol=0.05)
            assert not torch.is_autocast_enabled("cpu")


def test_a_convolution_of_what_is_drawn(rewritten):
    model = nn.Sequential(nn.Conv2d(3, 16, 3), nn.Dropout(0.5), nn.Conv2d(16, 16, 3))
    call = dynfix.compile(model)
    for seed in range(3):
        x, results = torch.randn(2, 3, 7, 8), []
        for called in (call, model):
            torch.manual_seed(seed)
            results.append(called(x))
        torch.testing.assert_close(*results, rtol=1e-4, atol=1e-5)
    assert all(rewritten)


def test_views_of_images(rewritten):
    model = Pair(lambda y: y.view(y.shape[0], -1) * 2)
    call = dynfix.compile(model)
    for _ in range(3):
        x = torch.randn(2, 3, 7, 8)
        torch.testing.assert_close(call(x), model(x), rtol=1e-4, atol=1e-5)
    assert all(rewritten)
