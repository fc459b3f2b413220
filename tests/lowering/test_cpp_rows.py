"""Folds of rows, values that are kept for later loops, and loops without divisions, as generated
code and against eager."""

import math
import re

import pytest
import torch
from dynfix.lowering.targets.cpp.cpp_build import CppTarget
from dynfix.lowering.targets.cpp.cpp_target import print_kernel
from grids import grid

from .harness import check, check_gradients, compiled

F = torch.nn.functional
LENGTHS = [1, 7, 15, 16, 17, 63, 64, 65, 130, 512, 513, 2048, 2049, 5000]


@pytest.fixture
def sources(monkeypatch):
    """C++ of the libraries built during the test."""
    made = []
    real = CppTarget.build

    def build(self, unit, groups, *more):
        made.extend(print_kernel(group).source for group in groups)
        return real(self, unit, groups, *more)

    monkeypatch.setattr(CppTarget, "build", build)
    return made


@pytest.mark.covering
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("length", LENGTHS, ids=str)
def test_folds_of_every_length(length, dtype):
    def fn(x):
        y = x * 2 + 1
        return (
            x.sum(-1),
            x.amax(-1),
            x.amin(-1),
            y.sum(-1),
            y.amax(-1),
            y.amin(-1),
            (y * y).mean(-1),
            x.softmax(-1),
        )

    check(fn, torch.randn(3, length, dtype=dtype))


def test_sums_of_many_rows_in_float64_are_as_exact_as_eagers():
    """Of padded channels-last elements, which are no one long row."""
    program = lambda x: F.smooth_l1_loss(x.max(), F.pad(x, (1, 1)))  # noqa: E731
    x = torch.randn(30, 17, 50, 1, dtype=torch.float64).contiguous(
        memory_format=torch.channels_last
    )
    terms = F.smooth_l1_loss(x.max(), F.pad(x, (1, 1)), reduction="none").flatten().tolist()
    exact = math.fsum(terms) / len(terms)
    error = abs(compiled(program, x)(x).item() - exact)
    assert error <= 4 * torch.finfo(torch.float64).eps * exact


@pytest.mark.parametrize("special", [torch.inf, -torch.inf, torch.nan, 1e308])
def test_sums_of_many_rows_that_are_no_number(special):
    x = torch.ones(30, 17, 5, 1, dtype=torch.float64).contiguous(memory_format=torch.channels_last)
    x[3, 4] = special
    x[20, 4] = abs(special)
    check(lambda x: (F.pad(x, (1, 1)).sum(), F.pad(x, (1, 1)).mean((1, 2, 3))), x)


@pytest.mark.parametrize("length", grid((16, 33, 100).__contains__, [16, 33, 64, 100, 700]))
def test_nan_and_infinities_anywhere_in_a_row(length):
    def fn(x):
        y = x + 0.5
        return (
            x.amax(-1),
            x.amin(-1),
            y.amax(-1),
            y.amin(-1),
            y.sum(-1),
            x.softmax(-1),
            x.log_softmax(-1),
        )

    x = torch.randn(5 * length, length)
    for place in range(length):
        for row, bad in enumerate((float("nan"), float("inf"), -float("inf"), -float("nan"))):
            x[5 * place + row, place] = bad
    x[4] = -float("inf")
    check(fn, x)


def test_a_softmax_computes_each_exponential_once(sources):
    def fn(x, hidden):
        return (x / 4).masked_fill(hidden, -float("inf")).softmax(-1)

    check(fn, torch.randn(9, 64), torch.ones(9, 64, dtype=torch.bool).triu(9))
    (source,) = sources
    assert source.count("op_exp(") == 1


def test_kept_rows_between_nests_of_several_lengths():
    def fn(x, w, b):
        y = F.layer_norm(x.tanh(), (x.shape[-1],), w, b)
        return y, (y.exp() - y.exp().amax(-1, keepdim=True)).softmax(-1)

    for length in (16, 48, 513, 2048, 2100):
        check(
            fn,
            torch.randn(6, length),
            torch.randn(length),
            torch.randn(length),
            rtol=1e-4,
            atol=1e-5,
        )


def test_exp_over_its_whole_range():
    x = torch.cat(
        [
            torch.linspace(-110, 95, 40001),
            torch.tensor([-1e30, 1e30, -1e4, 88.72, 88.73, -103.9, -104.0, 1e-20]),
        ]
    )
    x = torch.cat([x, torch.tensor([float("inf"), -float("inf"), float("nan")])])
    found, exact = compiled(lambda x: x.exp(), x)(x), x.double().exp()
    assert torch.equal(found.isnan(), x.isnan())
    torch.testing.assert_close(found, exact.float(), rtol=2.5e-7, atol=1.5e-45, equal_nan=True)


def test_a_bias_is_read_without_a_division(sources):
    def fn(x, w, a, b):
        return F.silu(F.linear(x, w, a)) * b

    check(
        fn,
        torch.randn(5, 24),
        torch.randn(32, 24),
        torch.randn(32),
        torch.randn(32),
        rtol=1e-4,
        atol=1e-5,
    )
    assert sources and not any("%" in source for source in sources)


def test_a_linear_layer_and_its_gradients():
    def fn(x, w, b):
        return F.gelu(F.linear(x, w, b)).mean(-1), F.linear(x, w, b)

    check_gradients(fn, torch.randn(6, 20), torch.randn(24, 20), torch.randn(24))


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.bool], ids=str)
def test_scatter_of_one_position_a_row(dtype):
    def fn(x, ids):
        return torch.scatter(x, 1, ids, 1), torch.scatter(x.t(), -2, ids.t(), 0)

    call = compiled(fn, torch.ones(6, 9).to(dtype), torch.zeros(6, 1, dtype=torch.int64))
    for _ in range(3):
        x, ids = torch.randn(6, 9).to(dtype), torch.randint(9, (6, 1))
        assert all(torch.equal(one, two) for one, two in zip(call(x, ids), fn(x, ids), strict=True))
    for bad in (-1, 9):
        ids = ids.clone()
        ids[3] = bad
        with pytest.raises(IndexError):
            call(x, ids)


def test_cross_entropy_and_its_gradient_with_ignored_targets():
    def fn(logits, targets):
        return F.cross_entropy(logits, targets)

    targets = torch.randint(30, (8,))
    targets[2] = -100
    check_gradients(fn, torch.randn(8, 30), targets)


@pytest.mark.covering
@pytest.mark.parametrize("length", [16, 63, 64, 513, 1200])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_positions_of_extrema_in_rows(length, dtype):
    x = torch.randint(-3, 4, (9, length)).to(dtype)
    x[1] = float("-inf")
    x[2] = float("inf")
    x[3, length // 2 :] = float("nan")
    x[4, -1] = 9
    x[5, -1] = -9
    x[6, length // 3] = float("nan")
    check(lambda x: (x.argmax(-1), x.argmin(-1), x.argmax(), (x * 2).argmin(-1)), x)


def test_short_rows_that_are_summed_as_one_long_row():
    def fn(x, y):
        return x * torch.ones(10, 10), y * torch.ones(2)

    check_gradients(fn, torch.randn(()), torch.randn(()))


@pytest.mark.parametrize("length", grid((70,).__contains__, [48, 70, 200]))
def test_what_is_made_of_folds_is_made_of_many_rows(length, sources):
    """Functions of a library are called for vectors of rows."""
    functions = (
        lambda x: x.log_softmax(-1),
        lambda x: (x.exp().sum(-1, keepdim=True) + 1).log() * x,
        lambda x: F.layer_norm(x, x.shape[-1:]),
        lambda x: x - x.amax(-1, keepdim=True).sin(),
    )
    x = torch.randn(1103, length)
    for fn in functions:
        check(fn, x)
        check(fn, x.view(1103, 2, -1)[:, 0])
        check_gradients(fn, x)
    x[2, 3], x[4, 5], x[6] = torch.nan, torch.inf, -torch.inf
    for fn in functions:
        check(fn, x)
    assert any("base + 64" in text for text in sources)


@pytest.mark.parametrize("length", grid((5, 33, 600).__contains__, [5, 16, 33, 70, 600]))
def test_products_of_rows(length):
    x = torch.rand(1040, length) + 0.5
    check(lambda x: (x.prod(-1), x.sigmoid().prod(-1), x.double().prod(-1)), x)
    x[3, 4], x[5, 1], x[6, 0] = torch.nan, torch.inf, 0
    x[7, :2] = torch.tensor([0, torch.inf])
    check(lambda x: (x.prod(-1), (-x).prod(-1)), x)


ROWS = {
    "norm": lambda x: F.layer_norm(x, x.shape[-1:], torch.ones_like(x[0])),
    "softmax": lambda x: x.softmax(-1),
    "logarithms": lambda x: (x * 2).log_softmax(-1),
    "squares": lambda x: F.rms_norm(x.sigmoid(), x.shape[-1:]),
}


@pytest.mark.covering
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("length", [513, 768, 1000])
@pytest.mark.parametrize("program", ROWS)
def test_rows_that_ask_for_others_ahead(program, length, dtype, sources):
    x = torch.randn(65, length, dtype=dtype)
    if dtype == torch.float32:
        check_gradients(ROWS[program], x)
    else:
        check(ROWS[program], x, rtol=0.02, atol=0.02)
    assert any("__builtin_prefetch" in source for source in sources)


def test_what_is_folded_asks_for_its_results_and_what_is_written_for_the_next_row(sources):
    check(ROWS["norm"], torch.randn(256, 768))
    _, results, between, rows = re.split(
        r"__builtin_prefetch\(\w+ \+ i0 \* 768( \+ \d+)? \+ \w \+ k(?:, 1)?\)", sources[0]
    )[:4]
    assert results is None and rows == " + 768"
    assert "_lane[t] +=" in between
