"""FlexAttention as kernels of ours, forward and backward, beside its formula in float64."""

import math
import warnings

import dynfix
import numpy
import pytest
import torch
import triton
from dynfix.lowering.lowerings import lower_attention
from torch.nn.attention import flex_attention as flex

_OLD = tuple(map(int, triton.__version__.split(".")[:2])) < (3, 7)
_NEW = tuple(map(int, numpy.__version__.split(".")[:2])) >= (2, 4)
pytestmark = pytest.mark.skipif(
    _OLD and _NEW, reason="Triton's interpreter reads numbers as this NumPy does not allow"
)
OPTIONS = {"target": "triton", "strict": True}
HEADS, SIZE, LENGTH = 4, 24, 40


@pytest.fixture(autouse=True)
def on_a_gpu(monkeypatch):
    """Tensors of the interpreter stand for a GPU's, where FlexAttention has gradients."""
    monkeypatch.setattr(flex, "_validate_device", lambda *_: None)
    monkeypatch.setattr(flex, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # of NumPy, about log2(0)
        warnings.simplefilter("ignore", FutureWarning)
        yield


@pytest.fixture
def kernels(monkeypatch):
    """The kernels that are made: "forward" or "backward"."""
    made = []
    printed = lower_attention._call

    def noted(ctx, what, printer, returned):
        printed(ctx, what, printer, returned)
        made.append(printer.__name__)

    monkeypatch.setattr(lower_attention, "_call", noted)
    return made


def formula(q, k, v, score=None, mask=None, scale=None):
    """The result and the logarithms of the sums."""
    q, k, v = (each.double() for each in (q, k, v))
    group = q.shape[1] // k.shape[1]
    k, v = (each.repeat_interleave(group, 1) for each in (k, v))
    s = q @ k.transpose(-2, -1) * (scale or 1 / math.sqrt(q.shape[-1]))
    places = [
        torch.arange(n).view([-1 if d == e else 1 for e in range(4)]) for d, n in enumerate(s.shape)
    ]
    s = s if score is None else score(s, *places)
    s = s if mask is None else torch.where(mask(*places), s, -math.inf)
    sums = s.logsumexp(-1)
    empty = sums == -math.inf
    weights = torch.exp(s - torch.where(empty, 0, sums)[..., None])
    return weights @ v, sums


def causal(b, h, i, j):
    return i >= j


def window(b, h, i, j):
    return (i >= j) & (i - j < 37)


def sparse(b, h, i, j):
    """Some rows see nothing, and what others see depends on the head."""
    return (i >= j) & (i % 3 != 1) & (i + h != j)


def same(ids):
    return lambda b, h, i, j: (ids[i] == ids[j]) & (i >= j)


def beside(table):
    return lambda s, b, h, i, j: s + table[h, i - j + LENGTH]


def alibi(s, b, h, i, j):
    return s + (h + 1) * 0.1 * (j - i)


def capped(s, b, h, i, j):
    return 2 * torch.tanh(s / 2)


def from_the_end(table):
    return lambda s, b, h, i, j: s * table[(j - i) % 3 - 2] + (b * 0.1)


PROGRAMS = {
    "documents": (alibi, same),
    "rows that see nothing": (capped, sparse),
    "bias": (beside, None),
    "positions from the end": (from_the_end, window),
}


def functions(program, length):
    score, mask = PROGRAMS[program]
    if score is beside:
        score = beside(torch.randn(HEADS, 2 * length))
    elif score is from_the_end:
        score = from_the_end(torch.randn(5))
    if mask is same:
        mask = same(torch.arange(length) // (20 + length % 7))
    return score, mask


def blocks(mask, length):
    """Of 16 x 16 places."""
    if mask is None:
        return None
    return flex.create_block_mask(mask, None, HEADS, length, length, "cpu", BLOCK_SIZE=16)


def attend(q, k, v, score, mask, **named):
    made = blocks(mask, q.shape[2])
    return flex.flex_attention(q, k, v, score_mod=score, block_mask=made, **named)


def inputs(length, dtype=torch.float32, size=SIZE, kv_heads=HEADS, trains=False):
    shapes = [(2, heads, length, size) for heads in (HEADS, kv_heads, kv_heads)]
    return [torch.randn(shape, dtype=dtype).requires_grad_(trains) for shape in shapes]


@pytest.mark.parametrize("program", PROGRAMS)
def test_results_and_gradients(program, kernels):
    def call(q, k, v, score, mask, blocks):
        out, sums = flex.flex_attention(
            q, k, v, score_mod=score, block_mask=blocks, return_lse=True
        )
        return out.sin(), sums

    compiled = dynfix.compile(call, fullgraph=True, options=OPTIONS)
    for _ in range(3):
        score, mask = functions(program, LENGTH)
        given = inputs(LENGTH, trains=True)
        exact = [each.detach().double().requires_grad_() for each in given]
        out, sums = compiled(*given, score, mask, blocks(mask, LENGTH))
        expected, expected_sums = formula(*exact, score, mask)
        torch.testing.assert_close(out, expected.sin().float(), atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(sums, expected_sums.float(), atol=1e-5, rtol=1e-5)
        seen = sums > -math.inf
        (out.sum() + sums[seen].cos().sum()).backward()
        (expected.sin().sum() + expected_sums[seen].cos().sum()).backward()
        for one, other in zip(given, exact, strict=True):
            torch.testing.assert_close(one.grad, other.grad.float(), atol=2e-5, rtol=2e-5)
    assert {"forward", "backward"} <= {*kernels}


@pytest.mark.parametrize(("size", "kv_heads"), [(64, 2), (96, 1)])
def test_sizes_of_heads_that_share_keys(size, kv_heads, kernels):
    def call(q, k, v):
        return attend(q, k, v, None, causal, enable_gqa=True, scale=0.3)

    compiled = dynfix.compile(call, fullgraph=True, options=OPTIONS)
    for _ in range(3):
        given = inputs(33, torch.float16, size, kv_heads, trains=True)
        exact = [each.detach().double().requires_grad_() for each in given]
        out, (expected, _) = compiled(*given), formula(*exact, None, causal, 0.3)
        torch.testing.assert_close(out.double(), expected, atol=2e-3, rtol=2e-3)
        out.float().sum().backward()
        expected.sum().backward()
        for one, other in zip(given, exact, strict=True):
            torch.testing.assert_close(one.grad.double(), other.grad, atol=1e-2, rtol=1e-2)
    assert {"forward", "backward"} <= {*kernels}


@pytest.mark.slow
def test_blocks_of_a_mask_that_is_an_argument_at_changing_lengths(kernels):
    """Queries are fewer than keys, transposed in memory, and blocks are small."""

    def call(q, k, v, blocks):
        return flex.flex_attention(q, k[:1], v[:1], block_mask=blocks)

    compiled = dynfix.compile(call, fullgraph=True, options=OPTIONS)
    with torch.no_grad():
        for length in (100, 90, 70, 130):
            q = torch.randn(2, length, HEADS, SIZE).transpose(1, 2)
            _, k, v = inputs(length + 25)
            blocks = flex.create_block_mask(
                window, 2, None, length, length + 25, "cpu", BLOCK_SIZE=(32, 16)
            )
            out = compiled(q, k, v, blocks)
            expected, _ = formula(q, k[:1], v[:1], None, window)
            torch.testing.assert_close(out, expected.float(), atol=1e-5, rtol=1e-5)
            assert out.stride() == flex.flex_attention(q, k[:1], v[:1], block_mask=blocks).stride()
    assert len(kernels) <= 3


@pytest.mark.slow
def test_a_captured_parameter_has_a_gradient(kernels):
    table = torch.randn(HEADS, 80, requires_grad=True)

    def call(q, k, v):
        return attend(q, k, v, lambda s, b, h, i, j: s + table[h, i - j], causal)

    compiled = dynfix.compile(call, fullgraph=True, options=OPTIONS)
    for _ in range(3):
        given = inputs(40, trains=True)
        table.grad = None
        compiled(*given).sum().backward()
        found, table.grad = table.grad, None
        score = lambda s, b, h, i, j: s + table.double()[h, i - j]  # noqa: E731
        formula(*given, score, causal)[0].sum().backward()
        torch.testing.assert_close(found, table.grad, atol=1e-5, rtol=1e-5)
    assert "forward" in kernels and "backward" not in kernels


def test_what_the_kernels_do_not_take_is_computed_by_the_formula(kernels):
    compiled = dynfix.compile(attend, fullgraph=True, options=OPTIONS)
    with torch.no_grad():
        for _ in range(3):
            given = inputs(40, torch.float64)
            out, (expected, _) = compiled(*given, None, causal), formula(*given, None, causal)
            torch.testing.assert_close(out, expected)
    assert not kernels


@pytest.mark.slow
def test_a_mask_by_batches_that_the_call_makes(kernels):
    """Which asks for positions in a loop that has no memory."""

    def call(q, k, v, lengths):
        def padded(b, h, i, j):
            return j < lengths[b]

        blocks = flex.create_block_mask(padded, 2, None, LENGTH, LENGTH, "cpu", BLOCK_SIZE=16)
        return flex.flex_attention(q, k, v, block_mask=blocks)

    compiled = dynfix.compile(call, fullgraph=True, options=OPTIONS)
    with torch.no_grad():
        for seen in (5, 9, 33):
            given, lengths = inputs(LENGTH), torch.tensor([seen, LENGTH])
            expected, _ = formula(*given, mask=lambda b, h, i, j, n=lengths: j < n[b])
            out = compiled(*given, lengths)
            torch.testing.assert_close(out, expected.float(), atol=1e-5, rtol=1e-5)
    assert kernels == ["forward"]
