"""What is picked at positions from memory, and read many times, is picked once; rows that are cut
anew are not picked at all."""

import dynfix
import pytest
import torch
import torch.nn.functional as F
from dynfix.lowering.loops.ir import atoms, holds_positions, indices_of
from dynfix.lowering.loops.sizes import FloorDiv, Mod

from .harness import check, check_gradients, units

PLACES = torch.randint(-13, 13, (9, 11))


def biased(scores, table):
    return (scores + table[PLACES].permute(2, 0, 1)).softmax(-1)


def picking_points(made):
    """How many points the loops have that read at positions from memory."""
    nests = [nest for unit in made for item in unit.items for nest in item.nests]
    return sum(
        torch.Size(nest.space + nest.inner).numel()
        for nest in nests
        if holds_positions(index for leaf in nest.leaves for index in indices_of(leaf))
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_bias_that_all_windows_share(dtype, monkeypatch):
    made = units(monkeypatch)
    args = torch.randn(50, 4, 9, 11).to(dtype), torch.randn(13, 4).to(dtype)
    check(biased, *args)
    assert picking_points(made) == 4 * 9 * 11
    if dtype == torch.float32:
        check_gradients(biased, *args)


def test_as_many_reads_as_values_are_one_loop(monkeypatch):
    made = units(monkeypatch)
    check(lambda x, i: x[i].exp() + 1, torch.randn(300), torch.randint(0, 300, (9000,)))
    (item,) = (item for unit in made for item in unit.items)
    assert len(item.nests) == 1


def test_rows_that_are_picked_are_read_where_they_lie(monkeypatch):
    made = units(monkeypatch)
    rows = torch.randint(0, 20, (30,))
    check(lambda x, y: x[rows][:, None] * y, torch.randn(20, 16), torch.randn(30, 64, 16))
    (item,) = (item for unit in made for item in unit.items)
    assert len(item.nests) == 1


def test_positions_out_of_range_raise():
    def fn(scores, table, places):
        return (scores + table[places]).softmax(-1)

    call, scores, table = dynfix.compile(fn, fullgraph=True), torch.randn(200, 64), torch.randn(9)
    for _ in range(3):
        places = torch.randint(-9, 9, (64,))
        torch.testing.assert_close(call(scores, table, places), fn(scores, table, places))
    places[3] = 9
    with pytest.raises(IndexError):
        call(scores, table, places)


def shifted(x):
    batch, heads, rows, columns = x.shape
    padded = F.pad(x, (1, 0)).view(batch, heads, columns + 1, rows)
    return padded[:, :, 1:].view(batch, heads, rows, columns)


def test_rows_that_are_cut_anew_lie_in_memory(monkeypatch):
    """The shift of relative positions: each row of the result begins elsewhere in a padded one."""
    found = units(monkeypatch)
    check(lambda x: shifted(x) * 2, torch.randn(2, 3, 40, 40))
    check_gradients(lambda x, y: (y + shifted(x)).softmax(-1), *torch.randn(2, 2, 3, 40, 40))
    nests = [nest for unit in found for item in unit.items for nest in item.nests]
    parts = [(n.axes[-1], a) for n in nests for load in n.loads for a in atoms(load.index)]
    divided = [(last, [*atoms(a.base)]) for last, a in parts if isinstance(a, FloorDiv | Mod)]
    assert parts and not any(last in axes for last, axes in divided)
