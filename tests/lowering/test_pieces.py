"""Axes cut where positions take another step: paddings, what goes round, joins, conditions."""

import pytest
import torch
import torch.nn.functional as F
from dynfix.lowering.loops.kernel_graph import ExternCall
from grids import grid

from .harness import check, check_gradients, units
from .symbolic import check_sizes

PADS = [(3, 3, 3, 3), (1, 0, 0, 2), (11, 9, 10, 8), (2, -1, -3, 1)]


@pytest.mark.covering
@pytest.mark.parametrize("form", [torch.contiguous_format, torch.channels_last], ids=str)
@pytest.mark.parametrize("pad", PADS, ids=str)
@pytest.mark.parametrize("mode", ["constant", "reflect", "replicate", "circular"])
def test_paddings(mode, pad, form):
    x = torch.randn(2, 3, 14, 45).to(memory_format=form)
    check(lambda x: F.pad(x, pad, mode=mode) * 2, x)
    check_gradients(lambda x: F.pad(x * 2, pad, mode=mode).square(), x.double())


@pytest.mark.parametrize("mode", ["reflect", "circular"])
def test_paddings_of_a_length_that_changes(mode):
    check_sizes(lambda x: F.pad(x, (2, 1), mode=mode) + 1, lambda n, m: (torch.randn(n, 3, m + 3),))


def test_a_padding_with_zeros_alone_is_a_copy():
    def padded(x):
        made = F.pad(x, (0, 0), mode="circular")
        made.add_(1)
        return made, x

    check(padded, torch.randn(2, 3, 8))


@pytest.mark.parametrize("shifts, dims", [(3, 1), (-5, 1), (700, 1), (1, 0), ((1, -2), (0, 1))])
def test_rolls(shifts, dims):
    check(lambda x: x.roll(shifts, dims) + 1, torch.randn(6, 70))
    check(lambda x: x.roll(shifts, dims) + x, torch.randn(70, 6).t())
    check_gradients(lambda x: x.roll(shifts, dims) * x, torch.randn(6, 70).double())


def test_rolls_of_everything_twice_along_one_axis_and_of_nothing():
    check(lambda x: x.roll(7), torch.randn(5, 33))
    check(lambda x: x.roll((3, 4), (1, 1)), torch.randn(5, 33))
    check(lambda x: x.roll(3, 1), torch.randn(5, 0))
    check(lambda x: x.roll(-1), torch.randn(()))
    check_sizes(lambda x: x.roll(2, 1) * 2, lambda n, m: (torch.randn(n, m),))


def test_joins_that_go_round():
    x = torch.randn(6, 70)
    check(lambda x: torch.cat([x[:, -3:], x, x[:, :5]], 1) * 2, x)
    check(lambda x: torch.cat([x[:, 10:], x[:, :10]], 1), x)
    check(lambda x: torch.cat([x, x], 1), x)
    check(lambda x: torch.cat([x[:0], x[:0]]), x)
    check_gradients(lambda x: torch.cat([x[:0], x[:, :0].mT.flatten()[:, None] * x[:1]]), x)
    check(lambda x: torch.cat([x[1:], x[:1]], 0), x)
    check_gradients(lambda x: torch.cat([x[:, -3:], x, x[:, :5]], 1).square(), x.double())


def test_joins_that_do_not_go_round():
    x = torch.randn(6, 70)
    check(lambda x: torch.cat([x[:, 3:], x[:, 1:4]], 1) * 2, x)
    check(lambda x: torch.cat([x[:, 3:, None], x.t()[:67].t()[..., None]], 1), x)
    check(lambda x: torch.cat([x[:, ::2], x[:, 1::2]], 1) + 1, x)
    check(lambda x: torch.cat([x[:3, 20:], x[3:, :50]], 1), x)
    check(lambda x: torch.cat([x[:, 35:].neg(), x[:, :35]], 1) * x, x)


def test_conditions_on_the_last_axis():
    x = torch.randn(6, 70)

    def masked(x):
        place = torch.arange(70)
        return torch.where((place > 3) & (place < 50), x.exp(), x * 2)

    def banded(x):
        band = (torch.arange(70)[None] - torch.arange(6)[:, None]).abs() < 9
        return torch.where(band | (torch.arange(70) < 12), x, 0.0)

    check(masked, x)
    check(banded, x)
    check(lambda x: x.masked_fill(torch.arange(70) % 3 == 1, -1.0), x)


@pytest.mark.parametrize(
    "mode", grid(("constant", "reflect").__contains__, ["constant", "reflect", "replicate"])
)
def test_channels_beside_an_edge_are_apart_from_the_others(mode):
    """The axis of pixels is cut, so that no channel asks where it lies."""
    x = torch.randn(2, 24, 12, 40).to(memory_format=torch.channels_last)
    check_gradients(lambda x: F.pad(x.sin(), (3, 2, 1, 2), mode=mode).square(), x)
    check_gradients(lambda x: F.avg_pool2d(x.sin(), 3, 2, 1), x)
    check_gradients(lambda x: F.avg_pool2d(x.sin(), 3, 2, 1, count_include_pad=False), x)


@pytest.mark.parametrize("mode", ["reflect", "replicate"])
def test_gradients_of_padding_are_stored_once(mode, monkeypatch):
    made = units(monkeypatch)
    check_gradients(lambda x: F.pad(x.sin(), (3, 2, 1, 2), mode=mode), torch.randn(2, 3, 8, 9))
    check_gradients(lambda x: F.pad(x.sin(), (3, 2), mode=mode), torch.randn(2, 3, 9))
    assert not any(isinstance(item, ExternCall) for unit in made for item in unit.items)
