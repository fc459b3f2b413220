"""NumPy's functions of arrays that come from tensors: part of the graph, by torch's own form of
them; what asks for the content of an array ends the graph."""

import copy

import dynfix
import numpy as np
import pytest
import torch

CALLS = 4


@pytest.fixture(autouse=True)
def captured():
    with dynfix.config.patch(capture_numpy=True):
        yield


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
        same(compiled(*given[1]), program(*given[0]))
        same(given[1], given[0])
    return compiled


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
