"""NumPy's functions of arrays that come from tensors: part of the graph, by torch's own form of
them; what asks for the content of an array ends the graph."""

import copy
import importlib

import dynfix
import numpy as np
import pytest
import torch

CALLS = 4


def floats(*shape):
    return np.random.randn(*shape).astype("f")


def same(one, other):
    assert type(one) is type(other)
    if isinstance(one, list | tuple):
        assert len(one) == len(other)
        for a, b in zip(one, other, strict=True):
            same(a, b)
    elif isinstance(one, dict):
        same(list(one.items()), list(other.items()))
    elif isinstance(one, torch.Tensor):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5, equal_nan=True)
    elif isinstance(one, np.ndarray | np.generic | float):
        assert np.asarray(one).dtype == np.asarray(other).dtype
        if isinstance(one, np.ndarray):
            assert (one.strides, one.flags.writeable) == (other.strides, other.flags.writeable)
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)
    else:
        assert one == other


def check(program, make=lambda: (torch.randn(4, 3),), whole=True, backend="eager"):
    """Four calls, as in eager, on other numbers; what is given too."""
    compiled = dynfix.compile(program, fullgraph=whole, backend=backend)
    for number in range(CALLS):
        given = []
        for _ in range(2):
            torch.manual_seed(number)
            np.random.seed(number)
            given.append(make())
        results = compiled(*given[1]), program(*given[0])
        same(*results)
        same(given[1], given[0])
        for result, arguments in zip(results, given[::-1], strict=True):
            write_to(result, arguments)
        same(*results)
        same(given[1], given[0])
    return compiled


def write_to(result, arguments):
    """Write to all arrays of a result, so that it shows whose memory they have."""
    parts = list(result) if isinstance(result, tuple | list) else [result]
    for part in {id(each): each for each in parts if isinstance(each, np.ndarray)}.values():
        if part.flags.writeable and part.dtype.kind in "fiu":
            part += 1


def scales(x):
    a = x.numpy()
    return torch.from_numpy(np.sin(a) * 2 + a.mean(axis=0)) + 1


def selects(x):
    a = x.detach().cpu().numpy()
    return torch.as_tensor(np.where(a > 0, a, 0.5 * a)).sum(1) + x.sum(1)


def sorts(x):
    return torch.gather(x, 1, torch.from_numpy(np.argsort(x.numpy(), axis=1, kind="stable")))


def norms(x):
    return x / torch.from_numpy(np.linalg.norm(x.numpy(), axis=1, keepdims=True))


def gives_arrays(x):
    a = x.numpy()
    return {"t": a.T, "l": [a.sum(), 3]}, np.concatenate([a, a + 1])[:, ::2], a[..., None], a > 0


def writes_a_copy(x):
    a = x.numpy().copy()
    a[a < 0] = 0
    a += 1
    return torch.from_numpy(a)


def writes_shared_memory(x):
    a = x.numpy()
    a.reshape(2, -1)[0, 0] = 7
    return torch.from_numpy(a) + 0, x * 1


def writes_through_the_tensor(x):
    a = x.numpy() * 1
    t = torch.from_numpy(a)
    t.mul_(2)
    return a + 1, t


def writes_through_a_view(x):
    a = x.numpy().copy()
    a.T[0] = 5
    return torch.from_numpy(a), a.sum()


def reads_numbers(x):
    a = x.numpy()
    return x * a[0, 0].item(), float(a.mean()) + x.sum(), [int(v) for v in (a > 0).sum(axis=0)]


def counts(x):
    a = x.numpy()
    return x * a.shape[0] + len(a) + a.size + a.ndim, a.dtype == np.float32, type(a) is np.ndarray


def goes_through(x):
    total = 0.0
    for row in x.numpy():
        total = total + row.sum()
    return x * torch.as_tensor(total)


def takes_constants(x):
    half = np.float32(2.5)
    return torch.from_numpy(x.numpy() * half + np.array([1.0, 2.0, 3.0], dtype="f"))


def picks(x):
    return x[torch.from_numpy(np.where(x.numpy()[:, 0] > 0)[0])], np.unique(
        x.numpy().astype(np.int64)
    )


def multiplies_a_number(x):
    n = x.numpy().sum()
    return x * n, n * x, x + float(n)


def changes_type(x):
    a = np.asarray(x.numpy(), dtype=np.float64)
    return a.reshape(-1)[None].astype(np.float32).clip(-1, 1), a.round(1), x.half().numpy()


def handles_an_index_error(x):
    try:
        return torch.from_numpy(x.numpy()[99])
    except IndexError:
        return x - 1


@pytest.mark.parametrize(
    "program",
    [
        scales,
        selects,
        sorts,
        norms,
        gives_arrays,
        writes_a_copy,
        writes_shared_memory,
        writes_through_the_tensor,
        writes_through_a_view,
        reads_numbers,
        counts,
        goes_through,
        takes_constants,
        picks,
        multiplies_a_number,
        changes_type,
        handles_an_index_error,
    ],
)
def test_one_graph(program):
    check(program)


def test_sizes_change():
    rows = iter([4, 4, 5, 5, 6, 6, 7, 7])
    check(counts, lambda: (torch.randn(next(rows), 3),))


def test_arrays_that_are_given():
    def standardise(a, b):
        return (a - a.mean(axis=0)) / (a.std(axis=0) + 1e-6), np.concatenate([a, b])

    check(standardise, lambda: (floats(5, 3), floats(2, 3)))
    call = check(lambda a: (a, np.exp(a) / np.exp(a).sum(-1, keepdims=True)), lambda: (floats(3),))
    given = floats(3)
    assert call(given)[0] is given


def test_with_kernels():
    check(scales, backend="native")
    check(lambda x: np.exp(-(x.numpy() ** 2)).sum(axis=1), backend="native")


def test_gradients_go_around_arrays():
    def program(x, w):
        s = np.abs(x.detach().numpy()).sum(axis=1, keepdims=True)
        return (x / torch.from_numpy(s)) @ w

    compiled = dynfix.compile(program, fullgraph=True, backend="eager")
    for _ in range(3):
        x, w = torch.randn(4, 3), torch.randn(3, 2)
        one, other = (x.clone().requires_grad_() for _ in range(2))
        compiled(one, w).sum().backward()
        program(other, w).sum().backward()
        torch.testing.assert_close(one.grad, other.grad)


def test_what_is_kept_is_numpys_own():
    class Holder:
        last = None

    holder = Holder()

    def program(x):
        holder.last = np.sqrt(np.abs(x.numpy()))
        return x + 1

    compiled = dynfix.compile(program, fullgraph=True, backend="eager")
    for _ in range(3):
        x = torch.randn(3)
        compiled(x)
        assert type(holder.last) is np.ndarray
        np.testing.assert_allclose(holder.last, np.sqrt(np.abs(x.numpy())), rtol=1e-6)


def stores_into_a_plain_array(x):
    a = np.zeros((4, 3), dtype="f")
    a[:, 0] = x.numpy()[:, 0]
    return torch.from_numpy(a)


def adds_to_a_plain_array(x):
    a = np.zeros(3, dtype="f")
    a += x.numpy()[0]
    return torch.from_numpy(a)


def fills_a_plain_array(x):
    a = np.zeros(3, dtype="f")
    np.copyto(a, x.numpy()[0])
    b = np.zeros(3, dtype="f")
    b.fill(x.numpy()[0, 0])
    return a, b


def shows_memory(x):
    return memoryview(x.numpy())[0, 0] * x, x.numpy().tobytes()


def goes_through_flat(x):
    return float(x.numpy().flat[1]) * x, float(next(np.nditer(x.numpy()))) * x


def changes_its_shape(x):
    a = x.numpy().copy()
    a.shape = (-1,)
    return torch.from_numpy(a) * 1


def sorts_in_place(x):
    a = x.numpy()
    a.sort(axis=1)
    return torch.from_numpy(a) * 1


def has_no_form(x):
    a = x.numpy()
    return np.percentile(a, 50), np.apply_along_axis(lambda row: row / row.sum(), 1, a)


def writes_text(x):
    return x + 1, f"{x.numpy()[0, 0]:.3f}", str(x.numpy())


def copies(x):
    return copy.deepcopy(x.numpy()), copy.copy(x.numpy() + 1), x.numpy().view(np.int32)


@pytest.mark.parametrize(
    "program",
    [
        stores_into_a_plain_array,
        adds_to_a_plain_array,
        fills_a_plain_array,
        shows_memory,
        goes_through_flat,
        changes_its_shape,
        sorts_in_place,
        has_no_form,
        writes_text,
        copies,
    ],
)
def test_a_break_where_content_is_asked(program):
    check(program, whole=False)


COPIES = """
    a.flatten() a.astype("f") np.conj(a) np.positive(a) +a a.round(0) np.tile(a,1) np.nan_to_num(a)
    np.roll(a,0) np.concatenate([a]) np.stack([a])[0] a.take([0,1],axis=0) a.repeat(1,axis=0)
    np.array(a) np.clip(a,None,99) a[a>-99] a[[0,1]] np.where(True,a,a) a.T.flatten() a.T.copy()
    a[:1].sum(0) a[:1].max(0) np.ascontiguousarray(a.T) a[::-1].copy() np.sort(a) np.tril(a,5)
""".split()
VIEWS = """
    a.T a.reshape(-1) a.ravel() a.swapaxes(0,1) a[1:] a[::2] a[:,1] a[None] a.real np.real(a)
    np.squeeze(a[:1]) np.moveaxis(a,0,1) np.split(a,2)[1] np.atleast_3d(a) np.asarray(a) a[:2][1:]
    a.T.ravel() np.transpose(a) np.diagonal(a) a.astype("f",copy=False) np.broadcast_to(a[0],(2,3))
""".split()


@pytest.fixture
def written(tmp_path, monkeypatch):
    """Functions of source text, which is found in a file."""
    monkeypatch.syspath_prepend(tmp_path)

    def make(name, lines):
        body = "".join(f"    {line}\n" for line in lines)
        path = tmp_path / f"{name}.py"
        path.write_text(f"import numpy as np\nimport torch\n\n\ndef program(x):\n{body}")
        return importlib.import_module(name).program

    return make


@pytest.mark.parametrize("number", range(len(COPIES)))
def test_a_copy_has_memory_of_its_own(written, number):
    check(
        written(
            f"copy_{number}",
            ["a = x.numpy()", f"b = {COPIES[number]}", "b[0] = 9", "return x * 1, b"],
        )
    )


@pytest.mark.parametrize("number", range(len(VIEWS)))
def test_a_view_has_the_memory_of_its_base(written, number):
    lines = ["a = x.numpy()", f"b = {VIEWS[number]}", "a[0] = 9", "x.add_(1)", "return b, b + 1"]
    check(written(f"view_{number}", lines))


@pytest.mark.parametrize("number", range(0, len(VIEWS), 3))
def test_sizes_of_views_change(written, number):
    rows = iter([4, 4, 6, 6, 8, 8, 2, 2])
    lines = [
        "a = x.numpy()",
        f"b = {VIEWS[number]}",
        "a[0] = 9",
        "return b + 1, [v.sum() for v in a]",
    ]
    check(written(f"sizes_{number}", lines), lambda: (torch.randn(next(rows), 3),), whole=False)


def goes_backwards(x):
    a = x.numpy()
    b = a[::-1]
    return b + 1, b[:, ::-1].sum(axis=0), np.flip(a).copy()


def keeps_the_precision_of_constants(x):
    a = x.numpy().astype(np.float64)
    return a * 0.1, np.where(a > 0, 0.1, a), a + np.array([0.1, 0.2, 0.3])


def counts_with_numbers(x):
    s, k = x.numpy().sum(), x.numpy().argmax()
    s += 1
    return s * 2, -s, abs(s), s.astype(np.float64), s.round(1), k % 3, type(s), f"{s:.3f}", s.item()


def asks_for_identity(x):
    a = x.numpy()
    b = np.asarray(a)
    rows = [a[0], a[1]]
    again = rows + [a]
    return a is b, a is x.numpy(), again[0] is rows[0], isinstance(a, np.ndarray), type(a)


@pytest.mark.parametrize(
    "program",
    [goes_backwards, keeps_the_precision_of_constants, counts_with_numbers, asks_for_identity],
)
def test_one_graph_too(program):
    check(program)


def returns_it_backwards(x):
    return x.numpy()[::-1]


def writes_backwards(x):
    b = x.numpy()[::-1]
    b[0] = 3
    return x * 1


def writes_what_is_read_backwards(x):
    a = x.numpy()
    b = a[::-1]
    c = b + 0
    x.mul_(2)
    return b + 1, c


def writes_by_functions(x):
    a = x.numpy()
    np.fill_diagonal(a, a[0, 0] + 1)
    np.copyto(a, a + 1)
    np.add.at(a, [0, 0], 1)
    np.add(a, 1, a)
    a.sort(axis=0)
    return x * 1, a


def adds_to_a_part_of_itself(x):
    a = x.numpy()
    a[1:] += a[:-1]
    a[[0, 1]] = a[[1, 0]]
    return a, x


def writes_to_a_read_only_view(x):
    b = np.broadcast_to(x.numpy()[0], (4, 3))
    try:
        b[0] = 1
    except ValueError as error:
        return str(error), b
    return b


def uses_numbers_as_keys(x):
    k = x.numpy().argmax()
    return {k: 1}, hash(k) == hash(int(k)), list(range(12))[k], k in (1, 2, 3), [0] * (k % 3)


def makes_arrays_of_numbers(x):
    s = x.numpy().max()
    return np.array([s, 1.0]), torch.tensor([s, 1.0]), x.long() * np.float64(s), x.mul(s)


def raises_in_numpy(x):
    with np.errstate(invalid="raise"):
        try:
            return np.log(x.numpy())
        except FloatingPointError as error:
            return str(error)


@pytest.mark.parametrize(
    "program",
    [
        returns_it_backwards,
        writes_backwards,
        writes_what_is_read_backwards,
        writes_by_functions,
        adds_to_a_part_of_itself,
        writes_to_a_read_only_view,
        uses_numbers_as_keys,
        makes_arrays_of_numbers,
        raises_in_numpy,
    ],
)
def test_right_with_a_break(program):
    check(program, whole=False)


OTHER = """
    np.sign(a) np.cbrt(a) np.fix(a) np.angle(a) np.heaviside(a,a) np.unique(a) np.argsort(a[0])
    np.searchsorted(np.sort(a[0]),a) a.astype("i4")**a.astype("i4") a.astype("u1")>-1 np.nonzero(a)
    a.astype("u1").clip(-1,1) np.linalg.cond(a[:3]) a.astype("i1").sum()==300 np.round(a)//0
""".split()


@pytest.mark.parametrize("number", range(len(OTHER)))
def test_what_torch_computes_otherwise(written, number):
    """Recorded with numbers for which it does not show."""
    program = written(f"other_{number}", ["a = x.numpy()", f"return {OTHER[number]}"])
    compiled = dynfix.compile(program, backend="eager")
    odd = torch.tensor([[float("nan"), -0.0, float("inf")], [-8.0, 0.5, -0.7], [2.0, 2.0, 0.0]])
    plain = torch.arange(1.0, 10.0).reshape(3, 3) + torch.eye(3)
    for x in (plain, odd, plain + 1, odd.nan_to_num(1.0, 2.0), plain):
        outcomes = []
        for function in (compiled, program):
            try:
                with np.errstate(all="ignore"):
                    outcomes.append(function(x.clone()))
            except ValueError as error:
                outcomes.append(str(error))
        same(*outcomes)


def test_lists_and_types_from_outside_are_guarded():
    kept, types = [], [np.dtype("f4"), np.dtype("f8")]

    def program(x):
        kept.append(x.numpy() * 2)
        return np.stack(kept).sum(axis=0), x.numpy().sum(dtype=types[0])

    compiled = dynfix.compile(program, backend="eager")
    for _ in range(CALLS):
        types.reverse()
        x = torch.randn(3)
        got = compiled(x)
        kept.pop()
        same(got, program(x))


def test_the_option_switches_it_off():
    with dynfix.config.patch(capture_numpy=False):
        with pytest.raises(dynfix.GraphBreakError):
            dynfix.compile(scales, fullgraph=True, backend="eager")(torch.randn(4, 3))
        check(scales, whole=False)


def test_errors_that_numpy_is_to_raise_later():
    compiled = dynfix.compile(lambda x: np.log(x.numpy()), backend="eager")
    with np.errstate(all="ignore"):
        compiled(torch.randn(3))
        compiled(torch.randn(3))
    with np.errstate(all="raise"), pytest.raises(FloatingPointError):
        compiled(torch.tensor([-1.0, 1.0, 2.0]))


def test_a_number_of_a_tensor_is_the_index():
    def program(x):
        return x[int(x.argmax()) % 3]

    check(program, whole=False)


# -- what the values of the first calls do not show


WRITING = {
    "a result by position": lambda x, y: np.isneginf(x.numpy(), y.numpy()),
    "a method's": lambda x, y: x.numpy().conj(y.numpy()),
    "copy=False": lambda x, y: np.nan_to_num(x.numpy(), copy=False),
    "copy by position": lambda x, y: np.nan_to_num(y.numpy(), False),
}


@pytest.mark.parametrize("program", WRITING.values(), ids=WRITING)
def test_functions_that_write_to_an_argument(program):
    compiled = dynfix.compile(program, backend="eager")
    for turn in range(4):
        values = [torch.randn(3), torch.tensor([1.0, np.nan if turn > 1 else 2, np.nan])]
        given = [[each.clone() for each in values[:: 1 - turn % 2 * 2]] for _ in range(2)]
        same(compiled(*given[0]), program(*given[1]))
        same(*given)


def test_numbers_that_do_not_fit_where_they_are_stored():
    def stores(x, y):
        x.numpy()[0] = y.numpy()[0]
        return x + 1

    for kind in (torch.int8, torch.int64, torch.float32):
        compiled = dynfix.compile(stores, backend="eager")
        for value in (3.5, -7.0, 1e30, np.nan, 2.5):
            found = []
            for call in (compiled, stores):
                x = torch.zeros(2, dtype=kind)
                try:
                    found.append([call(x, torch.tensor([value], dtype=torch.float64)), x])
                except (OverflowError, ValueError) as error:
                    found.append([str(error), x])
            same(*found)


def test_infinities_and_nan():
    def program(x):
        a = x.numpy()
        rows = np.median(a.reshape(2, 3), axis=0), np.median(a.reshape(3, 2), -1, keepdims=True)
        return np.median(a), np.median(a[:5]), *rows, np.median(np.isnan(a).astype("i4"))

    compiled = dynfix.compile(program, backend="eager", fullgraph=True)
    inf, nan = np.inf, np.nan
    for values in (
        [1, 2, 3, 4, 5, 6],
        [inf, 1, inf, -inf, 2, 0],
        [nan, 1, 2, inf, 4, 5],
        [inf] * 6,
    ):
        x = torch.tensor(values, dtype=torch.float32)
        same(compiled(x), program(x))


def test_integers_are_rounded_to_places_of_the_call():
    def program(x, places):
        return np.round(x.numpy()[0], places.numpy()[0])

    compiled = dynfix.compile(program, backend="eager")
    for value, places in ((10, 2), (14, -1), (27, -1), (27, 0)):
        given = torch.tensor([value]), torch.tensor([places])
        same(compiled(*given), program(*given))
