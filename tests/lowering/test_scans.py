"""Running sums and products."""

import pytest
import torch
from grids import grid

from .harness import at_threads, check, check_gradients, compiled
from .symbolic import check_sizes

CASES = [((7,), 0), ((5, 300), 1), ((300, 5), 0), ((3, 40, 70), 1), ((3, 40, 70), -1), ((4, 1), 1)]


@pytest.mark.parametrize("shape, dim", CASES)
def test_cumsum(shape, dim):
    check(lambda x: torch.cumsum(x, dim), torch.randn(shape))
    check(lambda x: torch.cumsum(x * 2 - 1, dim) * 3, torch.randn(shape))


@pytest.mark.parametrize(
    "dtype",
    grid(
        (torch.bfloat16, torch.bool).__contains__,
        [torch.bfloat16, torch.float64, torch.int32, torch.bool],
    ),
)
def test_types(dtype):
    for shape in ((6, 50), (70, 130), (2, 33, 5)):
        x = torch.randn(shape).mul(3).to(dtype)
        check(lambda x: torch.cumsum(x, -1), x)
        check(lambda x: torch.cumsum(x.flip(-1), -1).flip(-1), x)
        check(lambda x: torch.cumprod(x, -1), x)


@pytest.mark.parametrize(
    "dtype", grid((torch.int64, torch.uint8).__contains__, [torch.int64, torch.uint8, torch.int16])
)
def test_whole_numbers_along_rows(dtype):
    """Which wrap around where eager's do, and become int64 in any case."""
    for shape in ((6, 50), (3, 5, 300), (1030,), (2, 0), (4, 1)):
        x = torch.randint(-(2**62), 2**62, shape).to(dtype)
        check(lambda x: (x.cumsum(-1), x.cumsum(0), (x > 3).cumsum(-1)), x)
        check(lambda x: x.cumsum(-1, dtype=torch.int32), x)


def test_layout_of_a_transposed_operand():
    check(lambda x: torch.cumsum(x, 1), torch.randn(30, 6).t())


def test_cumprod():
    check(lambda x: torch.cumprod(x, 0), torch.rand(9, 80) + 0.5)


def test_gradient():
    check_gradients(lambda x: torch.cumsum(x, 1) * x, torch.randn(4, 50))


@pytest.mark.parametrize("length", [5, 512, 1300])
def test_what_is_computed_along_rows(length):
    x, places = torch.rand(3, length), torch.randint(length, (3, length))
    check(lambda x: (x * 2 - 1).exp().cumsum(1), x)
    check(lambda x: (x + 0.5).cumprod(1).log(), x)
    check(lambda x, i: (x.gather(1, i) * 3).cumsum(1), x, places)
    check(lambda x: (x * 9).int().cumsum(1), x)


@pytest.mark.parametrize("rows", grid((1, 7).__contains__, [1, 3, 4, 7, 130]))
def test_rows_in_turn(rows):
    """Several rows are done beside each other: the same bits, for every number of threads."""
    x = torch.randn(2, rows, 61)
    x[0, 0, 3], x[1, -1] = torch.nan, -0.0
    for given in (x, x.double(), x.bfloat16(), x[..., 5:50], x.transpose(0, 1)):
        check(lambda x: x.cumsum(-1), given, rtol=0, atol=0)
        check(lambda x: ((x * 2).cumsum(-1), (x + 1).cumprod(-1)), given, rtol=2e-2, atol=1e-6)
    large = torch.randn(rows, 4 << 12)
    one, *others = at_threads(compiled(lambda x: (x.abs() / 9).cumsum(1), large), large)
    assert all(torch.equal(one, other) for other in others)


def test_rows_of_a_size_that_changes():
    sizes = [(9, 70), (3, 71), (4, 41), (6, 5), (130, 600)]
    check_sizes(
        lambda x: (x * 2).exp().cumsum(-1),
        lambda *shape: (torch.randn(shape),),
        sizes,
        rtol=1e-5,
        atol=1e-5,
    )
