"""Convolution nets work in channels-last order, and nobody sees it."""

import dynfix
import pytest
import torch
from dynfix.lowering import joint
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

    def prefer(gm, examples):
        made = original(gm, examples)
        found.append(made is not gm)
        return made

    original = joint.prefer_channels_last
    monkeypatch.setattr(joint, "REWRITES", (joint.drop_constant_masks, prefer))
    return found


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
