"""`F.embedding_bag` of bags of equal sizes as loops, against the library."""

import pytest
import torch
import torch.nn.functional as F
from dynfix.lowering.loops.kernel_graph import ExternCall

from .harness import check, check_gradients, compiled, units

POSITIONS = torch.randint(50, (7, 9))


def externs(found):
    return [item for unit in found for item in unit.items if isinstance(item, ExternCall)]


@pytest.mark.covering
@pytest.mark.parametrize("mode", ["sum", "mean"])
@pytest.mark.parametrize("width", [1, 5, 64, 70])
@pytest.mark.parametrize(
    "positions", [POSITIONS, POSITIONS.int(), POSITIONS[:, :1]], ids=["int64", "int32", "one"]
)
def test_bags_are_loops(mode, width, positions, monkeypatch):
    found = units(monkeypatch)
    table = torch.randn(50, width)
    check_gradients(lambda i, w: F.embedding_bag(i, w, mode=mode), positions, table)
    assert found and not externs(found)
    check(lambda i, w: F.embedding_bag(i, w, mode=mode), positions, table.bfloat16())


def test_weights_of_elements():
    given = POSITIONS, torch.randn(50, 6), torch.randn(7, 9)

    def summed(i, w, each):
        return F.embedding_bag(i, w, mode="sum", per_sample_weights=each)

    check_gradients(summed, *given)


@pytest.mark.parametrize(
    "more",
    [{"mode": "max"}, {"padding_idx": 0}, {"mode": "sum", "padding_idx": 3}, {"max_norm": 1.0}],
    ids=str,
)
def test_other_bags_are_the_library_s(more):
    positions = torch.arange(24).view(4, 6) % 4
    check(lambda i, w: F.embedding_bag(i, w, **more), positions, torch.randn(5, 6))


def test_bags_of_offsets():
    table = torch.randn(50, 3)
    check(lambda i, w: F.embedding_bag(i, w, i[:3] * 0), POSITIONS[0], table)


@pytest.mark.parametrize("position", [-1, 50])
def test_a_position_outside_raises(position):
    positions = POSITIONS.clone()
    call = compiled(lambda i, w: F.embedding_bag(i, w), positions, torch.randn(50, 3))
    positions[2, 3] = position
    with pytest.raises((IndexError, RuntimeError)):
        call(positions, torch.randn(50, 3))
