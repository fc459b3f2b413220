"""Writes through views that functionalisation gives back by arithmetic."""

import dynfix
import pytest
import torch
from torch.utils.checkpoint import checkpoint


def expand_as(x):
    return x.expand_as(x)


def broadcast(x):
    return torch.broadcast_to(x, x.shape)


def together(x):
    return torch.broadcast_tensors(x, x[0])[0]


@pytest.mark.covering
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("view", [expand_as, broadcast, together])
@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.bfloat16, torch.float32])
def test_what_stretches_nothing_is_written_as_it_is(view, dtype, dynamic):
    def fn(x):
        y = view(x)
        y[1:] = ~y[1:] if dtype == torch.bool else y[1:] * 3
        if dtype.is_floating_point:
            y.exp_()
        return y.sum()

    call = dynfix.compile(fn, dynamic=dynamic)
    for rows in (3, 7, 7, 5):
        x = (torch.rand(rows, 4) * 9).to(dtype)
        x[0, 0] = 0
        other = x.clone()
        torch.testing.assert_close(call(x), fn(other))
        torch.testing.assert_close(x, other)


def test_gradients_of_stretched_results():
    def fn(x):
        return torch.msort(x).expand(3, *x.shape)

    call = dynfix.compile(fn)
    for _ in range(3):
        x, seed = torch.randn(4, 5, requires_grad=True), torch.randn(3, 4, 5)
        (found,), (expected,) = (torch.autograd.grad(f(x), x, seed) for f in (call, fn))
        torch.testing.assert_close(found, expected)


def _of_a_reshaped_product(x):
    return torch.broadcast_to(torch.tensordot(x, x, 1), (2, 5, 5))


def _one_of_several(x):
    return torch.broadcast_tensors(torch.tensordot(x, x, 1), torch.zeros(2, 5, 5))[0]


@pytest.mark.parametrize("stretched", [_of_a_reshaped_product, _one_of_several])
def test_a_stretched_result_that_is_written_behind_a_break_is_differentiated(stretched):
    """Though what it is a view of never was a tensor of the program's."""

    def fn(x):
        y = stretched(x)
        y[1:] = 3
        return y + x

    call = dynfix.compile(fn)
    for _ in range(5):
        x, seed = torch.randn(5, 5, requires_grad=True), torch.randn(2, 5, 5)
        (found,), (expected,) = (torch.autograd.grad(f(x), x, seed) for f in (call, fn))
        torch.testing.assert_close(found, expected)


def test_windows_that_are_written_behind_a_break_are_differentiated():
    """As views of what they are windows of: eager adds up what comes to one place."""

    def fn(x):
        windows = (x * 2).unfold(0, 2, 1)
        windows.cumsum_(0)
        return windows

    call = dynfix.compile(fn, dynamic=False)
    for _ in range(5):
        x, seed = torch.randn(7, 3, requires_grad=True), torch.randn(6, 3, 2)
        (found,), (expected,) = (torch.autograd.grad(f(x), x, seed) for f in (call, fn))
        torch.testing.assert_close(found, expected)


def _row_of_several(y):
    y.expand(3, *y.shape)[1].fill_(2)


def _part_of_several(y):
    torch.broadcast_to(y[:1], (5, 7))[2:3].mul_(2)


def _column_of_one(y):
    y[:, :1].expand(5, 7)[:, 3].add_(2)


def _more_axes(y):
    y.expand(1, 1, *y.shape)[0, 0, 1:].fill_(2)


def _window(y):
    y.unfold(0, 2, 1)[1].fill_(2)


def _windows_with_gaps(y):
    y.unfold(1, 2, 3).add_(2)


def _a_part_that_is_no_view(y):
    y.unsafe_chunk(2, 1)[0][1:].mul_(2)


def _named_behind_what_it_is_a_view_of(y):
    torch.add(y, 1, out=y.expand(2, 5, 7)[1])


WRITES = (
    *(_row_of_several, _part_of_several, _column_of_one, _more_axes, _window),
    _named_behind_what_it_is_a_view_of,
)


@pytest.mark.parametrize("made_here", [False, True])
@pytest.mark.parametrize("write", [*WRITES, _windows_with_gaps, _a_part_that_is_no_view])
def test_writes_of_which_functionalisation_makes_something_else(write, made_here):
    """What was written comes as it is, whatever stood there; the rest stays."""

    def function(x):
        y = x * 1 if made_here else x
        write(y)
        return y * 2

    call = dynfix.compile(function)
    for seed in range(4):
        x = torch.randn(5, 7, generator=torch.Generator().manual_seed(seed))
        x[0, 0], x[1, 1], x[0, 3], x[2, 0] = float("inf"), 1e10, 1e-10, float("nan")
        other = x.clone()
        torch.testing.assert_close(call(x), function(other), rtol=0, atol=0, equal_nan=True)
        torch.testing.assert_close(x, other, rtol=0, atol=0, equal_nan=True)


def _one_axis(x):
    y = x[..., ::2]
    y.squeeze_(0)
    x.tril_()
    return y + 1


def _axes_of_one(x):
    y = x.clone()[None, :, None]
    y.squeeze_((0, 2))
    y.tril_()
    return y


@pytest.mark.parametrize("function", [_one_axis, _axes_of_one])
def test_axes_that_are_dropped_in_place_of_sizes_that_change(function):
    call = dynfix.compile(function)
    for n in (5, 6, 7, 1):
        x = torch.randn(n, 2 * n)[:, :n]
        given, other = x.clone(), x.clone()
        got, want = call(given), function(other)
        assert got.stride() == want.stride()
        torch.testing.assert_close((got, given), (want, other))


LISTS = {
    "numbers": lambda v, w: torch._foreach_mul_([v], 3),
    "lists": lambda v, w: torch._foreach_add_([v], [w], alpha=2),
    "by name": lambda v, w: torch._foreach_add_(self=[v], scalar=2),
    "itself": lambda v, w: torch._foreach_add_([v], [v]),
    "saved": lambda v, w: torch._foreach_tanh_([v]),
    "bounds": lambda v, w: torch._foreach_clamp_min_((v,), -0.5),
    "zeros": lambda v, w: torch._foreach_zero_([v, w.detach().clone()]),
    "no gradients": lambda v, w: torch.no_grad()(torch._foreach_mul_)([v], 3),
}


@pytest.mark.covering
@pytest.mark.parametrize("backend", ["native", "aot_eager"])
@pytest.mark.parametrize("write", LISTS)
@pytest.mark.parametrize("which", ["whole", "view"])
def test_lists_that_are_written_have_the_write_in_their_history(write, which, backend):
    """Torch does not count such writes below AOTAutograd's modes."""

    def fn(x, w):
        y = x * 2
        view = y.t()
        LISTS[write](y if which == "whole" else view, w if which == "whole" else w.t())
        return view + 1, y.sin(), view[1:]

    call = dynfix.compile(fn, backend=backend)
    for _ in range(3):
        x, w = (torch.randn(3, 4, requires_grad=True) for _ in range(2))
        for one, two in zip(call(x, w), fn(x, w), strict=True):
            torch.testing.assert_close(one, two)
            given = one.sum(), two.sum()
            ours, theirs = (
                torch.autograd.grad(s, (x, w), retain_graph=True, allow_unused=True) for s in given
            )
            torch.testing.assert_close(ours, theirs)


def test_a_list_that_is_written_inside_of_a_checkpoint():
    """The backward runs the checkpoint's function again, which saves what it saved at first."""

    def part(x):
        y = x * 2
        view = y.t()
        torch._foreach_mul_([y], 3)
        return view.sin()

    def fn(x):
        return checkpoint(part, x + 1, use_reentrant=False)

    call = dynfix.compile(fn)
    for _ in range(3):
        x = torch.randn(3, 4, requires_grad=True)
        ours, theirs = (torch.autograd.grad(f(x).sum(), x) for f in (call, fn))
        torch.testing.assert_close(ours, theirs)


def test_what_is_written_beside_what_has_a_history_gets_none():
    def fn(x, w):
        y, z = x * 2, w + 1
        torch._foreach_mul_([y, w, z], 3)
        return y, w, z

    call = dynfix.compile(fn)
    for _ in range(3):
        x, w = torch.randn(3, requires_grad=True), torch.randn(4)
        given = w.clone()
        found, expected = call(x, given), fn(x, w)
        torch.testing.assert_close((*found, given), (*expected, w))
        assert [one.requires_grad for one in (*found, given)] == [True, False, False, False]


def test_a_list_that_is_written_and_has_no_derivative():
    call = dynfix.compile(lambda x, w: torch._foreach_copy_([x * 2], [w])[0] + 1)
    for _ in range(3):
        x, w = torch.randn(3, requires_grad=True), torch.randn(3)
        with pytest.raises(RuntimeError, match="derivative for _foreach_copy_"):
            call(x, w).sum().backward()
