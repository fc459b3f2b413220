"""Rows too long for registers are read once for mean and variance, or for maximum and sum of
exponentials; sums over columns ride along with the rows."""

import math

import pytest
import torch
from dynfix.lowering.loops import columns
from dynfix.lowering.targets.triton import (
    triton_build,
    triton_split,
    triton_target,
    triton_tile,
)
from lowering_tests.harness import check, check_gradients

F = torch.nn.functional


@pytest.fixture
def texts(monkeypatch):
    """The text of every kernel that is printed."""
    found = []
    printed = triton_target.print_kernel

    def remember(*args, **kwargs):
        found.append(printed(*args, **kwargs))
        return found[-1]

    monkeypatch.setattr(triton_target, "print_kernel", remember)
    return lambda: "\n".join(kernel.text for kernel in found)


@pytest.fixture
def short(monkeypatch):
    """A device that 32 rows fill, where rows are long from 256 elements on."""
    monkeypatch.setattr(triton_build, "describe", lambda device: triton_tile.Device(16))
    for module in (triton_split, triton_tile):
        monkeypatch.setattr(module, "PERSISTENT", 256)
        monkeypatch.setattr(module, "LOOPED", 64)


def log_softmax(x):
    return torch.log_softmax(x, -1)[:, 200]


@pytest.mark.parametrize("length", [17, 500])
@pytest.mark.parametrize(
    "fn",
    [
        lambda x: (y := torch.sigmoid(x), y.sum(-1)),
        lambda x: (y := torch.rsqrt(x.abs() + 1).bfloat16(), y.float().sum(-1), y.amax(-1)),
        lambda x: (y := x.cos(), (y * 2).sum(), torch.var(y, -1), y.amin()),
        lambda x: F.layer_norm(torch.softmax(x, 0), x.shape),
    ],
)
def test_what_was_stored_is_no_zero_beyond_the_axis(fn, length, short):
    torch.manual_seed(0)
    check(fn, torch.randn(3, length))


def special(rows, length):
    """Rows of large numbers, with infinities at every place a tile treats apart, and NaN."""
    x = torch.randn(rows, length) * 30 - 200
    x[0, :100], x[0, -1] = -math.inf, -math.inf
    x[1, :-1] = -math.inf
    x[2] = -math.inf
    x[3, 7] = math.inf
    x[4, -2] = math.nan
    return x


@pytest.mark.parametrize(
    ("rows", "length"),
    [(40, 500), (16, 2087), pytest.param(16, 4111, marks=pytest.mark.slow)],
    ids=["loops", "long loops", "parts"],
)
def test_maximum_and_exponentials_in_one_pass(rows, length, short, texts):
    torch.manual_seed(0)
    check(log_softmax, special(rows, length), rtol=1e-6, atol=1e-4)
    assert "exponentials_step(" in texts()


@pytest.mark.parametrize(
    ("length", "dtype"),
    [
        pytest.param(128 * 11, torch.float32, marks=pytest.mark.slow),
        (128 * 11, torch.bfloat16),
        (128 * 11 + 57, torch.float32),
        pytest.param(128 * 11 + 57, torch.bfloat16, marks=pytest.mark.slow),
    ],
)
def test_exponentials_of_neighbours(length, dtype, short, texts, monkeypatch):
    for module in (triton_split, triton_tile):
        monkeypatch.setattr(module, "LOOPED", 256)
    torch.manual_seed(0)

    x = special(40, length).to(dtype)
    check(lambda x: log_softmax(x.float()), x, rtol=1e-6, atol=1e-4)
    check(lambda x: torch.logsumexp(x.float(), -1), x, rtol=1e-6, atol=1e-4)
    assert "exponentials_steps(" in texts()


def extremes(dtype):
    """Ties, NaN, infinities, and the smallest and largest number of the type, all over a tile."""
    x = torch.randint(-3, 3, (9, 300)).to(dtype)
    if not dtype.is_floating_point:
        x[1], x[2, 200:] = torch.iinfo(dtype).min, torch.iinfo(dtype).max
        return x
    x[1], x[2], x[3, 7:] = -math.inf, math.inf, math.nan
    x[4, [299, 131]], x[5, 130], x[6, 255:] = math.nan, math.inf, -math.inf
    x[:, 64], x[-1, :] = -math.inf, math.nan
    return x


@pytest.mark.parametrize(
    ("dtype", "held"),
    [
        (torch.float32, False),
        (torch.int8, False),
        (torch.bfloat16, True),
        (torch.int64, True),
    ],
)
def test_the_first_place_of_an_extreme(dtype, held, request):
    if not held:
        request.getfixturevalue("short")
    x, found = extremes(dtype), lambda x, dim: (x.argmax(dim), x.argmin(dim))
    check(lambda x: found(x, 1), x)
    check(lambda x: found(x, 0), x.t().contiguous())
    check(lambda x: found(x.reshape(3, 3, 2, 150).transpose(1, 2), 2), x)


@pytest.mark.parametrize(
    "length",
    [
        pytest.param(64 * 11, marks=pytest.mark.slow),
        pytest.param(64 * 11 + 9, marks=pytest.mark.slow),
        64 * 8 + 1,
    ],
)
def test_the_last_turn_of_a_long_loop(length, short, texts):
    torch.manual_seed(0)
    x = torch.randn(40, length)

    def fn(x):
        norm = F.layer_norm(x, (length,))
        return norm, norm.argmin(-1), x.abs().amin(-1), x.square().sum(-1)

    check(fn, x, rtol=1e-5, atol=1e-5)
    assert ("tl.int1)" in texts()) == (length % 64 > 0 and length // 64 >= 8)


@pytest.mark.parametrize("shape", [(20, 4, 250), (8, 4, 2048)], ids=["loops", "parts"])
def test_mean_and_squares_in_one_pass(shape, short, texts):
    torch.manual_seed(0)
    x = torch.randn(shape) * 0.01 + 100  # the first value is no mean: cancellation would show

    def fn(x):
        return F.group_norm(x, 2, eps=0.0)

    check(fn, x, rtol=1e-3, atol=1e-2)
    assert "squares_step" in texts()


@pytest.mark.parametrize("rows", [23, 24])
@pytest.mark.parametrize("cols", [40, 64])
def test_columns_ride_along_with_rows(rows, cols, monkeypatch, texts):
    monkeypatch.setattr(columns, "GPU", columns.GPU._replace(parts=4, least=16))
    torch.manual_seed(0)

    def fn(x, w, b):
        return F.layer_norm(x, (cols,), w, b)

    check_gradients(fn, torch.randn(rows, cols), torch.randn(cols), torch.randn(cols))
    assert "for row in range" in texts()
