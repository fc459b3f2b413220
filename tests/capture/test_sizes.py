"""Sizes that change: the second size is recorded with symbols, later ones run what was compiled."""

import dynfix
import pytest
import torch
from dynfix.rewriter.capture.nested import plain_in
from dynfix.rewriter.tracing_ops.calls import call_ops
from helpers import Case, call, recordings, rows, same

F = torch.nn.functional


SIZES = (5, 7, 3, 11, 2, 64, 5)


def _shape(x):
    n, width = x.shape
    return x.view(width, n).t().reshape(n * width), n


def _size(x):
    return (
        x.new_zeros(x.size(0) * 2, x.size(-1)) + x.repeat(2, 1),
        x.size(0) // 2,
        -x.size(0),
        x.size(0) % 3,
    )


def _length(x):
    return x * len(x), len(x), x[: len(x) // 2]


def _numel(x):
    return x.sum() / x.numel(), x.numel(), x.nelement() + 1


def _mean_by_hand(x):
    return x.sum(0) / x.shape[0], x / (x.shape[0] - 1)


def _ranges(x):
    n = x.shape[0]
    return torch.arange(n) + x[:, 0], torch.ones(n, n).tril() @ x, torch.full((n,), n)


def _cat(x):
    y = torch.cat([x, x[1:], x[-2:]])
    return y, y.shape[0], y.shape


def _shapes(x):
    return (
        (*x.shape, 3),
        x.shape + (1,),
        x.shape[:-1],
        list(x.shape),
        {"shape": x.shape},
        x.shape == x.t().shape,
    )


def _size_methods(x):
    return (
        x.shape.numel(),
        x.shape.index(4),
        x.shape.count(4),
        len(x.shape),
        sum(x.shape),
        max(x.shape),
        hash(x.shape),
    )


def _text(x):
    return (
        f"{x.shape[0]}",
        str(x.shape),
        f"{x.shape}",
        "%d" % x.shape[0],
        "{}".format(x.size(0)),
        repr(x.shape[0]),
    )


def _branch(x):
    return x + 1 if x.shape[0] > 6 else x - 1


def _parity(x):
    return x * 2 if x.shape[0] % 2 else x * 3


def _loop(x):
    total = x[0]
    for i in range(1, x.shape[0]):
        total = total + x[i]
    return total


def _rows(x):
    return (
        sum(row for row in x),
        [row * 2 for row in x.unbind()],
        [len(part) for part in x.split(2)],
    )


def _index(x):
    table = {5: 1.0, 7: 2.0}
    return x * table.get(x.shape[0], 3.0), [10, 20, 30][x.shape[0] % 3]


def _types(x):
    n = x.shape[0]
    return (
        type(n) is int,
        isinstance(n, int),
        type(x.shape) is torch.Size,
        n.bit_length(),
        (n).__class__ is int,
    )


def _float_arithmetic(x):
    scale = x.shape[0] ** -0.5
    return (
        x * scale,
        x / (x.shape[0] / 2),
        float(x.shape[0]),
        int(x.shape[0] * 1.5),
        round(x.shape[0] / 3, 2),
    )


def _strides(x):
    y = x.t()
    return y.stride(), y.is_contiguous(), x.contiguous().stride(0), y.stride(1)


def _interpolated(x):
    return (
        F.interpolate(x[None, None], scale_factor=2.0),
        F.pad(x, (0, 0, x.shape[0], 1)),
        F.adaptive_avg_pool1d(x[None], 2),
    )


def _attention(x):
    q = x[None, None]
    return F.scaled_dot_product_attention(q, q, q, is_causal=True), torch.softmax(
        x @ x.t() / x.shape[-1] ** 0.5, -1
    )


def _in_place(x):
    y = x.clone()
    y.unsqueeze_(0)
    first = y.shape[0]
    y.squeeze_(0)
    y[: x.shape[0] // 2] += 1
    return y, first, y.shape[0]


def _printed(x):
    print("rows", x.shape[0], x.shape)
    return x + 1


def _data_shape(x):
    kept = x[x > 0]
    return kept * 2, kept.shape[0] * x.shape[0]


def _after_break(x):
    n = x.shape[0]
    y = x * 2
    if y.sum() > -1e9:
        y = y + n
    return y.view(-1, n), n


def _same_sizes(x):
    return x @ x.t() if x.shape[0] == x.shape[1] else x


def _kept_by_name(x):
    sizes = {"rows": x.shape[0]}
    if "columns" not in sizes:
        sizes["columns"] = x.shape[1]
    return x.new_ones(sizes["columns"], sizes["rows"]), "rows" in sizes


def _checked(x):
    if x.shape[0] < 2 or x.shape[1] != 4:
        raise ValueError("rows")
    return x.relu()


def _stacked(x):
    return torch.stack([x] * x.shape[0]).sum(0), torch.cat([x for _ in range(x.shape[0])])


BODIES = [
    _shape,
    _size,
    _length,
    _numel,
    _mean_by_hand,
    _ranges,
    _cat,
    _shapes,
    _size_methods,
    _text,
    _branch,
    _parity,
    _loop,
    _rows,
    _index,
    _types,
    _float_arithmetic,
    _strides,
    _interpolated,
    _attention,
    _in_place,
    _printed,
    _data_shape,
    _after_break,
    _same_sizes,
    _kept_by_name,
    _checked,
    _stacked,
]
ONE_FOR_ALL = {
    _size,
    _length,
    _numel,
    _mean_by_hand,
    _ranges,
    _cat,
    _attention,
    _in_place,
    _printed,
    _kept_by_name,
    _checked,
}


@pytest.mark.covering
@pytest.mark.parametrize(
    "backend", ["eager", pytest.param("aot_eager", marks=pytest.mark.slow), "native"]
)
@pytest.mark.parametrize("grad", [False, True], ids=["", "grad"])
@pytest.mark.parametrize("body", BODIES, ids=lambda body: body.__name__)
def test_body(body, grad, backend):
    steps = [call(rows(n).requires_grad_(grad)) for n in SIZES]
    same(
        lambda: lambda x: body(x),
        *steps,
        backend=backend,
        tolerance=None if backend == "eager" else (1e-5, 1e-6),
    )


@pytest.mark.parametrize(
    "body", sorted(ONE_FOR_ALL, key=lambda body: body.__name__), ids=lambda body: body.__name__
)
def test_two_recordings_serve_all_sizes(body):
    fn = same(lambda: lambda x: body(x), *(call(rows(n)) for n in (5, 7, 11, 64, 9, 6)))
    assert len(recordings(fn)) == 2


@pytest.mark.parametrize(
    "body",
    sorted(ONE_FOR_ALL - {_cat}, key=lambda body: body.__name__),
    ids=lambda body: body.__name__,
)
def test_dynamic_true_records_once(body):
    fn = same(lambda: lambda x: body(x), *(call(rows(n)) for n in (7, 11, 64, 9, 6)), dynamic=True)
    assert len(recordings(fn)) == 1


def test_sizes_that_no_operator_reads_are_one_recording():
    def made():
        return lambda x: torch.full((2, 3), 5.0, dtype=x.dtype) - 1

    fn = same(made, *(call(rows(n)) for n in (7, 11, 64)), dynamic=True)
    assert len(recordings(fn)) == 1


@pytest.mark.parametrize("of", ["input", "intermediate"])
def test_a_view_in_another_dtype_keeps_it_at_every_size(of):
    def fn(x):
        base = x if of == "input" else x + 1
        return base, base.view(torch.float64)[:, : x.size(1) - 1], x.sum()

    compiled = dynfix.compile(fn, dynamic=True, fullgraph=True)
    for n in (7, 5, 5, 9, 9):
        x = torch.arange(3 * n).view(3, n)
        for ours, theirs in zip(compiled(x), fn(x), strict=True):
            assert (ours.dtype, ours.stride()) == (theirs.dtype, theirs.stride())
            assert torch.equal(ours, theirs)


def test_dynamic_false_stays_static():
    fn = same(lambda: lambda x: x * 2, *(call(rows(n)) for n in (7, 11, 64)), dynamic=False)
    assert len(recordings(fn)) == 3


def test_a_dim_that_is_marked_starts_dynamic():
    compiled = dynfix.compile(lambda x: x * x.shape[0], backend="eager")
    for n in (5, 7, 9):
        x = rows(n)
        torch._dynamo.mark_dynamic(x, 0)
        torch.testing.assert_close(compiled(x), x * n)
    assert len(recordings(compiled)) == 1


def test_sizes_of_zero_and_one_have_their_own_recordings():
    fn = same(
        lambda: lambda x: (x + x.sum(0), x.shape[0]),
        *(call(rows(n)) for n in (5, 7, 1, 0, 9, 1, 0)),
    )
    assert len(recordings(fn)) == 4


def test_rows_by_a_size():
    def body(x):
        n = x.shape[0]
        return x[n - 1], x[n // 2] * 2, x[-n]

    fn = same(lambda: body, *(call(rows(n).requires_grad_()) for n in (5, 7, 11, 64, 9)))
    assert len(recordings(fn)) <= 3


def test_two_inputs():
    def body(x, y):
        return x @ y.t(), x.shape[0] + y.shape[0], torch.cat([x, y]).mean(0)

    pairs = [(5, 3), (7, 4), (7, 7), (9, 2), (2, 9), (7, 9)]
    fn = same(lambda: body, *(call(rows(a), rows(b)) for a, b in pairs))
    assert len(recordings(fn)) <= 3


def test_equal_sizes_are_no_promise():
    """Both inputs had equal sizes whenever they were recorded; later they have not."""

    def body(x, y):
        return x.sum(0) * y.sum(0), x.shape[0] - y.shape[0]

    same(
        lambda: body, *(call(rows(a), rows(b)) for a, b in [(5, 5), (7, 7), (9, 9), (9, 8), (3, 4)])
    )


def test_broadcast_is_decided_by_sizes():
    def body(x, y):
        return x + y

    steps = [(5, 5), (7, 7), (7, 1), (9, 9), (1, 6), (8, 8)]
    same(lambda: body, *(call(rows(a), rows(b)) for a, b in steps))


def test_strides_of_a_dynamic_input():
    def body(x):
        return (x * 2).sum(1), x.shape[0]

    inputs = [
        rows(5),
        rows(7),
        rows(4, 9).t(),
        rows(20)[::2],
        rows(6).t().contiguous().t(),
        rows(8),
        torch.ones(1, 4).expand(6, 4),
    ]
    same(lambda: body, *(call(x[:, :4] if x.dim() == 2 and x.shape[1] > 4 else x) for x in inputs))


@pytest.mark.parametrize(("rows", "step"), [(0, 2), (2, 1)])
def test_views_of_a_written_input_lie_where_the_input_does(rows, step):
    def fn(x):
        y = x.reshape(x.size(0), -1, 1)
        x.mul_(2)
        return y, y.transpose(0, 1)

    compiled = dynfix.compile(fn, dynamic=True)
    for n, m in ((4, 5), (6, 3), (3, 7), (3, 7)):
        ours, theirs = (torch.arange(2.0 * (n + 2) * m).view(n + 2, 2 * m) for _ in range(2))
        got, wanted = (f(t[rows:, ::step]) for f, t in ((compiled, ours), (fn, theirs)))
        for one, two in zip(got, wanted, strict=True):
            assert one.stride() == two.stride() and torch.equal(one, two)
            assert one.data_ptr() - ours.data_ptr() == two.data_ptr() - theirs.data_ptr()


def test_state_keeps_plain_numbers():
    def make():
        case = Case(seen=[], last=None)

        def body(x):
            case.seen.append(x.shape[0])
            case.last = x.shape
            return x * 2

        return Case(
            fn=body,
            watch=lambda: (
                list(case.seen),
                case.last,
                [type(n).__name__ for n in (*case.seen, *case.last)],
            ),
        )

    same(make, *(call(rows(n)) for n in (5, 7, 9, 64, 5)))


def test_a_module_over_a_growing_sequence():
    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.embed, self.position = torch.nn.Embedding(10, 8), torch.nn.Embedding(100, 8)
            self.layer = torch.nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True)

        def forward(self, tokens):
            places = torch.arange(tokens.shape[1], device=tokens.device)
            mask = torch.nn.Transformer.generate_square_subsequent_mask(tokens.shape[1])
            return self.layer(self.embed(tokens) + self.position(places), src_mask=mask)

    steps = [call(torch.arange(2 * n).view(2, n) % 10) for n in (5, 7, 9, 30, 2)]
    fn = same(Net, *steps, tolerance=(1e-5, 1e-6))
    assert len(recordings(fn)) == 2


def test_a_size_that_slips_into_a_constant(monkeypatch):
    """Planted: code that reads the digits of a size and asks nobody. Comparing with the first
    recording finds it."""
    monkeypatch.setattr(call_ops, "concretize", plain_in)

    def body(x):
        return x * len(bytes(x.shape[0])), x.sum(0)

    fn = same(lambda: body, *(call(rows(n)) for n in (5, 7, 9, 7)))
    assert len(recordings(fn)) == 3


NUMBERS = (5, 7, 3, 1, 0, 9, -2, 4, 7)


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])
def test_numbers_that_the_call_is_given(backend):
    def body(x, n):
        y = x[:n] * n + torch.arange(n, n + 4) / (n + 1)
        return y, y.shape[0], n * 2, torch.full((max(n, 0), 2), 1.0)

    steps = [call(rows(12), n) for n in NUMBERS]
    fn = same(
        lambda: body,
        *steps,
        backend=backend,
        tolerance=None if backend == "eager" else (1e-5, 1e-6),
    )
    assert len(recordings(fn)) <= 6


def test_a_counter_that_the_graph_takes():
    def make():
        case = Case(step=2)

        def body(x):
            case.step += 1
            return x * case.step + case.step**2, x[: case.step]

        return Case(fn=body, watch=lambda: (case.step, type(case.step)))

    fn = same(make, *([call(rows(12))] * 9))
    assert len(recordings(fn)) == 2


def test_a_number_and_a_branch_on_it():
    def body(x, n):
        return x * n if n > 6 else x - n

    same(lambda: body, *(call(rows(3), n) for n in (5, 7, 3, 9, 4, 8)))


def test_a_number_that_follows_a_size():
    def body(x, n):
        return x.view(n, -1), x.view(-1, n).sum(0)

    same(lambda: body, *(call(rows(n), n) for n in (5, 7, 3, 9, 4, 8)))
    same(lambda: body, *(call(rows(8), n) for n in (4, 8, 2, 16, 1)))
