"""Attention over a mask of constants takes the kernel for none, or for a causal one; over others it keeps its mask."""

import dynfix
import pytest
import torch
import torch.nn.functional as F
from dynfix.lowering.graph.constant_masks import drop_constant_masks

Q, K, V = (torch.randn(2, 3, 6, 8) for _ in range(3))


def attention(make_mask):
    return lambda q, k, v: F.scaled_dot_product_attention(q, k, v, attn_mask=make_mask(q))


def recorded(fn):
    graphs = []
    dynfix.compile(fn, backend=lambda gm, examples: graphs.append(gm) or gm)(Q, K, V)
    (graph,) = graphs
    return graph


def of_arange(q):
    rows, columns = torch.arange(6), torch.arange(6)
    seen = columns[None, :] <= rows[:, None]
    return (seen & seen.new_ones((), dtype=torch.bool))[None, None].expand(2, -1, 6, 6)


MASKS = {
    "all true": (lambda q: torch.ones(2, 1, 6, 6, dtype=torch.bool), (None, False)),
    "zeros": (lambda q: torch.zeros(6, 6), (None, False)),
    "causal": (of_arange, (None, True)),
    "causal floats": (lambda q: torch.full((6, 6), float("-inf")).triu(1), (None, True)),
    "a band": (lambda q: torch.ones(6, 6, dtype=torch.bool).tril(1), None),
    "of data": (lambda q: q[:, :1, :, :6] > 0, None),
}


@pytest.mark.parametrize("name", MASKS)
def test_masks(name):
    make, expected = MASKS[name]
    graph = recorded(attention(make))
    (call,) = [
        n
        for n in drop_constant_masks(graph).graph.nodes
        if n.target is F.scaled_dot_product_attention
    ]
    if expected is None:
        assert call.kwargs["attn_mask"] is not None
    else:
        assert (call.kwargs["attn_mask"], call.kwargs["is_causal"]) == expected
    assert all(
        n.kwargs.get("is_causal") is not True for n in graph.graph.nodes
    )  # the given graph is as it was
    compiled = dynfix.compile(attention(make))
    for scale in (1, 2, -1):
        torch.testing.assert_close(
            compiled(Q * scale, K, V), attention(make)(Q * scale, K, V), rtol=1e-4, atol=1e-5
        )


def test_a_mask_that_is_written_keeps_its_place():
    def fn(q, k, v):
        mask = torch.ones(6, 6, dtype=torch.bool)
        mask[:, 0].fill_(False)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)

    compiled = dynfix.compile(fn)
    for scale in (1, 2, -1):
        torch.testing.assert_close(
            compiled(Q * scale, K, V), fn(Q * scale, K, V), rtol=1e-4, atol=1e-5
        )


def test_gradients_of_attention_in_float64():
    call = dynfix.compile(attention(MASKS["causal"][0]), options={"strict": True})
    for turn in range(3):
        given = [(each.double() + turn).requires_grad_() for each in (Q, K, V)]
        found, expected = call(*given), attention(MASKS["causal"][0])(*given)
        ours, theirs = (torch.autograd.grad(r.square().sum(), given) for r in (found, expected))
        torch.testing.assert_close((found, ours), (expected, theirs))
