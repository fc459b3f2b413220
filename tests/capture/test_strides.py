"""Strides in the guards: one that moves no element is left open, one that was read or tells a
memory format is not."""

import dynfix
import pytest
import torch


def windows(base):
    return [base[:, -3:] for base in (torch.cat([base] * n, 1) for n in (1, 2, 3, 4))]


@pytest.mark.parametrize("backend", ["eager", "native"])
def test_windows_of_a_growing_sequence_are_one_recording(backend):
    compiled = dynfix.compile(lambda x: (x * 2).sum(1), backend=backend)
    for window in windows(torch.arange(5.0)[None]):
        torch.testing.assert_close(compiled(window), (window * 2).sum(1))
    assert len(compiled._dynfix_entry.recordings) == 1


def test_a_stride_that_was_read_is_guarded():
    compiled = dynfix.compile(lambda x: x * x.stride(0), backend="eager")
    for window in windows(torch.arange(5.0)[None]):
        torch.testing.assert_close(compiled(window), window * window.stride(0))


def test_other_strides_are_guarded():
    compiled = dynfix.compile(lambda x: x + 1, backend="native")
    for given in (torch.ones(2, 3), torch.ones(3, 2).t(), torch.ones(2, 6)[:, ::2]):
        found, expected = compiled(given), given + 1
        torch.testing.assert_close(found, expected)
        assert found.stride() == expected.stride()


def square(x):
    return torch.ones_like(x, memory_format=torch.contiguous_format)


WRITES = {
    "tril_": lambda v, x: v.tril_(),
    "masked_fill_": lambda v, x: v.masked_fill_(x > 0, 1.0),
    "masked_scatter_": lambda v, x: v.masked_scatter_(x > 0, square(x)),
    "index_add_": lambda v, x: v.index_add_(0, torch.tensor([0, 2]), square(x)[:2]),
    "index_copy_": lambda v, x: v.index_copy_(1, torch.tensor([0, 2]), square(x)[:, :2]),
    "scatter_": lambda v, x: v.scatter_(0, (x > 0).long(), 3.0),
    "scatter_reduce_": lambda v, x: v.scatter_reduce_(0, (x > 0).long(), square(x), "amax"),
    "cumsum_": lambda v, x: v.cumsum_(0),
    "addmm_": lambda v, x: v.addmm_(square(x), square(x)),
    "out": lambda v, x: torch.sub(square(x), 1, out=v),
    "out of another type": lambda v, x: torch.sum(torch.stack([x, x / 3]).half(), 0, out=v),
    "out of a product": lambda v, x: torch.mm(square(x), square(x), out=v),
}


@pytest.mark.covering
@pytest.mark.parametrize("backend", [pytest.param("aot_eager", marks=pytest.mark.slow), "native"])
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", WRITES)
def test_a_write_in_place_keeps_the_order_of_memory(name, dynamic, backend):
    def write(x):
        v = x * 2
        part = v.t()[1:]
        WRITES[name](v, x)
        return v, part, v.t() + 1

    compiled = dynfix.compile(write, dynamic=dynamic, backend=backend)
    for size in (5, 5, 7):
        x = torch.randn(size, size).t()
        found, expected = compiled(x), write(x)
        torch.testing.assert_close(found, expected)
        assert [t.stride() for t in found] == [t.stride() for t in expected]
        found[0].zero_()
        assert not found[1].any()


def test_a_view_without_a_gradient_of_a_result_has_none():
    def views(x):
        v = x.sum()
        wide = v.expand(3)
        return wide.view(wide.dtype), v

    compiled = dynfix.compile(views)
    for _ in range(3):
        x = torch.randn(4, requires_grad=True)
        view, result = compiled(x)
        assert not view.requires_grad
        result.backward()
        assert torch.equal(x.grad, torch.ones(4))
        with torch.no_grad():
            result.mul_(2)
        assert torch.equal(view, result.detach().expand(3)) and view._version == result._version


logsigmoid = torch.nn.functional.logsigmoid


@pytest.mark.covering
@pytest.mark.parametrize(
    "fn",
    [
        lambda x: torch.nn.functional.max_pool1d(x.mT, 2),
        lambda x: torch.nn.functional.one_hot(x[0].mT.long().abs() % 5, 5),
        lambda x: torch.copysign(x[0].mT, x.sum()),
        lambda x: torch.copysign(x[0].mT, x.sum()).detach().mT,
        lambda x: torch.copysign(x[0].mT, x.sum()).as_strided((4,), (1,)) + 1,
        lambda x: (torch.copysign(x[0].mT * 2, x.sum()).exp(), x.mT, x.mT[None]),
        lambda x: (lambda y: (y, y[None], y.as_strided((3,), (1,))))(logsigmoid(x.mT)),
    ],
    ids=["max_pool1d", "one_hot", "copysign", "detached", "strided", "several", "logsigmoid"],
)
@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("dynamic", [None, True])
def test_results_lie_as_eagers_where_a_meta_function_says_otherwise(fn, grad, dynamic):
    compiled = dynfix.compile(fn, dynamic=dynamic)
    for step in range(3):
        length = 7 if dynamic is None else 7 + step
        x = torch.randn(5, length, 5, generator=torch.Generator().manual_seed(step))
        x.requires_grad_(grad)
        for one, two in zip(tensors(compiled(x)), tensors(fn(x)), strict=True):
            assert one.stride() == two.stride()
            torch.testing.assert_close(one, two)


@pytest.mark.parametrize("dynamic", [False, True])
def test_results_lie_as_eagers_that_are_views_of_what_an_operator_made(dynamic):
    def multiplied(x, y):
        return torch.einsum("bij,bjk->bik", x.neg_(), y)

    compiled = dynfix.compile(multiplied, dynamic=dynamic)
    for length in (7, 7, 9):
        x, y = torch.randn(3, 1, length), torch.randn(3, length, 5)
        found, expected = (each(x.clone().mT, y) for each in (compiled, multiplied))
        torch.testing.assert_close(found, expected, check_stride=True)


@pytest.mark.parametrize("strides", [(16, 1), (8, 2), (2, 8)])
@pytest.mark.parametrize("dynamic", [False, True])
def test_a_result_with_gaps_keeps_them(strides, dynamic):
    def fill(x):
        made = torch.empty_strided(x.shape, strides)
        made[:] = x * 2
        return made

    options = {"strict": True, "verify_ir": True}
    compiled = dynfix.compile(fill, dynamic=dynamic, options=options)
    for _ in range(3):
        x = torch.randn(4, 4)
        found, expected = compiled(x), fill(x)
        torch.testing.assert_close(found, expected)
        assert found.stride() == strides
        assert found.untyped_storage().nbytes() == expected.untyped_storage().nbytes()


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("dynamic", [False, True])
def test_a_result_with_gaps_that_a_later_graph_writes_keeps_them(grad, dynamic):
    def fn(x, y):
        made = torch.select_scatter(x, x.select(1, 0), 1, -1)
        total = y[y > 1].sum()  # another recording for each count
        made.mul_(0.5)
        return made, total

    compiled = dynfix.compile(fn, dynamic=dynamic)
    for call in range(5):
        rows = 7 + (call % 2 if dynamic else 0)
        x = torch.randn(rows, 6)[:, ::2].requires_grad_(grad)
        y = torch.arange(call, call + 4.0) / 2
        (found, _), (expected, _) = compiled(x, y), fn(x, y)
        torch.testing.assert_close(found, expected)
        assert found.stride() == expected.stride() == (6, 2)
        if grad:
            sides = (torch.autograd.grad(each.square().sum(), x)[0] for each in (found, expected))
            torch.testing.assert_close(*sides)


def tensors(result):
    return result if isinstance(result, tuple) else (result,)


def test_results_that_share_memory_go_on_sharing_it():
    def fn(x):
        y = torch.copysign(x.mT, x.sum())
        return y, y.detach(), y[0]

    compiled = dynfix.compile(fn)
    for _ in range(3):
        one, two, row = compiled(torch.randn(5, 7))
        one.zero_()
        assert not two.any() and not row.any()


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])
def test_an_input_that_is_given_another_shape(backend, grad):
    def turned(x):
        x.t_()
        return x.t(), x * 2

    compiled = dynfix.compile(turned, backend=backend)
    for size in (4, 4, 5, 3):
        given, expected = torch.randn(2, size), torch.empty(2, size)
        expected.copy_(given)
        with torch.set_grad_enabled(grad):
            torch.testing.assert_close(compiled(given), turned(expected))
        torch.testing.assert_close(given, expected, check_stride=True)


PARTS = {
    "gaps": lambda y: y[..., ::2],
    "columns": lambda y: y[:, 1:3],
    "rows": lambda y: y[1:],
    "diagonal": lambda y: y[:5].diagonal(),
}
STRIDED = {
    "from the part on": lambda y: y.as_strided((y.size(0),), (1,)),
    "from the start": lambda y: torch.as_strided(y, (3, 2), (5, 2), 1),
    "by names": lambda y: torch.as_strided(y, size=(2,), stride=(3,)),
}


@pytest.mark.covering
@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("strided", STRIDED)
@pytest.mark.parametrize("how", ["written", "written behind a break", "turned"])
def test_gradients_of_what_lies_beside_a_part_that_is_written(part, strided, how):
    """Eager's history of the write starts from the whole."""

    def program(x):
        y = x * 2
        half = PARTS[part](y)
        made = STRIDED[strided](half)
        if "break" in how:
            print(end="")
        later, written = made[1:], half if part == "rows" else y
        written.t_() if how == "turned" else written.mul_(3)
        return made.sin(), y, later.cos()

    call = dynfix.compile(program)
    for n in range(4):
        x = torch.randn(7 + 2 * (n > 1), 5, requires_grad=True)
        found, expected = (
            torch.autograd.grad([each.sum() for each in f(x)], x) for f in (call, program)
        )
        torch.testing.assert_close(found, expected)


@pytest.mark.covering
@pytest.mark.parametrize("shape", [(3, 1), (1, 3), (4, 1, 2), (1, 1), (0, 4)])
@pytest.mark.parametrize(
    "write", [lambda v: v.mul_(2), lambda v: v[..., :1].add_(1), lambda v: v.add_(1).neg_()]
)
def test_axes_of_one_element_keep_their_strides_when_a_turned_view_is_written(shape, write):
    """Torch refuses to copy between views of one memory that do not lie alike."""

    def program(x):
        y = x + 1
        turned = y.transpose(0, -1)
        write(turned)
        return y, turned, turned[0], turned.movedim(0, -1)

    call = dynfix.compile(program)
    for _ in range(3):
        x = torch.randn(shape)
        torch.testing.assert_close(call(x), program(x), check_stride=True)
