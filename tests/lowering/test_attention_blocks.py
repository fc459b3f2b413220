"""FlexAttention on the host, block by block."""

import warnings

import dynfix
import pytest
import torch
from dynfix.lowering.graph import attention_blocks, attention_node
from torch.nn.attention import flex_attention as flex


@pytest.fixture(autouse=True)
def many_scores(monkeypatch):
    """More scores than are computed at once, in small blocks."""
    monkeypatch.setattr(attention_node, "MOST_SCORES", {"cpu": 500})
    monkeypatch.setattr(attention_blocks, "ROWS", 16)
    monkeypatch.setattr(attention_blocks, "COLUMNS", 32)
    monkeypatch.setattr(flex, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        yield


@pytest.fixture
def shapes(monkeypatch):
    """Of the scores in each block that is computed."""
    found = []
    call = attention_blocks.AttentionBlocks.__call__

    def noted(self, *given):
        program = self.program

        def run(tensors):
            found.append((tensors[0].shape[2], tensors[1].shape[2]))
            return program(tensors)

        self.program = program and run
        try:
            return call(self, *given)
        finally:
            self.program = program

    monkeypatch.setattr(attention_blocks.AttentionBlocks, "__call__", noted)
    return found


def window(b, h, i, j):
    return (i >= j) & (i - j < 20) & (i % 5 != h)


def test_blocks_at_changing_lengths(shapes):
    def call(q, k, v, table, blocks):
        def score(s, b, h, i, j):
            return torch.tanh(s) + table[h, i - j]

        return flex.flex_attention(
            q, k, v, score_mod=score, block_mask=blocks, enable_gqa=True, return_lse=True
        )

    compiled = dynfix.compile(call, fullgraph=True)
    for length in (70, 70, 61, 61, 20):
        shape = (2, length, 4, 8)
        given = [torch.randn(shape).transpose(1, 2), *torch.randn(2, 2, 2, length, 8)]
        table = torch.randn(4, 2 * length)
        blocks = flex.create_block_mask(window, None, 4, length, length, "cpu", BLOCK_SIZE=16)
        found, expected = compiled(*given, table, blocks), call(*given, table, blocks)
        for one, other in zip(found, expected, strict=True):
            torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)
            assert one.stride() == other.stride()
    assert {*shapes} == {(16, 32)}
    assert shapes.count((16, 32)) < 3 * 5 * 3, "blocks that the mask leaves out are computed"


def test_no_block_mask_and_half_precision(shapes):
    compiled = dynfix.compile(lambda *given: flex.flex_attention(*given), fullgraph=True)
    for _ in range(3):
        given = [torch.randn(1, 2, 50, 8, dtype=torch.bfloat16) for _ in range(3)]
        expected = flex.flex_attention(*(each.double() for each in given))
        torch.testing.assert_close(compiled(*given).double(), expected, atol=2e-2, rtol=2e-2)
    assert shapes


def test_infinities_and_nan():
    compiled = dynfix.compile(lambda *given: flex.flex_attention(*given), fullgraph=True)
    for _ in range(3):
        q, k, v = (torch.randn(1, 2, 50, 8) for _ in range(3))
        q[0, 0, 3], v[0, 1, 40] = float("nan"), float("inf")
        found, expected = compiled(q, k, v), flex.flex_attention(q, k, v)
        torch.testing.assert_close(found, expected, equal_nan=True, atol=1e-5, rtol=1e-5)
