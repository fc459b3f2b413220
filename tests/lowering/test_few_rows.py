"""Folds of few long rows: a fixed number of parts, which threads share."""

import pytest
import torch
from dynfix.lowering.loops.ir import Group, atoms
from dynfix.lowering.loops.sizes import Axis

from .harness import at_threads, check, compiled, units


@pytest.fixture
def spaces(monkeypatch):
    """Gives what the first kernel of every program runs over."""
    made = units(monkeypatch)
    return lambda: [next(i.space for i in unit.items if isinstance(i, Group)) for unit in made]


def test_every_kind_of_fold(spaces):
    def fn(x):
        large = x > 4.9
        return (x * x).mean(), x.amax(), x.amin(), large.any(), (~large).all(), large.sum()

    check(fn, torch.randn(512, 300), rtol=1e-5, atol=1e-5)
    assert spaces() == [(64,)]


def test_rows_and_axes_around_them(spaces):
    x = torch.randn(3, 40, 4, 400)
    check(lambda x: (x.sum((1, 3)), x.sum((1, 2, 3)) * 2), x, rtol=1e-4, atol=1e-3)
    check(lambda x: torch.softmax(x.flatten(1), -1), x)
    check(lambda x: x.flatten(1).prod(1), torch.randint(1, 3, (2, 1 << 17)))
    assert len(spaces()) == 3 and all(space[-1] > 8 for space in spaces())


def test_lengths_without_equal_parts_and_short_ones_stay_whole(spaces):
    check(lambda x: x.sum(), torch.randn(131_101), rtol=1e-4, atol=1e-3)
    check(lambda x: x.sum(), torch.randn(1 << 12), rtol=1e-4, atol=1e-3)
    assert spaces() == [(), ()]


@pytest.mark.parametrize("dim", [1, 2])
def test_what_is_read_in_parts_is_read_along_them(monkeypatch, dim):
    """Neighbours of images: the flat position is not divided by the length of a part."""
    made = units(monkeypatch)

    def fn(x):
        size = x.shape[dim] - 1
        return (x.narrow(dim, 1, size) - x.narrow(dim, 0, size)).abs().mean()

    check(fn, torch.randn(24, 128, 96), rtol=1e-5, atol=1e-6)
    indices = {load.index for i in made[0].items for nest in i.nests for load in nest.loads}
    assert all(isinstance(atom, Axis) for index in indices for atom in atoms(index))


def test_the_same_for_every_number_of_threads():
    x = torch.rand(1 << 18)
    call = compiled(lambda x: (x * x).sum(), x)
    results = at_threads(call, x)
    assert len({float(result) for result in results}) == 1
    exact = (x.double() * x.double()).sum()
    assert (
        abs(results[0].double() - exact) <= 2 * abs((x * x).sum().double() - exact) + 1e-7 * exact
    )
