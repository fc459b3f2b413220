"""Tensors that a call gives another shape in place: a view in the graph, and an input itself at the
end of the call."""

import dynfix
import pytest
import torch
from helpers import Case, Fresh, X, Y, one_graph, same

M = torch.arange(6.0).view(2, 3)
SAME_SIZES = [(M,), (M + 1,), (M * 2,)]
SIZES = [(torch.arange(2.0 * n).view(2, n),) for n in (3, 4, 5, 6, 3)]


def transposed(x):
    y = x + 1
    x.transpose_(0, 1)
    return x @ y, x, x.shape, x.stride()


def there_and_back(x):
    x.unsqueeze_(0)
    x.add_(1)
    x.squeeze_(0)
    z = x.t_()
    return z is x, z, x[0]


def views_from_before(x):
    row = x[0]
    x.t_()
    row.mul_(3)
    x[0] = 7
    return row, x, x.sum(0)


def kept(x):
    x.swapaxes_(0, 1)
    x.transpose_(-1, dim1=-2)
    held = [x, x.t()]
    print(x.shape)
    return held, {"x": x}


def written_before(x):
    x.add_(1)
    x.unsqueeze_(-1)
    return x * x.sum().item(), x.view(-1)


def seen_by_its_sizes(x):
    x.unsqueeze_(dim=0)
    y = x.view(-1, x.shape[-1]) + x.shape[2]
    x.add_(1)
    return y, x.size(), x


@pytest.mark.covering
@pytest.mark.parametrize("backend", ["eager", "native"])
@pytest.mark.parametrize(
    "program",
    [transposed, there_and_back, views_from_before, kept, written_before, seen_by_its_sizes],
)
def test_one_graph(program, backend):
    tolerance = None if backend == "eager" else (1e-6, 1e-6)
    one_graph(same(lambda: program, *SAME_SIZES, backend=backend, tolerance=tolerance), 1)
    one_graph(same(lambda: program, *SIZES, backend=backend, tolerance=tolerance))


def test_an_axis_that_is_not_there():
    def f(x):
        try:
            x.transpose_(0, 5)
        except IndexError:
            x.unsqueeze_(1)
        return x * 2

    same(lambda: f, *SAME_SIZES)


def test_behind_a_break():
    def f(x):
        x.t_()
        y = x * 2
        if x.sum() > 20:
            y = y.exp().clone()
            x[0] += 1
        x.mul_(2)
        return y, x

    same(lambda: f, *SAME_SIZES, (M * 4,), (M,))
    same(lambda: f, *SAME_SIZES, (M * 4,), (M,), backend="native", tolerance=(1e-6, 1e-6))


def test_a_buffer():
    def make():
        module = torch.nn.Module()
        module.register_buffer("kept", M.clone())

        def f(x):
            module.kept.t_()
            module.kept += 1
            return module.kept.sum() * x, module.kept

        return Case(fn=f, watch=lambda: module.kept)

    same(make, *[(X,), (Y,)] * 3)


def _with_a_row():
    whole = torch.arange(6.0).view(2, 3)
    return [whole, whole[0]]


@pytest.mark.parametrize(
    "argument",
    [
        Fresh(_with_a_row),
        Fresh(lambda: [torch.arange(3.0)[:, None].expand(3, 2), torch.ones(3)]),
        Fresh(lambda: [torch.arange(6.0).view(2, 3).requires_grad_(), torch.ones(3)]),
        Fresh(lambda: [torch.arange(6.0).view(2, 3), torch.ones(3)]),
    ],
    ids=["shared memory", "shared elements", "a leaf", "plain"],
)
def test_what_else_there_is(argument):
    def f(given):
        whole, row = given
        row.add_(1)
        whole.t_()
        row.mul_(2)
        return whole * 2, row

    same(lambda: f, *[(argument,)] * 4)


@pytest.mark.parametrize("name", ["t_", "unsqueeze_"])
def test_an_error_behind_the_change(name):
    """torch refuses tensors of inference mode when it has given them the other shape."""

    def f(x):
        getattr(x, name)(*[0] * (name == "unsqueeze_"))
        return x * 2

    compiled = dynfix.compile(f)
    for _ in range(3):
        with torch.inference_mode():
            given, other = torch.ones(2, 3), torch.ones(2, 3)
        for each, x in ((f, given), (compiled, other)):
            with pytest.raises(RuntimeError, match="inference tensor"):
                each(x)
        assert other.shape == given.shape


def test_a_backward_that_needs_what_was_given_another_shape():
    def fn(x, y):
        x.transpose_(0, 1)
        return torch.logaddexp(x, y)

    call = dynfix.compile(fn)
    for _ in range(6):
        x, y = torch.randn(1, 7), torch.randn(1, 7, requires_grad=True)
        x2, y2 = x.clone(), y.detach().clone().requires_grad_()
        call(x, y).sum().backward()
        fn(x2, y2).sum().backward()
        assert x.shape == x2.shape and x._version == x2._version
        torch.testing.assert_close(y.grad, y2.grad)


@pytest.mark.parametrize("backend", ["eager", "native"])
def test_a_view_that_is_reshaped_raises_the_version(backend):
    def f(x):
        view = x[None]
        view.squeeze_()
        return x + 1, view * 2

    compiled = dynfix.compile(f, backend=backend, fullgraph=True)
    for given in (M, M + 1, M * 2):
        x, y = given.clone(), given.clone()
        torch.testing.assert_close(compiled(x), f(y))
        assert x._version == y._version == 1


def test_a_backward_that_needs_an_input_of_which_a_view_is_reshaped():
    def f(x, y):
        view = x[None]
        view.squeeze_()
        return x * y

    call = dynfix.compile(f, fullgraph=True)
    for _ in range(4):
        x, y = torch.randn(7), torch.randn(7, requires_grad=True)
        call(x, y).sum().backward()
        assert torch.equal(y.grad, x)


def part_is_written(y):
    part = y[:2]
    y.t_()
    part.mul_(3)
    return part, y


def whole_is_written(y):
    part = y[:2]
    y.t_()
    y.add_(1)
    return part, y


def reshaped_again(y):
    part = y[:2]
    y.t_()
    y.unsqueeze_(0)
    last = y[0]
    y.squeeze_(0)
    return part, y, last


@pytest.mark.covering
@pytest.mark.parametrize("program", [part_is_written, whole_is_written, reshaped_again])
@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.parametrize("rows", [0, 3])
def test_views_of_what_is_reshaped_keep_their_shape(program, grad, rows):
    def f(x, other):
        other.clamp_(-1, 1)
        return program(x * 2)

    call = dynfix.compile(f, fullgraph=True)
    for _ in range(4):
        x = torch.randn(rows, 4, requires_grad=grad)
        found, expected = call(x, torch.randn(3)), f(x, torch.randn(3))
        torch.testing.assert_close(found, expected)
        if rows:
            assert [each.stride() for each in found] == [each.stride() for each in expected]
        if grad:
            sums = [sum(each.sum() for each in results) for results in (found, expected)]
            ours, theirs = (torch.autograd.grad(each, x) for each in sums)
            torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("seen", [torch.ravel, torch.Tensor.detach, lambda out: out[:, :0]])
def test_what_shares_memory_with_an_empty_result_that_an_out_gives_another_shape(seen):
    def program(x):
        out = x[:, :0] * 2
        other = seen(out)
        torch.div(x, 2, out=out)
        return other, out

    same(lambda: program, (M,), (M + 1,), (M * 2,), (M * 3,))


def test_an_empty_result_that_an_out_gives_another_shape_is_in_the_graph():
    one_graph(same(lambda: lambda x: torch.div(x, 2, out=x[:, :0] * 2), *SAME_SIZES), 1)


def test_a_view_as_another_type_of_what_gets_another_shape_behind_a_break():
    def program(x, limits):
        places = torch.bucketize(x, limits)
        torch.cov(x)
        places.unsqueeze_(0)
        return places.view(torch.float64)[..., ::2]

    call, x, limits = dynfix.compile(program), torch.randn(3, requires_grad=True), torch.arange(4.0)
    for _ in range(4):
        found, expected = call(x, limits), program(x, limits)
        assert found.dtype == expected.dtype and torch.equal(found, expected)


def between_two_graphs(x, choice):
    x.add_(1)
    x.t_()
    made = x * 2
    return made + 1 if choice.sum() > 0 else (made - 1).exp()


def what_the_call_makes(x, choice):
    pairs = torch.combinations(x.flatten())
    pairs.transpose_(0, -1)
    return x * 2, torch.nonzero(choice > 0)


@pytest.mark.parametrize("program", [between_two_graphs, what_the_call_makes])
def test_a_call_that_another_recording_serves(program):
    compiled = dynfix.compile(program, dynamic=False)
    for turn in range(8):
        torch.manual_seed(turn)
        choice = torch.randn(3)
        mine, theirs = M.clone(), M.clone()
        found, expected = compiled(mine, choice), program(theirs, choice)
        torch.testing.assert_close((found, mine), (expected, theirs), check_stride=True)


def _part_of_a_turned_input(x):
    part = x[0]
    torch.unique(x)
    x.t_()
    part += 1
    return x * 1


def _part_of_an_input_without_lone_axes(x):
    part = x.unbind(0)[0]
    torch.unique(x)
    x.squeeze_()
    part[[0, -1]] += 1
    return x * 1


def _two_names_of_one_memory(x):
    made = x * 1
    flat = made.view(-1)
    torch.unique(x)
    turned = flat.view(4, 3)
    made.t_()
    made.add_(1)
    return turned


def _part_of_what_nobody_holds(x):
    made = x * 1
    flat = made.view(-1)
    torch.unique(x)
    part = flat.chunk(3)[1]
    del flat
    made.add_(1)
    return part


CUT = (
    *(_part_of_a_turned_input, _part_of_an_input_without_lone_axes),
    *(_two_names_of_one_memory, _part_of_what_nobody_holds),
)


@pytest.mark.parametrize("program", CUT)
def test_a_write_behind_a_break_reaches_all_that_share_the_memory(program):
    """One of them came over the break itself, another one is made of what came over it."""
    compiled = dynfix.compile(program)
    for seed in range(4):
        x = torch.randn(3, 4, generator=torch.Generator().manual_seed(seed))
        y = x.clone()
        assert torch.equal(compiled(x), program(y)) and torch.equal(x, y)
