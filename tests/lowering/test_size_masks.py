"""Masks made of sizes that only a call knows: dropped where they are all true or causal at every size, kept where they
are so at some alone."""

import dynfix
import pytest
import torch
import torch.nn.functional as F
from dynfix.lowering import passes
from pass_list import insert_pass

ATTENTION = F.scaled_dot_product_attention


def indices(n, offset=0):
    q, k = torch.arange(n) + offset, torch.arange(n) + offset
    return q[None, None, :, None], k[None, None, None, :]


def causal(n):
    q, k = indices(n)
    return k <= q


def written_otherwise(n):
    q, k = indices(n)
    return ~(k > q) & (q >= 0) & (k < n + 1) & q.new_ones((), dtype=torch.bool)


def packed(n):
    """As transformers looks for sequences packed into one row."""
    q, k = indices(n)
    batch = torch.arange(2)[:, None, None, None]
    positions = torch.arange(n).unsqueeze(0).expand(2, -1)
    part = (torch.diff(positions, prepend=positions[:, :1] - 1, dim=-1) != 1).cumsum(-1)
    return (part[batch, q] == part[batch, k]) & (positions[batch, k] <= positions[batch, q])


def packed_from_zero(n):
    q, k = indices(n)
    batch = torch.arange(2)[:, None, None, None]
    positions = torch.arange(n).unsqueeze(0).expand(2, -1)
    part = (torch.diff(positions, prepend=positions[:, :1], dim=-1) != 1).cumsum(-1)
    return (part[batch, q] == part[batch, k]) & (k <= q)


def window(n):
    q, k = indices(n)
    return (k <= q) & (k > q - 30)


def all_seen(n):
    q, _ = indices(n)
    return (q >= 0) & (torch.ones(2, n, dtype=torch.bool)[:, None, None, :])


def shifted(n):
    q, k = indices(n)
    return k <= q + 1


def first_columns(n):
    q, k = indices(n)
    return (k < 20) | (k <= q)


def from_the_end(n):
    q, k = indices(n)
    return k >= q - n + 1  # all true


def nearly_from_the_end(n):
    q, k = indices(n)
    return k >= q - n + 2  # but for one corner


def zeros(n):
    return torch.zeros(n, n)


def chosen(n):
    _, k = indices(n)
    return torch.where(k >= 0, 0.0, float("-inf"))


def written(n):
    mask = torch.ones(n, n, dtype=torch.bool)
    mask[:, :1] = False
    mask[0] = True
    return mask


MASKS = {
    causal: "causal",
    written_otherwise: "causal",
    packed: "causal",
    packed_from_zero: None,
    window: None,
    all_seen: "open",
    shifted: None,
    first_columns: None,
    from_the_end: "open",
    nearly_from_the_end: None,
    zeros: "open",
    chosen: "open",
    written: None,
}


SIMILAR = (packed_from_zero, nearly_from_the_end)


@pytest.mark.parametrize(
    "make",
    [pytest.param(m, marks=pytest.mark.slow if m in SIMILAR else ()) for m in MASKS],
    ids=lambda make: make.__name__,
)
def test_a_mask(make, monkeypatch, tmp_path):
    monkeypatch.setenv("DYNFIX_CACHE_DIR", str(tmp_path))  # no program of an earlier run
    seen = []

    def look(gm, examples):
        calls = [node for node in gm.graph.nodes if node.target is ATTENTION]
        seen.extend((node.kwargs["attn_mask"], node.kwargs.get("is_causal")) for node in calls)
        return gm

    insert_pass(monkeypatch, len(passes.PASSES), passes.Pass("look", passes.TORCH, look, "looks"))

    def fn(q, k, v):
        return ATTENTION(q, k, v, attn_mask=make(q.shape[2]))

    compiled = dynfix.compile(fn, dynamic=True)
    for n in (16, 24, 40, 31, 17, 1, 50):
        q, k, v = (torch.randn(2, 3, n, 8) for _ in range(3))
        torch.testing.assert_close(compiled(q, k, v), fn(q, k, v), rtol=1e-4, atol=1e-5)
    mask, is_causal = seen[0]
    expected = MASKS[make]
    assert ("causal" if is_causal else "open" if mask is None else None) == expected


def test_other_sizes_of_rows_and_columns_are_not_causal():
    def fn(q, k, v):
        rows, columns = torch.arange(q.shape[2]), torch.arange(k.shape[2])
        return ATTENTION(q, k, v, attn_mask=columns[None, :] <= rows[:, None])

    compiled = dynfix.compile(fn, dynamic=True)
    for n, m in ((16, 24), (24, 16), (40, 40), (9, 7)):
        q, k, v = torch.randn(2, 3, n, 8), torch.randn(2, 3, m, 8), torch.randn(2, 3, m, 8)
        torch.testing.assert_close(compiled(q, k, v), fn(q, k, v), rtol=1e-4, atol=1e-5)


def test_an_int_that_the_caller_gives_may_be_negative():
    def fn(q, k, v, shift):
        rows, columns = torch.arange(q.shape[2]), torch.arange(k.shape[2])
        return ATTENTION(q, k, v, attn_mask=columns[None, :] + shift >= rows[:, None] * 0)

    compiled = dynfix.compile(fn, dynamic=True)
    q, k, v = (torch.randn(2, 3, 12, 8) for _ in range(3))
    for shift in (3, 4, 5, 0, -2, -3):
        expected = fn(q, k, v, shift)
        torch.testing.assert_close(compiled(q, k, v, shift), expected, rtol=1e-4, atol=1e-5)
