"""Attention over a mask that model code makes because it is compiled costs what eager's costs."""

import dynfix
import pytest
import torch
import torch.nn.functional as F


def all_true(x):
    return torch.ones(1, 1, 1, 1, dtype=torch.bool).expand(2, 1, x.shape[-2], x.shape[-2])


def causal(x):
    return torch.ones(x.shape[-2], x.shape[-2], dtype=torch.bool).tril()


def zeros(x):
    return torch.zeros(x.shape[-2], x.shape[-2])


def padding(x):
    return (x[:, :1, :1, : x.shape[-2]] < 9).expand(2, 1, x.shape[-2], x.shape[-2])


def broadcast(x):
    return (torch.arange(x.shape[-2])[:, None] > 3).expand(x.shape[-2], x.shape[-2])


def nodes(result):
    """The backward's nodes of attention; what each saved as its mask."""
    todo, found = [result.grad_fn], {}
    while todo:
        node = todo.pop()
        todo += [next_ for next_, _ in node.next_functions if next_ is not None]
        if hasattr(node, "_saved_attn_mask"):
            found[node] = node._saved_attn_mask
    return list(found.values())


def attend(mask, asked):
    def function(x):
        x = x * 2
        made = mask(x) if not asked or torch.compiler.is_compiling() else None
        causes = asked and mask is causal and made is None
        return F.scaled_dot_product_attention(x, x, x, attn_mask=made, is_causal=causes)

    return function


@pytest.mark.parametrize("mask", [all_true, causal, zeros, padding])
def test_a_mask_made_for_compilers_is_not_paid_for(mask):
    function = attend(mask, asked=True)
    compiled = dynfix.compile(function)
    for call in range(3):
        x = torch.rand(2, 2, 8, 16, requires_grad=True)
        result = compiled(x)
        if call == 0:
            assert nodes(result) == [None]
        torch.testing.assert_close(result, function(x))


def test_keys_that_a_mask_broadcasts_are_laid_out_for_fused_kernels():
    compiled = dynfix.compile(attend(broadcast, asked=True))
    x = torch.rand(2, 2, 8, 16, requires_grad=True)
    (saved,) = nodes(compiled(x))
    assert saved.stride(-1) == 1


@pytest.mark.parametrize("mask", [all_true, causal, zeros])
def test_a_mask_that_eager_makes_too_is_used_as_eager_does(mask):
    function = attend(mask, asked=False)
    x = torch.rand(2, 2, 8, 16, requires_grad=True)
    (saved,) = nodes(dynfix.compile(function)(x))
    assert saved is not None
    torch.testing.assert_close(saved, nodes(function(x))[0])


def test_a_mask_that_was_written_to_is_looked_at_again():
    def function(x):
        mask = torch.ones(8, 8, dtype=torch.bool)
        first = F.scaled_dot_product_attention(x, x, x, attn_mask=mask)
        if torch.compiler.is_compiling():
            mask[:, 3:] = False
        else:
            mask = mask & (torch.arange(8) < 3)
        return F.scaled_dot_product_attention(first, x, x, attn_mask=mask)

    compiled = dynfix.compile(function)
    for _ in range(3):
        x = torch.rand(2, 2, 8, 16)
        torch.testing.assert_close(compiled(x), function(x))
