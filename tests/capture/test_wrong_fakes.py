"""Custom operators whose fake form says something else than what they give."""

import warnings

import dynfix
import pytest
import torch
from dynfix.runtime import diagnostics


def doubled(x: torch.Tensor) -> torch.Tensor:
    return x * 2


def as_float64(x: torch.Tensor) -> torch.Tensor:
    return (x * 2).double()


def turned(x: torch.Tensor) -> torch.Tensor:
    return (x * 2).t().contiguous().t()


def repeated(x: torch.Tensor) -> torch.Tensor:
    return (x * 2).repeat(2, 1)


def of_float64(x):
    return torch.empty_like(x, dtype=torch.float64)


def of_turned(x):
    return x.new_empty(x.shape[::-1]).t()


def defined(name, real, fake, gradient=lambda ctx, grad: grad.float()[:3] * 2):
    made = torch.library.custom_op(f"dynfix_fakes::{name}", mutates_args=())(real)
    made.register_fake(fake)
    made.register_autograd(gradient)
    return made


# By what the fake form tells wrong; each is asked for the first time by its own test.
PAIRS = {
    "dtype": (as_float64, torch.empty_like),
    "narrower dtype": (doubled, of_float64),
    "shape": (repeated, torch.empty_like),
    "strides": (turned, torch.empty_like),
    "turned strides": (doubled, of_turned),
}
_count = iter(range(1000))


def wrong(kind):
    return defined(f"wrong{next(_count)}", *PAIRS[kind])


def wrong_in_its_backward(kind):
    inner = wrong(kind)
    gradient = lambda ctx, grad: inner(grad).sum(0).float() * torch.ones_like(grad)  # noqa: E731
    return defined(f"right{next(_count)}", doubled, torch.empty_like, gradient)


PROGRAMS = {
    "result": lambda op: lambda x: op(x.sin()),
    "saved": lambda op: lambda x: (op(x.sin()) * op(x.cos())).exp(),
    "two results": lambda op: lambda x: (op(x.sin()), op(x).mT @ op(x)),
    "twice": lambda op: lambda x: op(op(x.sin()).float()[:3]),
}


def outcome(function, turn, gradients):
    x = torch.randn(3, 4, generator=torch.Generator().manual_seed(turn))
    made = function(x.requires_grad_(gradients))
    made = made if isinstance(made, tuple) else (made,)
    total = sum((each.float() * torch.arange(each.shape[-1])).sum() for each in made)
    return made, torch.autograd.grad(total, x) if gradients else ()


def compared(program, gradients, **options):
    """The compiled function, and what was warned of."""
    diagnostics.reset()
    compiled = dynfix.compile(program, **options)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for turn in range(5):
            found, expected = (outcome(each, turn, gradients) for each in (compiled, program))
            for one, two in zip(found[0], expected[0], strict=True):
                torch.testing.assert_close(one, two, rtol=1e-4, atol=1e-5, check_stride=True)
            torch.testing.assert_close(found[1], expected[1], rtol=1e-4, atol=1e-5)
    return compiled, {str(each.message).partition("\n")[0] for each in said}


def hits(compiled):
    return sum(entry.hits for entry in compiled._dynfix_entry._dispatcher.entries)


@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("kind", ["dtype", "narrower dtype", "shape"])
def test_an_operator_that_gives_another_tensor_runs_between_two_graphs(kind, name, gradients):
    compiled, said = compared(PROGRAMS[name](wrong(kind)), gradients)
    assert hits(compiled) == 3
    (why,) = said
    assert "where its fake form says" in why


@pytest.mark.covering
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("kind", ["strides", "turned strides"])
def test_results_lie_as_the_operator_gives_them(kind, name, gradients, dynamic):
    compiled, said = compared(PROGRAMS[name](wrong(kind)), gradients, dynamic=dynamic)
    assert hits(compiled) == 4
    assert not said


@pytest.mark.covering
@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("kind", ["dtype", "narrower dtype", "shape"])
def test_a_backward_whose_operator_gives_another_tensor_runs_in_eager(kind, name):
    _, said = compared(PROGRAMS[name](wrong_in_its_backward(kind)), True)
    (why,) = said
    assert why.startswith("a backward runs in eager: an operator")


@pytest.mark.covering
@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("kind", ["strides", "turned strides"])
def test_a_backward_reads_what_the_operator_gives_by_its_own_strides(kind, name):
    compiled, said = compared(PROGRAMS[name](wrong_in_its_backward(kind)), True)
    assert hits(compiled) == 4
    assert not said


def test_under_fullgraph_the_first_call_says_so():
    op = wrong("dtype")
    with pytest.raises(dynfix.GraphBreakError, match="where its fake form says"):
        dynfix.compile(lambda x: op(x * 2), fullgraph=True)(torch.randn(3, 4))


def test_what_an_operator_inside_of_a_function_of_the_user_gives_is_compared():
    op = wrong("dtype")

    class Doubled(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return op(x)

        @staticmethod
        def backward(ctx, grad):
            return grad.float() * 2

    for program in (lambda x: Doubled.apply(x.sin()), lambda x: Doubled.apply(x.sin()).cos() * 2):
        _, said = compared(program, True)
        (why,) = said
        assert "an operator g" in why
