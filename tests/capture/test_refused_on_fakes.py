"""What torch refuses on fake tensors, or in a decomposition, and takes in eager, costs at most a
graph break at that operator."""

import warnings

import dynfix
import pytest
import torch
from helpers import recordings

INTEGERS = torch.arange(1, 7, dtype=torch.int32)
X = torch.arange(1.0, 7.0)


@torch.library.custom_op("dynfix_tests::refused_on_fakes", mutates_args=())
def refused(x: torch.Tensor) -> torch.Tensor:
    return x + 1


@refused.register_fake
def _(x):
    raise ValueError("not for fake tensors")


def _same(f, *args):
    """Three calls without a message; the compiled function."""
    compiled = dynfix.compile(f)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", message=".*is not one graph.*")
        for turn in range(3):
            moved = [each + turn for each in args]
            torch.testing.assert_close(compiled(*moved), f(*moved))
    return compiled


WHOLE = {
    "addcmul": lambda i, x: (torch.addcmul(i, i, i, value=0.5), x.sin()),
    "addcmul of bytes": lambda i, x: (torch.addcmul(*[i.to(torch.uint8)] * 3, value=1.7), x.sin()),
    "addcmul in place": lambda i, x: (i.clone().addcmul_(i, i, value=2.5), x.sin()),
}


@pytest.mark.parametrize("name", WHOLE)
def test_a_decomposition_that_refuses_is_left_out(name):
    compiled = _same(WHOLE[name], INTEGERS, X)
    (recording,) = recordings(compiled)
    assert len(recording.segments) == 1


def test_an_operator_that_fake_tensors_refuse_is_called_as_it_is():
    compiled = _same(lambda x: torch.cos(refused(torch.sin(x) * 2)) + 1, X)
    (segment,) = recordings(compiled)[-1].segments
    assert segment.open


@pytest.mark.parametrize(
    "f",
    [
        lambda x: torch.as_strided(x, (3, 2), (1, 1)) * 2,
        lambda x: x.as_strided((2,), (4,)).exp(),
        lambda x: torch.as_strided(x, (2, 2), (0, 3)) + x[0],
    ],
)
def test_strides_over_a_part_of_a_storage_stay_in_the_graph(f):
    compiled = dynfix.compile(f, fullgraph=True)
    for start in (1, 2, 3):
        x = torch.randn(12)[start : start + 8]
        torch.testing.assert_close(compiled(x), f(x))


def test_strides_beyond_a_part_of_a_storage_are_eagers():
    f = lambda x: torch.as_strided(x, (3, 2), (2, 1)) * 2  # noqa: E731
    compiled = dynfix.compile(f)
    for start in (1, 2, 3):
        x = torch.randn(12)[start : start + 4]
        torch.testing.assert_close(compiled(x), f(x))
