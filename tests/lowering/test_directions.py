"""Which way vectors run: folds of one group along their rows or across, and what is computed beside
positions of extrema."""

import pytest
import torch
import torch.nn.functional as F
from dynfix.lowering.loops.ir import Group, Op
from dynfix.lowering.loops.vector_axis import clearly_across
from dynfix.lowering.targets.cpp import cpp_target

from .harness import check, check_gradients, units


def groups(found):
    return [item for unit in found for item in unit.items if isinstance(item, Group)]


def sources(found):
    return "\n".join(cpp_target.print_kernel(group).source for group in groups(found))


def expected_place(x):
    share = x.flatten(2).softmax(-1).view(2, 3, 32, 32)
    return share.sum(2).square().sum(-1), share.sum(3).square().sum(-1)


def test_folds_along_and_across_are_apart(monkeypatch):
    found = units(monkeypatch)
    check_gradients(expected_place, torch.randn(2, 3, 32, 32))
    folds = [[nest for nest in group.nests if nest.is_reduction] for group in groups(found)]
    ways = [{clearly_across([nest]) for nest in each} for each in folds if each]
    assert all(len(each) == 1 for each in ways)
    assert {True} in ways and {False} in ways


def test_of_two_ways_that_jump_the_shorter_jumps_are_taken(monkeypatch):
    found = units(monkeypatch)
    check(lambda x: x.permute(0, 3, 1, 2).softmax(-1), torch.randn(2, 64, 64, 4))
    assert "r1_part[64]" not in sources(found)


@pytest.mark.covering
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("kind", ["max", "min"])
def test_positions_in_what_is_computed(kind, dtype, monkeypatch):
    found = units(monkeypatch)
    x = torch.randn(3, 40, 70).to(dtype)
    x[0, 3:5, 7] = x[2, :, 1] = float("nan")
    x[1, :, 3] = 5

    def extremum(x):
        made = getattr(F.relu(x) * 2, kind)(1)
        return made.values, made.indices

    check(extremum, x)
    assert "_value[64];" in sources(found)
    check_gradients(lambda x: extremum(x)[0], torch.randn(3, 40, 70, dtype=torch.float64))


def test_pairs_of_a_resized_row_are_stored_along_it(monkeypatch):
    found = units(monkeypatch)

    def joined(x, y):
        return F.silu(x + F.interpolate(y, scale_factor=2.0))

    check(joined, torch.randn(2, 3, 28, 28), torch.randn(2, 3, 14, 14))
    assert sources(found).count("op_sigmoid(") == 2


def test_what_is_costly_is_not_computed_for_all_that_take_it(monkeypatch):
    """Each element of a resized image goes to few, along one axis and then along the other."""
    found = units(monkeypatch)

    def resized(x):
        return F.silu(F.interpolate(x, scale_factor=2.0, mode="bilinear"))

    check_gradients(resized, torch.randn(2, 24, 28, 28).to(memory_format=torch.channels_last))
    calls = [
        sum(isinstance(value, Op) and value.name == "sigmoid" for value in nest.values)
        for group in groups(found)
        for nest in group.nests
    ]
    assert 0 < max(calls) <= 4


def test_channels_stay_vectors_where_pixels_are_picked(monkeypatch):
    found = units(monkeypatch)
    x = torch.randn(2, 16, 28, 28).to(memory_format=torch.channels_last)
    check_gradients(lambda x: F.avg_pool2d(x, 3, 2, 1), x)
    assert "* 16 + 15]" not in sources(found)
    assert "+ 15] =" not in sources(found)


def channel_norm(x):
    centered = x - x.mean(1, keepdim=True)
    return centered * (centered.square().mean(1, keepdim=True) + 1e-5).rsqrt()


CHANNELS = {"softmax": lambda x: x.softmax(1), "norm": channel_norm}


@pytest.mark.covering
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("channels", [2, 5, 9, 10, 33])
@pytest.mark.parametrize("name", CHANNELS)
def test_what_is_folded_over_channels_is_one_kernel(name, channels, dtype, monkeypatch):
    function = CHANNELS[name]
    found = units(monkeypatch)
    tolerance = {"rtol": 3e-2, "atol": 1e-3} if dtype.itemsize == 2 else {}
    for width in (7, 16, 17):
        found.clear()
        x = torch.randn(3, channels, 20, width).to(dtype)
        x[1, 0, 3] = float("nan")
        x[2, 1, 5:7] = float("-inf")
        check(function, x, **tolerance)
        assert len(groups(found)) == 1 or function is channel_norm
    check_gradients(function, torch.randn(2, channels, 8, 8))


def test_exponentials_of_channels_are_computed_once(monkeypatch):
    found = units(monkeypatch)
    check(lambda x: x.softmax(1), torch.randn(2, 21, 16, 16))
    assert sources(found).count("op_exp(") == 1
