"""Lazy conjugates and negatives inside of compiled graphs, as results, and as gradients."""

import dynfix
import pytest
import torch


def conjugated(x):
    return torch.complex(x, x * 2).conj()


def negative(x):
    return torch.complex(x, x * 2).conj().imag


def read(x):
    return torch.complex(x, x * 2).conj().imag * 3 + 1


def gradients_for(result):
    """With the result's own bit, without one, and with one of another tensor."""
    made = torch.randn_like(result.resolve_neg().resolve_conj())
    other = torch.complex(torch.randn(5), torch.randn(5)).conj()
    return torch.ones_like(result), made, other if made.is_complex() else other.imag


@pytest.mark.parametrize("function", [conjugated, negative, read])
def test_results_and_gradients_are_those_of_eager(function):
    call = dynfix.compile(function, options={"strict": True})
    for which in (0, 1, 2, 0):
        x = torch.randn(5, requires_grad=True)
        found, expected = call(x), function(x)
        torch.testing.assert_close(found, expected)
        assert (found.is_conj(), found.is_neg()) == (expected.is_conj(), expected.is_neg())
        gradient = gradients_for(expected)[which]
        ours, theirs = (torch.autograd.grad(each, x, gradient) for each in (found, expected))
        torch.testing.assert_close(ours, theirs)
