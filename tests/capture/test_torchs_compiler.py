"""Code that hands its functions to torch's own compiler, which takes them as they are written."""

import os
import warnings
from collections.abc import Callable, Iterator

import dynfix
import pytest
import torch
from torch.nn.attention import flex_attention as flex


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch.compiler.reset()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def causal(b, h, q, k):
    return q >= k


def attend(q, k, v):
    bias = q.sum(-1).mean() + torch.zeros(q.shape[2])

    def score(s, b, h, i, j):
        return s + bias[i - j]

    def near(b, h, i, j):
        return i - j < 5

    size = q.shape[2]
    mask = flex.create_block_mask(flex.and_masks(causal, near), None, None, size, size, "cpu")
    return flex.flex_attention(q, k, v, score_mod=score, block_mask=mask).sin()


@pytest.mark.slow
def test_flex_attention_at_changing_lengths():
    compiled = dynfix.compile(attend, backend="eager")
    with torch.no_grad():
        for size in (8, 8, 16, 8, 12):
            given = [torch.rand(1, 2, size, 8) for _ in range(3)]
            assert torch.allclose(compiled(*given), attend(*given), atol=1e-5)


def grouped(q, k, v):
    def soft(s, b, h, i, j):
        return 5 * torch.tanh(s / 5)

    out, sums = flex.flex_attention(
        q, k[:, :1], v[:, :1], score_mod=soft, enable_gqa=True, return_lse=True, scale=0.3
    )
    return out * 2, sums


def by_torchs_compiler(q, k, v):
    return torch.compile(flex.flex_attention)(q, k, v, score_mod=lambda s, b, h, i, j: s + i - j)


@pytest.mark.parametrize("program", [attend, grouped, by_torchs_compiler])
def test_flex_attention_is_one_graph(program):
    compiled = dynfix.compile(program, fullgraph=True)
    with torch.no_grad():
        for _ in range(3):
            given = [torch.rand(2, 2, 8, 4) for _ in range(3)]
            expected = program(*given) if program is not by_torchs_compiler else None
            found = compiled(*given)
            if expected is None:  # which Inductor would build
                q, k, v = given
                expected = flex.flex_attention(q, k, v, score_mod=lambda s, b, h, i, j: s + i - j)
            torch.testing.assert_close(found, expected)


def test_block_masks_of_new_functions_at_changing_lengths():
    """A mask that is an argument holds a function that is made anew, and lengths."""
    compiled = dynfix.compile(
        lambda q, blocks: flex.flex_attention(q, q, q, block_mask=blocks), backend="eager"
    )

    def same(ids):
        return lambda b, h, i, j: ids[i] == ids[j]

    with torch.no_grad():
        for size in (40, 33, 37, 50, 41):
            ids = torch.randint(0, 3, (size,)).sort()[0]
            blocks = flex.create_block_mask(same(ids), None, None, size, size, "cpu", BLOCK_SIZE=16)
            q = torch.rand(1, 2, size, 8)
            expected = flex.flex_attention(q, q, q, block_mask=blocks)
            torch.testing.assert_close(compiled(q, blocks), expected)
    assert len(compiled._dynfix_entry.recordings) <= 3


def test_flex_attention_on_the_host_has_no_gradients():
    given = [torch.rand(1, 2, 8, 8, requires_grad=True) for _ in range(3)]
    compiled = dynfix.compile(lambda q, k, v: flex.flex_attention(q, k, v) * 2)
    for _ in range(2):
        with pytest.raises(NotImplementedError, match="backward on CPU"):
            compiled(*given)


def test_flex_attention_is_left_to_torch_where_torch_compile_is_ours():
    x = torch.rand(1, 2, 8, 8)
    with torch.no_grad():
        expected = flex.flex_attention(x, x, x)
        with dynfix.install(backend="eager"):
            attend = torch.compile(flex.flex_attention, backend="eager")
            assert not hasattr(attend, "_dynfix_original")
            for _ in range(3):
                assert torch.equal(flex.flex_attention(x, x, x), expected)


@torch.compile(backend="eager", fullgraph=True)
def apply(function, x):
    return function(x) + 1


def given_a_closure(x):
    factor = 3.0
    open(os.devnull).close()

    def scaled(y):
        return y * factor

    return apply(scaled, x)


def given_a_closure_with_a_generator(x):
    open(os.devnull).close()

    def summed(y):
        return sum(y * i for i in range(3))

    return apply(summed, x)


def made_after_a_break(x):
    open(os.devnull).close()
    compiled = torch.compile(lambda y: y * 2 + x.sum(), backend="eager", fullgraph=True)
    return torch.stack([*map(compiled, [x, x + 1])])


def decorated_after_a_break(x):
    open(os.devnull).close()

    @torch.compile(backend="eager", fullgraph=True)
    def inner(y, times=2):
        return y.cos() * times

    return inner(x) + inner(x, times=3)


@pytest.mark.parametrize(
    "function",
    [
        given_a_closure,
        given_a_closure_with_a_generator,
        made_after_a_break,
        decorated_after_a_break,
    ],
)
def test_what_torch_compile_made_is_called_behind_a_break(function: Callable[..., torch.Tensor]):
    compiled = dynfix.compile(function, backend="eager")
    for size in (3, 3, 4, 3):
        x = torch.rand(size)
        assert torch.allclose(compiled(x), function(x))


def test_a_graph_break_that_the_users_finally_replaces_is_raised_all_the_same():
    def cleaned_up(x):
        table = {}
        try:
            open(os.devnull).close()
            table["made"] = x
        finally:
            del table["made"]
        return x

    with pytest.raises(dynfix.GraphBreakError):
        dynfix.compile(cleaned_up, fullgraph=True)(torch.rand(2))


def test_flex_attention_under_autocast():
    def attend(q, k, v):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return flex.flex_attention(q, k, v)

    compiled = dynfix.compile(attend, fullgraph=True)
    with torch.no_grad():
        for _ in range(3):
            given = [torch.rand(1, 2, 16, 8) for _ in range(3)]
            found, expected = compiled(*given), attend(*given)
            torch.testing.assert_close(found, expected, atol=4e-3, rtol=0)
