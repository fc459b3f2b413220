"""Shapes and strides where torch's rules for tensors without data differ from eager's kernels."""

import dynfix
import pytest
import torch
from torch.nn import functional as F

CALLS = 3


def outcome(function, *args):
    args = [arg.detach().clone().requires_grad_(arg.requires_grad) for arg in args]
    result = function(*args)
    wanted = [arg for arg in args if arg.requires_grad]
    seed = torch.ones(result.shape, dtype=result.dtype)
    grads = torch.autograd.grad(result, wanted, seed) if wanted else ()
    return [result, *grads]


def check(function, calls, dynamic=None):
    compiled = dynfix.compile(function, dynamic=dynamic)
    for args in calls:
        for one, two in zip(outcome(compiled, *args), outcome(function, *args), strict=True):
            assert (one.shape, one.stride()) == (two.shape, two.stride())
            torch.testing.assert_close(one, two)
    assert any(entry.hits for entry in compiled._dynfix_entry._dispatcher.entries)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_a_repeated_number_leaves_the_order_to_the_other_operand(dtype):
    def scaled(x, y):
        return (x * y.t()).sum() + (y.sum().expand(5, 4).t() * x).sum()

    def product(x, y):
        return x.sum().expand(5, 4) * y.t()

    made = [[torch.randn(4, 5, dtype=dtype, requires_grad=True) for _ in "ab"] for _ in "123"]
    check(scaled, [(x, y.detach().t().clone().requires_grad_()) for x, y in made])
    check(product, made)


def test_a_repeated_number_that_is_converted_is_written_out_in_rows():
    def product(x, y):
        return (x.sum().expand(5, 4) * y.t()).view(-1)

    check(product, [(torch.arange(4), torch.randn(4, 5)) for _ in range(CALLS)])


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_cut_lies_in_the_order_of_what_is_cut(dynamic):
    def padded(x):  # whose gradient is cut
        return F.pad(x, (0, 0, 0, 10 - x.shape[1])).transpose(1, 2).contiguous()

    def cut(x):
        return F.pad(x.transpose(1, 2), (0, 0, 0, 4 - x.shape[2])).transpose(1, 2).view(-1)

    sizes = (6, 7, 9) if dynamic else (6, 6, 6)
    for function in (padded, cut):
        check(function, [(torch.randn(3, n, n, requires_grad=True),) for n in sizes], dynamic)


def test_images_without_elements_are_not_unshuffled():
    def unshuffled(x):
        return F.pixel_unshuffle(x[:, :, :0], 2) + x.mean()

    check(unshuffled, [(torch.randn(1, 1, 4, 2),) for _ in range(CALLS)])


@pytest.mark.parametrize("dynamic", [False, None, True])
def test_gradients_come_in_the_order_of_those_that_are_given(dynamic):
    """Of every size: one order is found out once."""
    programs = [
        lambda x: x * 3,
        lambda x: (x.transpose(0, 1) * 2).to(torch.float64),
        lambda x: torch.fft.rfft(x).real,
    ]
    sizes = ((3, 4), (5, 6), (7, 4), (6, 9), (3, 4)) if dynamic is not False else ((3, 4),) * 3
    for program in programs:
        compiled = dynfix.compile(program, dynamic=dynamic)
        for size in sizes:
            x = torch.randn(size, requires_grad=True)
            one, two = compiled(x), program(x)
            for seed in (torch.randn(two.shape), torch.randn(two.shape[::-1]).t()):
                grads = [
                    torch.autograd.grad(each, x, seed.to(each.dtype), retain_graph=True)[0]
                    for each in (one, two)
                ]
                assert grads[0].stride() == grads[1].stride()
                torch.testing.assert_close(*grads)


def test_gradients_of_complex_numbers_real_parts_keep_their_gaps():
    def program(x):
        return x.to(torch.complex64, memory_format=torch.channels_last)

    compiled = dynfix.compile(program)
    for _ in range(CALLS):
        x = torch.randn(2, 3, 2, 3, requires_grad=True)
        seed = torch.randn(2, 3, 2, 3, dtype=torch.complex64)
        found, expected = (torch.autograd.grad(f(x), x, seed)[0] for f in (compiled, program))
        assert found.stride() == expected.stride()
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("rows", [3, 5, 33])
def test_a_cut_of_what_eager_lays_out_otherwise(rows):
    """Torch's meta function has batch norm keep its operand's order; eager's kernel does not."""

    def fn(x):
        return F.batch_norm(x, None, None, training=True).swapaxes(0, -1).narrow(0, 0, 1)

    call = dynfix.compile(fn)
    for _ in range(3):
        x = torch.rand(3, rows, 3).mT
        found, expected = call(x), fn(x)
        assert found.stride() == expected.stride()
        torch.testing.assert_close(found, expected)


def cut_of_batch_norm(x):
    made = F.batch_norm(x, None, None, training=True)
    return made, made[1:]


def written_logaddexp(x):
    made = torch.logaddexp(torch.ones(1), x)
    return made.add_(3)


def turned_copysign(x):
    made = torch.copysign(x.bfloat16()[None], torch.ones(1, 1, dtype=torch.bfloat16))
    return made.movedim(0, -1), made


@pytest.mark.covering
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("fn", [cut_of_batch_norm, written_logaddexp, turned_copysign])
def test_what_others_are_views_of_or_what_is_written(fn, dynamic):
    call = dynfix.compile(fn, dynamic=dynamic)
    for rows in (3, 7, 7, 5):
        x = torch.randn(rows, 7).mT
        for found, expected in zip(call(x), fn(x), strict=True):
            assert found.stride() == expected.stride()
            torch.testing.assert_close(found, expected)


def test_a_result_on_a_written_input_that_has_gaps():
    def fn(x):
        x.exp_()
        return x.squeeze()

    call = dynfix.compile(fn)
    for _ in range(3):
        x = torch.randn(34)[::2]
        other = x.clone()
        found = call(x)
        assert found.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()
        assert found.stride() == (2,)
        torch.testing.assert_close(found, fn(other))


@pytest.mark.parametrize("first, second", [("uint8", "int64"), ("float32", "float64")])
def test_blocks_that_are_numbers_leave_the_type_alone(first, second):
    first, second = getattr(torch, first), getattr(torch, second)

    def fn(x, y):
        return torch.block_diag(x, y.sum().to(second))

    check(fn, [(torch.ones(2, 3).to(first), torch.ones(n)) for n in (2, 3, 3)])


@pytest.mark.parametrize("backend", ["native", "aot_eager"])
def test_what_is_written_in_an_order_that_torch_does_not_expect(backend):
    """The meta function has the sum in another order than the kernel; the functional form of the
    write, in yet another."""

    def fn(x):
        made = torch.logaddexp(x.mean(-1, keepdim=True), x)
        made.index_copy_(0, torch.tensor([1]), made[:1] * 2)
        return made

    call = dynfix.compile(fn, backend=backend)
    for _ in range(3):
        x = torch.randn(7, 3).t()
        found, expected = call(x), fn(x)
        assert found.stride() == expected.stride()
        torch.testing.assert_close(found, expected)


def test_what_is_asked_of_a_written_input_that_has_gaps():
    def fn(x, y):
        x.sub_(x, alpha=2)
        y[0] = 1
        return x.view_as(x).ravel(), y[:].contiguous(), x[:].reshape(-1)

    call = dynfix.compile(fn)
    for _ in range(3):
        ours = [torch.randn(3, 6)[:, ::2], torch.randn(3, 6)[:, 1:4]]
        theirs = [torch.empty_strided(x.shape, x.stride()).copy_(x) for x in ours]
        for one, two in zip((*call(*ours), *ours), (*fn(*theirs), *theirs), strict=True):
            assert one.stride() == two.stride()
            assert torch.equal(one, two)


def test_a_written_copy_that_has_the_gaps_of_its_original():
    def fn(x, index):
        made = torch.select_scatter(x, x.select(-1, 0), -1, -1)
        made[index] = 1
        return made

    call = dynfix.compile(fn)
    for _ in range(3):
        x, index = torch.randn(7, 14)[:, ::2], torch.randint(7, (3,))
        assert call(x, index).stride() == fn(x, index).stride() == (14, 2)
        assert torch.equal(call(x, index), fn(x, index))


def test_a_view_as_another_type_of_what_eager_lays_out_otherwise():
    def fn(x):
        return F.one_hot(x, 5).view(torch.float64)

    call = dynfix.compile(fn)
    for columns in (33, 17, 7, 7):
        x = torch.randint(5, (3, columns)).mT
        assert call(x).stride() == fn(x).stride()
        assert torch.equal(call(x), fn(x))


def test_special_methods_write_nothing():
    def fn(x, y):
        return x == y, 2 - x, x << 2, x.ravel(), x.reshape(1, -1)

    call = dynfix.compile(fn)
    for _ in range(3):
        x, y = torch.randint(9, (10,))[::2], torch.randint(9, (5,))
        for found, expected in zip(call(x, y), fn(x, y), strict=True):
            assert torch.equal(found, expected)


def test_the_diagonal_of_a_part_is_filled_where_the_part_begins():
    def fill(x):
        x.fill_diagonal_(2)
        return x * 2

    call = dynfix.compile(fill)
    for turn in range(3):
        whole = [torch.full((5, 3), float(turn)) for _ in "ab"]
        torch.testing.assert_close(call(whole[0][1:]), fill(whole[1][1:]))
        torch.testing.assert_close(*whole)


def test_shuffled_channels_are_a_copy():
    for groups in (1, 4):
        call = dynfix.compile(lambda x, groups=groups: F.channel_shuffle(x, groups))
        for _ in range(3):
            x = torch.randn(1, 4, 2, 2)
            found = call(x)
            torch.testing.assert_close(found, F.channel_shuffle(x, groups))
            assert found.untyped_storage().data_ptr() != x.untyped_storage().data_ptr()


def test_memory_with_gaps_that_the_call_makes_is_written():
    def fn(x):
        return x.new_empty_strided((3,), (2,)).fill_(1).add_(x[:3])

    check(fn, [(torch.randn(4),) for _ in range(CALLS)])


@pytest.mark.parametrize("shape", [(5, 8), (5, 7, 1, 2), (5, 1, 8)])
def test_a_copy_with_gaps_is_written(shape):
    def fn(x):
        return torch.slice_scatter(x, torch.zeros_like(x[:1]), 0, 0, 1).add_(3)

    compiled = dynfix.compile(fn)
    for _ in range(CALLS):
        x = torch.randn(shape)[..., ::2]
        torch.testing.assert_close(compiled(x), fn(x), check_stride=True)


def written_under_a_mask(x):
    x[x > 2] = 0


@pytest.mark.covering
@pytest.mark.parametrize(
    "write",
    [
        written_under_a_mask,
        torch.relu_,
        lambda x: F.relu(x, inplace=True),
        lambda x: torch.ops.aten.masked_fill_.Scalar(x, x > 1, 3),
        lambda x: torch.index_put_(x, (x > 1,), x.new_tensor(7.0)),
    ],
    ids=["mask", "relu_", "inplace", "masked_fill_", "index_put_"],
)
@pytest.mark.parametrize("grad", [False, True])
def test_views_of_a_written_copy_that_has_gaps(write, grad):
    def fn(x, other):
        copy = torch.slice_scatter(x, torch.zeros_like(x[:1]), 0, 0, 1)
        part = copy.view(-1)
        write(copy)
        return part, other * 2

    compiled = dynfix.compile(fn, options={"strict": True})
    for _ in range(CALLS):
        x, other = torch.randn(6)[::2], torch.randn(3, requires_grad=grad)
        torch.testing.assert_close(compiled(x, other), fn(x, other), check_stride=True)


def test_views_of_a_written_input_that_has_gaps():
    def fn(x):
        x.cumsum_(0)
        repeated = x.expand(3, *x.shape)
        return repeated, torch.linalg.det(repeated @ repeated.mT + 1), x.t() * 2

    call = dynfix.compile(fn, options={"strict": True})
    for _ in range(CALLS):
        x = torch.randn(3, 66)[..., ::2]
        other = torch.empty_strided(x.shape, x.stride()).copy_(x)
        for found, expected in zip(call(x), fn(other), strict=True):
            torch.testing.assert_close(found, expected, check_stride=True)
        assert torch.equal(x, other)


def test_places_of_a_mask_lie_side_by_side():
    compiled = dynfix.compile(torch.where)
    mask = torch.eye(3) > 0
    for _ in range(CALLS):
        for one, two in zip(compiled(mask), torch.where(mask), strict=True):
            assert (one.stride(), one.storage_offset()) == (two.stride(), two.storage_offset())
            assert torch.equal(one, two)


def test_one_number_of_repeats_for_every_element():
    def fn(x):
        each = x.repeat_interleave(torch.tensor([2]), 0)
        return each, x.repeat_interleave(torch.tensor([2, 0, 1]), 0)

    call = dynfix.compile(fn, fullgraph=True)
    for _ in range(CALLS):
        x = torch.randn(3, 2)
        torch.testing.assert_close(call(x), fn(x), rtol=0, atol=0)


@pytest.mark.covering
@pytest.mark.parametrize("sizes", [(6, 6, 6), (6, 3, 5)])
@pytest.mark.parametrize(
    "make",
    [
        lambda x: F.batch_norm(x, None, None, training=True),
        lambda x: F.interpolate(x, scale_factor=2),
        lambda x: F.batch_norm(x, None, None, training=True)[1:],
    ],
)
@pytest.mark.parametrize("draw", [F.dropout, torch.rand_like, torch.Tensor.uniform_])
def test_numbers_are_drawn_in_the_order_of_eager(make, draw, sizes):
    def fn(x):
        return draw(make(x.transpose(0, 1))) * 2

    call = dynfix.compile(fn)
    for turn, size in enumerate(sizes):
        x, found = torch.randn(6, size, 6), []
        for each in (call, fn):
            torch.manual_seed(turn)
            found.append((each(x), torch.rand(1)))
        torch.testing.assert_close(*found)


@pytest.mark.covering
@pytest.mark.parametrize(
    "write",
    [
        lambda y: y.flatten(1).mul_(2),
        lambda y: y.reshape(-1).zero_(),
        lambda y: y[1:].reshape(-1)[:2].fill_(5),
        lambda y: y.contiguous().zero_(),
    ],
)
@pytest.mark.parametrize(
    "make",
    [
        lambda x: F.batch_norm(x, None, None, training=True),
        lambda x: F.interpolate(x, scale_factor=2),
        lambda x: torch.copysign(x, x.contiguous()),
    ],
)
def test_what_a_reshape_gives_is_written_as_in_eager(write, make):
    def fn(x):
        y = make(x.transpose(0, 1))
        write(y)
        return y.exp()

    check(fn, [(torch.randn(6, 5, 6),) for _ in range(CALLS)])


def test_masks_without_axes():
    def fn(x, mask):
        x[mask] = x[mask] * 2
        return x[x[0, 0] > 1].sum(), x[0, 0][x[0, 0] > 1], x[torch.all(mask)]

    call = dynfix.compile(fn)
    for turn in range(CALLS):
        given = [(torch.full((2, 2), float(turn)), torch.tensor(turn % 2 == 0)) for _ in "ab"]
        torch.testing.assert_close(call(*given[0]), fn(*given[1]))
        torch.testing.assert_close(*(x for x, _ in given))


@pytest.mark.parametrize("dynamic", [False, True])
def test_axes_of_one_element_keep_their_strides(dynamic):
    """By them eager orders the axes of what is made of the result behind a break."""

    def turned(x):
        y = x * 2
        return torch.where(x[..., 0].mT > 2, y, 0), y

    def parted(x, mask):
        y = torch.tril(x, -1)
        len(mask.tolist())
        return torch.where(mask[:, None].mT, y, 2)

    calls = [torch.arange(n)[None, None].permute(2, 1, 0) for n in (3, 3, 5, 4)]
    for function, more in ((turned, False), (parted, True)):
        compiled = dynfix.compile(function, dynamic=dynamic)
        for x in calls:
            given = (x, x[:, 0, 0] > 1) if more else (x,)
            found, wanted = compiled(*given), function(*given)
            found, wanted = (
                each if isinstance(each, tuple) else (each,) for each in (found, wanted)
            )
            for one, two in zip(found, wanted, strict=True):
                assert one.stride() == two.stride()
                torch.testing.assert_close(one, two)


@pytest.mark.parametrize("mode", ["nearest", "nearest-exact", "bilinear", "bicubic"])
def test_one_channel_that_lies_last_stays_there(mode):
    """Of one channel any stride is right; by it convolutions tell the order that they keep."""

    def resized(x):
        return F.interpolate(x, scale_factor=2, mode=mode) + 1

    for rows in (1, 2):
        check(resized, [(torch.randn(rows, 5, 6, 1).permute(0, 3, 1, 2),) for _ in range(CALLS)])


@pytest.mark.parametrize("shared", [torch.Tensor.detach, lambda x: x.view(x.dtype)])
def test_what_shares_the_memory_of_a_result_lies_as_it_does(shared):
    def fn(x):
        return shared(F.batch_norm(x.movedim(0, -1), None, None, training=True))

    compiled = dynfix.compile(fn, dynamic=False)
    for _ in range(CALLS):
        x = torch.randn(3, 17, 33)
        torch.testing.assert_close(compiled(x), fn(x), check_stride=True)


@pytest.mark.covering
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("step", [2, 3])
def test_gradients_behind_writes_to_a_part_with_gaps(step, dynamic):
    """Its elements lie in steps of which the longer is no multiple of the shorter."""

    def fn(x):
        part = (x * 2)[..., ::step]
        part.t().mul_(3)
        return part

    compiled = dynfix.compile(fn, dynamic=dynamic)
    for rows, columns in ((3, 7), (3, 7), (5, 8 if dynamic else 7)):
        x = torch.randn(rows if dynamic else 3, columns, requires_grad=True)
        found, expected = compiled(x), fn(x)
        seed = torch.randn(expected.shape)
        (ours,), (theirs,) = (torch.autograd.grad(y, x, seed) for y in (found, expected))
        torch.testing.assert_close(ours, theirs)


def test_images_of_a_parameter_that_the_call_makes_are_normalised():
    def fn(x):
        turned = (torch.nn.Parameter(x.detach().clone()) * 2).movedim(0, -1)
        ones = turned.new_ones(turned.size(1))
        return F.batch_norm(turned, ones, ones.clone(), training=True)

    compiled = dynfix.compile(fn)
    for _ in range(CALLS):
        x = torch.randn(3, 17, 7, 3)
        torch.testing.assert_close(compiled(x), fn(x), check_stride=True)
