"""Positions that are loaded from memory: negative ones count from the end, others outside are
clamped, also where fused."""

import pytest
import torch
from dynfix.lowering.joint import compile_graph
from dynfix.runtime.options import Options
from torch.fx import symbolic_trace

FAR = (12, 13, -13, 2**31, -(2**31), 2**40, 2**63 - 1, -(2**63))


def inside(ids):
    return torch.where(ids < 0, torch.where(ids < -12, 0, ids + 12), ids.clamp(max=11))


def picked(table, ids):
    return table[ids] * 2 + 1


def embedded(table, ids):
    return torch.nn.functional.embedding(ids, table).softmax(-1) + table[ids.flip(0)]


def gathered(table, ids):
    return torch.gather(table.t(), 1, ids[None, :].expand(7, 5)) * table[ids].t()


def positions_computed(table, ids):
    return table[(ids * 2 - ids)] + table.index_select(0, ids)


@pytest.mark.parametrize(
    "fn", [picked, embedded, gathered, positions_computed], ids=lambda fn: fn.__name__
)
def test_positions_outside_are_clamped(fn):
    table = torch.randn(12, 7)
    call = compile_graph(
        symbolic_trace(fn), [table, torch.arange(5)], Options(target="triton", verify_ir=True)
    )
    for first in (0, *FAR):
        ids = torch.tensor([first, 3, 11, -12, first])
        torch.testing.assert_close(call(table, ids), fn(table, inside(ids)))
