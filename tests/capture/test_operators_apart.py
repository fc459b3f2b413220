"""Operators that ask for their data, or whose gradients do, run as they are between two graphs."""

from contextlib import nullcontext as nothing

import dynfix
import pytest
import torch
import torch.nn.functional as F
from dynfix.lowering import fake_tensor_mode
from dynfix.runtime import diagnostics
from helpers import same
from torch._subclasses import fake_impls
from torch._subclasses.fake_tensor import run_fallback_kernel
from torch.utils._pytree import tree_flatten


@torch.library.custom_op("dynfix_tests::larger", mutates_args=())
def larger(x: torch.Tensor) -> torch.Tensor:
    return x[x > -9].clone()


larger.register_fake(lambda x: x.new_empty(torch.library.get_ctx().new_dynamic_size()))


@torch.library.custom_op("dynfix_tests::without_fake", mutates_args=())
def without_fake(x: torch.Tensor) -> torch.Tensor:
    return x.flip(0)


torch.library.define("dynfix_tests::tripled", "(Tensor x) -> Tensor")
torch.library.impl("dynfix_tests::tripled", "CPU", lambda x: x * 3)
torch.library.register_fake("dynfix_tests::tripled", torch.empty_like)


@torch.library.custom_op("dynfix_tests::distinct", mutates_args=())
def distinct(x: torch.Tensor) -> torch.Tensor:
    return x.unique()


distinct.register_fake(lambda x: x.new_empty(1))  # which is wrong


@torch.library.custom_op("dynfix_tests::counting", mutates_args=())
def counting(x: torch.Tensor) -> torch.Tensor:
    return x * 2


counting.register_fake(torch.empty_like)
counting.register_autograd(
    lambda ctx, grad: grad * distinct(grad).new_ones(()) + distinct(grad).sum()
)

ASKING = {
    "overload": lambda x: (x * 2)[torch.ops.aten.nonzero.default(x > -9)[:, 0]] + 1,
    "custom operator": lambda x: larger(x.detach() * 2) + x.sum(),
    "overload of one": lambda x: torch.ops.dynfix_tests.larger.default(x.detach()) + x.sum(),
    "gradients through a kernel": lambda x: torch.ops.dynfix_tests.tripled(x * 2) + x,
    "custom operator without a fake": lambda x: without_fake(x.detach() * 2) + x,
    "ctc_loss": lambda x: F.ctc_loss((x @ x.mT).log_softmax(-1)[:, None], ONES, (3,), (2,)),
    "gaussian_nll_loss": lambda x: F.gaussian_nll_loss(x * 2, x, x.exp()).sin(),
    "cov": lambda x: torch.cov(x * 2) + 1,
    "complex pinv": lambda x: torch.linalg.pinv(torch.complex(x, x.T)).abs() + x,
    "lstsq": lambda x: torch.linalg.lstsq(x @ x.mT + 3 * torch.eye(3), x * 2).solution.cos(),
}
ONES = torch.ones(1, 2, dtype=torch.int64)


@pytest.mark.parametrize("name", ASKING)
def test_what_asks_for_its_data_runs_between_two_graphs(name):
    torch.manual_seed(0)
    steps = [(torch.randn(3, 3).requires_grad_(),) for _ in range(3)]
    fn = same(lambda: ASKING[name], *steps, backend="native", tolerance=(1e-3, 1e-4))
    assert sum(entry.hits for entry in fn._dynfix_entry._dispatcher.entries) == 2
    x = torch.randn(3, 3).requires_grad_()
    found, expected = (torch.autograd.grad(f(x).sum(), x)[0] for f in (fn, ASKING[name]))
    torch.testing.assert_close(found, expected)


def filled(x, token):
    return (x * 2).index_fill(1, PLACES, token) + 1


def put_under_a_mask(x, values):
    return (x * 2).index_put((MASK,), values).sin()


def decomposed(x, shift):
    left, values, right = torch.linalg.svd(torch.complex(x, x.mT) + shift)
    return ((left * values.sqrt()) @ right).abs() + x.sin()


PLACES = torch.tensor([0, 2])
MASK = torch.tensor([True, False, True])


@pytest.mark.parametrize(
    ("program", "shape"), [(filled, ()), (put_under_a_mask, (2, 3)), (decomposed, (3, 3))]
)
def test_what_gradients_ask_of_data_runs_between_two_graphs(program, shape):
    """Which compiling finds out: a second recording knows it."""
    torch.manual_seed(0)
    call = dynfix.compile(program)
    for _ in range(4):
        given = torch.randn(3, 3, requires_grad=True), torch.randn(shape, requires_grad=True)
        found, expected = call(*given), program(*given)
        torch.testing.assert_close(found, expected)
        ours, theirs = (torch.autograd.grad(each.sum(), given) for each in (found, expected))
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)
    assert sum(entry.hits for entry in call._dynfix_entry._dispatcher.entries) == 2


def test_a_gradient_that_there_is_none_of_is_an_error_when_it_is_asked_for():
    def program(x):
        return torch.special.i1(x * 2) + 1

    call = dynfix.compile(program)
    for _ in range(4):
        x = torch.randn(3, dtype=torch.bfloat16, requires_grad=True)
        made = call(x)
        torch.testing.assert_close(made, program(x))
        with pytest.raises(NotImplementedError, match="i1_backward"):
            made.sum().backward()
    assert sum(entry.hits for entry in call._dynfix_entry._dispatcher.entries) == 2


def test_an_operator_that_torch_has_no_shape_for_is_not_run_on_zeros(monkeypatch):
    """As torch before 2.13 does with what `index_fill`'s gradient asks."""
    unique = torch.ops.aten._unique.default
    on_zeros = lambda mode, operator, *args, **kwargs: (  # noqa: E731
        run_fallback_kernel(mode, operator, *tree_flatten((args, kwargs)), None)
    )
    monkeypatch.setitem(fake_impls.op_implementations_dict, unique, on_zeros)
    monkeypatch.setattr(fake_tensor_mode, "UNTAGGED", {unique})
    test_what_gradients_ask_of_data_runs_between_two_graphs(filled, ())


def test_a_backward_whose_operator_gives_another_shape_than_it_said_runs_in_eager():
    def program(x):
        return counting(x * 2).sin()

    diagnostics.reset()
    call = dynfix.compile(program)
    for n in range(3):
        x = torch.arange(4.0, requires_grad=True)
        with pytest.warns(UserWarning, match="a backward runs in eager") if n == 1 else nothing():
            found = torch.autograd.grad(call(x), x, torch.arange(4.0) % (2 + n))
        expected = torch.autograd.grad(program(x), x, torch.arange(4.0) % (2 + n))
        torch.testing.assert_close(found, expected)


def test_a_backward_does_not_run_in_eager_on_what_was_written_since():
    call = dynfix.compile(lambda x: counting(x * 2).sin())
    for n in range(3):
        x = torch.arange(4.0).requires_grad_()
        result = call(x)
        with torch.no_grad():
            x.add_(1)
        with pytest.raises(RuntimeError, match="was written before") if n else nothing():
            result.sum().backward()


def test_an_operator_that_gives_another_shape_than_it_said_runs_between_two_graphs():
    diagnostics.reset()
    call = dynfix.compile(lambda x: distinct(x) * 2)
    for n in range(4):
        with pytest.warns(UserWarning, match="fake form says") if n == 0 else nothing():
            found = call(torch.arange(4.0) % 3)
        torch.testing.assert_close(found, torch.tensor([0.0, 2.0, 4.0]))
    assert sum(entry.hits for entry in call._dynfix_entry._dispatcher.entries) == 2


def test_a_graph_that_fails_where_eager_does_not_is_given_up(monkeypatch):
    diagnostics.reset()
    tried = []

    def failing(*args):
        tried.append(args)
        raise NotImplementedError("no kernel")

    call, x = dynfix.compile(lambda x: x.sin() * 2), torch.randn(3)
    call(x), call(x)
    (entry,) = call._dynfix_entry._dispatcher.entries
    monkeypatch.setattr(entry, "_program", failing)
    for turn in range(8):
        with pytest.warns(UserWarning, match="no kernel") if turn == 3 else nothing():
            torch.testing.assert_close(call(x), x.sin() * 2)
    assert len(tried) == 4


def test_errors_of_the_users_are_raised_at_every_call():
    call = dynfix.compile(lambda x, at: x[at] * 2)
    call(torch.randn(3), torch.tensor([1, 2]))
    for _ in range(8):
        with pytest.raises(IndexError):
            call(torch.randn(3), torch.tensor([1, 9]))
    assert not call._dynfix_entry._dispatcher.entries[0].stays_eager


def _floored(x):
    y = x.sin() * 2
    return (y * 3).cos(), y // 2


def _of_prims(x):
    y = x.sin() * 2
    return (y * 3).cos(), torch.ops.prims.exp(y)


def _scattered(x):
    y = x.sin().scatter(1, torch.zeros(1, 1, dtype=torch.int64), x * 2)  # more than the places
    return x.cos() * 2, y * 2


@pytest.mark.parametrize("program", [_floored, _of_prims, _scattered])
def test_what_has_no_gradient_fails_where_that_is_asked_for(program):
    steps = [(torch.randn(3, 3).requires_grad_(),) for _ in range(3)]
    fn = same(lambda: program, *steps, backend="native", tolerance=(1e-5, 1e-6))
    assert sum(entry.hits for entry in fn._dynfix_entry._dispatcher.entries) > 0
    x = torch.randn(3, 3).requires_grad_()
    found, expected = (torch.autograd.grad(f(x)[0].sum(), x)[0] for f in (fn, program))
    torch.testing.assert_close(found, expected)
    with pytest.raises(RuntimeError, match=r"not implemented|no autograd formula|invalid gradient"):
        torch.autograd.grad(fn(x)[1].sum(), x)


def test_an_overload_is_read_for_the_first_time():
    def program(x):
        return torch.ops.dynfix_tests.first_read.default(x) + 1

    with torch.library._scoped_library("dynfix_tests", "FRAGMENT") as library:
        library.define("first_read(Tensor x) -> Tensor")
        library.impl("first_read", lambda x: x.sin(), "CompositeExplicitAutograd")
        library.impl("first_read", torch.empty_like, "Meta")
        compiled = dynfix.compile(program, fullgraph=True)
        for value in (1.0, 2.0, 3.0):
            x = torch.full((3,), value)
            torch.testing.assert_close(compiled(x), x.sin() + 1)


WITHOUT_DERIVATIVE = {
    "unique": lambda x: torch.unique(x).max(),
    "unique of rows": lambda x: x[None].unique(dim=0, return_inverse=True)[0].sum(),
    "unique_consecutive": lambda x: torch.unique_consecutive(x).add_(1).sum(),
    "zeta": lambda x: torch.special.zeta(x.abs() + 2, x.abs() + 1).sum(),
    "igamma": lambda x: torch.igamma(x.abs() + 1, x.abs() + 1).sum(),
}


@pytest.mark.parametrize("name", WITHOUT_DERIVATIVE)
def test_what_has_no_derivative_refuses_gradients_that_arrive_alone(name):
    def f(x):
        count = WITHOUT_DERIVATIVE[name](x.sigmoid())
        return x * 2, count * 1.5

    compiled = dynfix.compile(f)
    for turn in range(4):
        torch.manual_seed(turn)
        x = torch.randn(6, requires_grad=True)
        for call in (compiled, f):
            doubled, count = call(x)
            assert count.requires_grad
            (found,) = torch.autograd.grad(doubled.sum(), x, retain_graph=True)
            assert torch.equal(found, torch.full((6,), 2.0))
            with pytest.raises(NotImplementedError, match="is not implemented"):
                count.backward()
        torch.testing.assert_close(compiled(x), f(x))
