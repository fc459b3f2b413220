"""Parts stored in the order of the copy that follows."""

import pytest
import torch
from dynfix.lowering.loops.ir import Nest
from dynfix.lowering.loops.sink import is_copy, sink
from pass_list import wrap_pass

from .harness import check, check_gradients


@pytest.fixture
def copies(monkeypatch):
    """(copies before, copies after) of each unit."""
    counts = []

    def counted(unit):
        made = sink(unit)
        counts.append(
            tuple(sum(isinstance(i, Nest) and is_copy(i) for i in u.items) for u in (unit, made))
        )
        return made

    wrap_pass(monkeypatch, "sink", lambda _: counted)
    return counts


def heads(x, w):
    q, k, v = (x @ w).view(2, 5, 3, 4, 8).permute(2, 0, 3, 1, 4).unbind(0)
    return (q @ k.mT).softmax(-1) @ v


def test_gradients_of_a_split_go_where_they_are_needed(copies):
    check_gradients(
        heads, torch.randn(10, 6) / 3, torch.randn(6, 96) / 3
    )  # larger ones make rounding larger than the tolerance
    before, after = copies[-1]
    assert after < before


@pytest.mark.parametrize("order", [(2, 0, 1), (1, 2, 0), (2, 1, 0), (0, 2, 1)], ids=str)
def test_joins_in_another_order(order):
    def fn(a, b, c):
        parts = [a.exp(), b @ b.mT, c.cumsum(0), a + c, b * 2]
        return torch.stack(parts).permute(0, *(d + 1 for d in order)).contiguous() + 0, torch.cat(
            parts, 1
        ).mT.contiguous()

    check(fn, *(torch.randn(4, 6, 6) for _ in range(3)))


def overwritten(x):
    n = x.shape[1]
    made = x.new_zeros(15, n + 4).slice_scatter(x.cumsum(1), 1, 0, n)
    made = made.slice_scatter(x.flip(1).cumsum(1), 1, 3, 3 + n)
    total = made.sum()
    return made.slice_scatter(x.cumsum(1) * 2, 1, 2, 2 + n), total


SCANS = {
    "backwards": lambda x: x.flip(1).cumsum(1).flip(1),
    "backwards, of columns": lambda x: x.flip(0).cumsum(0).flip(0),
    "of something": lambda x: (x * 2).flip(-1).cumprod(-1).flip(-1),
    "both ways": lambda x: x.cumsum(1).flip(0, 1),
    "turned": lambda x: x.cumsum(1).t().contiguous(),
    "planes": lambda x: x.view(3, 5, -1).flip(2).cumsum(2).flip(2).transpose(0, 1).contiguous(),
    "behind zeros": lambda x: torch.cat((x.new_zeros(15, 1), x[:, :-1].cumsum(1)), 1),
    "between others": lambda x: torch.cat((x, x.cumsum(1), x.flip(1).cumsum(1).flip(1), x), 1),
    "rows below": lambda x: torch.cat((x.new_ones(1, x.shape[1]), x[:-1].cumsum(0)), 0),
    "over others": lambda x: torch.zeros(15, 40).slice_scatter(x.cumsum(1), 1, 3, 3 + x.shape[1]),
    "written in turn": overwritten,
    "read twice": lambda x: ((y := x.cumsum(1)).flip(1), y * 2),
    "returned": lambda x: ((y := x.cumsum(1)).flip(1), y),
    "added to": lambda x: x.flip(1).cumsum(1).flip(1) + x,
}


@pytest.mark.parametrize("name", SCANS)
def test_scans_store_in_another_order(name):
    check(SCANS[name], torch.randn(15, 22))
    check(SCANS[name], torch.randn(15, 34).half()[:, ::2], rtol=1e-2, atol=1e-2)
    check(SCANS[name], torch.randn(15, 0))


def test_what_else_is_read_stays():
    def fn(a, b):
        whole = torch.stack([a.sin(), b.cos(), a * b, a - b, a + b])
        return (
            whole.transpose(1, 2).contiguous(),
            whole.sum(0),
            torch.stack([a, b, a, b, b]).mT.contiguous(),
        )

    check(fn, torch.randn(6, 16), torch.randn(6, 16))
