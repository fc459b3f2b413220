"""Tensors whose own elements share memory, and inputs that change their shape in place."""

import dynfix
import pytest
import torch


def check(function, *shape, gradients=False):
    compiled = dynfix.compile(function)
    for turn in range(3):
        torch.manual_seed(turn)
        ours = torch.randn(shape, requires_grad=gradients)
        theirs = ours.detach().clone().requires_grad_(gradients)
        found, expected = compiled(ours), function(theirs)
        torch.testing.assert_close(found, expected)
        assert found.stride() == expected.stride()
        torch.testing.assert_close(ours, theirs)
        if gradients:
            seed = torch.randn(expected.shape)
            found.backward(seed)
            expected.backward(seed)
            torch.testing.assert_close(ours.grad, theirs.grad)


def test_gradients_of_windows():
    check(lambda x: torch.exp(x).unfold(1, 2, 1), 3, 5, gradients=True)


def test_a_broadcast_view_is_filled():
    def fill(x):
        x.expand(2, *x.shape).fill_(3)
        return x + 1

    check(fill, 7)


def test_an_input_is_transposed_in_place():
    def turn(x):
        view = x.view_as(x)
        x.t_()
        return view

    check(turn, 3, 5)


def test_a_stretched_input_is_written_between_two_graphs():
    def fn(x, y):
        y = y * 2
        x[0].add_(1)
        return y + x.sum()

    call = dynfix.compile(fn)
    for _ in range(3):
        ours, y = torch.randn(1, 3), torch.randn(3)
        theirs = ours.clone()
        torch.testing.assert_close(call(ours.expand(2, 3), y), fn(theirs.expand(2, 3), y))
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0)
    graphs = []
    call = dynfix.compile(fn, backend=lambda gm, inputs: graphs.append(gm) or gm.forward)
    for _ in range(3):
        call(torch.randn(1, 3).expand(2, 3), torch.randn(3))
    assert len(graphs) == 2


def add_to_windows(x):
    made = torch.select_scatter(x.unfold(1, 2, 1), x[:, :-1], -1, 0)
    made.add_(1)
    return made


def fill_windows(x):
    made = torch.select_scatter(x.mT.unfold(1, 2, 1), x.mT[:, :-1], -1, 0)
    made.fill_(3)
    return made


def add_to_steps(x):
    steps = (x * 2).as_strided((3, 4), (1, 1))
    steps += 1
    return steps


def write_out(x):
    made = torch.empty_strided((3, 4), (1, 1)).fill_(0)
    torch.add(made, x[0, :4], out=made)
    return made


@pytest.mark.parametrize("write", [add_to_windows, fill_windows, add_to_steps, write_out])
def test_each_element_that_shares_its_place_is_written(write):
    check(write, 4, 6)


def test_an_input_with_steps_that_overlap_is_written():
    def fn(x):
        x[0].add_(1)
        return x * 2

    call = dynfix.compile(fn)
    for turn in range(3):
        made = [torch.arange(6.0).add_(turn).as_strided((3, 4), (1, 1)) for _ in range(2)]
        torch.testing.assert_close(call(made[0]), fn(made[1]))
        torch.testing.assert_close(made[0], made[1])


def twice(x):
    torch._foreach_mul_([x, x], 0.5)
    return x


def one_after_the_other(x):
    y = x + 1
    torch._foreach_add_([x, y], [y, x])
    return x, y


def parts(x):
    torch._foreach_mul_([x[:2], x[2:]], [x[:2], x[2:]])
    return x


@pytest.mark.parametrize("write, whole", [(twice, 0), (one_after_the_other, 0), (parts, 1)])
def test_lists_whose_tensors_are_written_one_after_the_other(write, whole):
    call = dynfix.compile(write)
    for turn in range(4):
        given = [torch.arange(8.0).view(4, 2) + turn for _ in "ab"]
        torch.testing.assert_close(call(given[0]), write(given[1]))
        torch.testing.assert_close(*given)
    assert bool(call._dynfix_entry._dispatcher.entries) == bool(whole)


@pytest.mark.filterwarnings("ignore:An output with one or more elements was resized")
def test_a_result_that_gets_another_shape():
    def fn(x, y):
        torch.sum(y, 0, out=x)
        return x * 2

    call = dynfix.compile(fn)
    for _ in range(3):
        y, given = torch.randn(3, 4), [torch.ones(3, 4) for _ in "ab"]
        torch.testing.assert_close(call(given[0], y), fn(given[1], y))
        torch.testing.assert_close(*given)


def test_a_list_is_written_behind_a_break_that_holds_a_view():
    def fn(x):
        whole = x + 1
        part = whole[::3]
        dynfix.graph_break()
        torch._foreach_mul_([part], 0.5)
        return whole * 2

    call = dynfix.compile(fn)
    for turn in range(4):
        x = torch.full((4, 2), float(turn))
        torch.testing.assert_close(call(x), fn(x))


def test_an_empty_part_that_gets_another_shape():
    def fn(x, y):
        part = x[1:-1]
        torch.div(y, 2, out=part)
        fresh = torch.empty(0)
        torch.mul(y, 2, out=fresh)
        return part, fresh

    call = dynfix.compile(fn)
    for _ in range(3):
        x, y = torch.randn(1, 7), torch.randn(7, 7)
        torch.testing.assert_close(call(x.clone(), y), fn(x.clone(), y))


def kept(found):
    return found.ravel(), found.detach(), found.unsqueeze_(0)[0]


def turned(found):
    found.unsqueeze_(0).t_()
    return found.mT.squeeze(0), found.t()


@pytest.mark.parametrize("views", [kept, turned])
def test_views_from_behind_a_break_keep_their_shape(views):
    """The second graph is given what `unique` made, gives it another shape, and returns views that
    lie as that lay before."""

    def fn(x):
        return views(torch.unique(x))

    compiled = dynfix.compile(fn)
    for turn in range(3):
        x = torch.arange(5) + turn
        torch.testing.assert_close(compiled(x), fn(x), check_stride=True)
    assert any(entry.hits for entry in compiled._dynfix_entry._dispatcher.entries)


@pytest.mark.parametrize("rows", [3, 5])
def test_views_of_what_was_turned_in_place(rows):
    def rows_of(x):
        y = x * 2
        y.t_()
        return y[0], y[1]

    def whole(x):
        y = x * 2
        y.unsqueeze_(0)
        y.transpose_(0, 1)
        return y, y.mT, y.detach()

    for fn in (rows_of, whole):
        compiled = dynfix.compile(fn)
        for _ in range(3):
            x = torch.randn(rows, 5, requires_grad=True)
            seeds = [torch.randn(y.shape) for y in fn(x)[:2]]
            found, expected = compiled(x), fn(x)
            torch.testing.assert_close(found, expected, check_stride=True)
            (ours,), (theirs,) = (
                torch.autograd.grad(made[:2], x, seeds) for made in (found, expected)
            )
            torch.testing.assert_close(ours, theirs)
        assert any(entry.hits for entry in compiled._dynfix_entry._dispatcher.entries)


@pytest.mark.parametrize("backend", ["native", "aot_eager"])
def test_a_write_through_a_view_of_a_view_that_was_turned_in_place(backend):
    def fn(x):
        turned = (x * 2).view(3, 3)
        turned.t_()
        kept = turned[None].transpose(0, -1)
        kept[..., ::2].mul_(3)
        return kept

    compiled = dynfix.compile(fn, backend=backend)
    for _ in range(3):
        x, seed = torch.randn(3, 3, requires_grad=True), torch.randn(3, 3, 1)
        (ours,), (theirs,) = (torch.autograd.grad(made(x), x, seed) for made in (compiled, fn))
        torch.testing.assert_close(ours, theirs)
