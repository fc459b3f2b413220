"""NumPy's arrays that hold something else at every call are inputs of the graph, on the memory of
the array: eager and compiled are compared, in what they leave in the arrays as well."""

import dynfix
import numpy as np
import pytest
import torch
from helpers import one_graph, recordings

CALLS = 6


def both(program, make, eager=None, apart=0.0):
    """Call the program and its compiled form on arrays of `make(rng)`; gives the latter. apart: how
    far numbers may be apart, where NumPy and torch sum in another order."""
    compiled = dynfix.compile(program, backend="eager")
    results = []
    for function in (eager or program, compiled):
        rng = np.random.default_rng(0)
        for number in range(CALLS):
            given = make(rng, number)
            results.append((function(*given), given))
    for (wanted, before), (got, after) in zip(results[:CALLS], results[CALLS:], strict=True):
        torch.testing.assert_close(got, wanted, rtol=apart, atol=apart, equal_nan=True)
        for one, other in zip(before, after, strict=True):
            np.testing.assert_array_equal(one, other)
    return compiled


def floats(rng, number, size=(5, 4)):
    return (rng.normal(size=size).astype(np.float32),)


def test_every_way_to_make_a_tensor():
    def program(a):
        x = torch.from_numpy(a)
        y = torch.as_tensor(a) + torch.Tensor(a) * torch.FloatTensor(a)
        return x.tanh() @ y.T, torch.tensor(a, dtype=torch.float64).sum(), torch.tensor(a) * 2

    one_graph(both(program, floats), 2)


def test_a_large_array_is_an_input_at_once():
    def program(a):
        return torch.as_tensor(a).mean(), torch.tensor(a).T.contiguous()

    one_graph(both(program, lambda rng, number: floats(rng, number, (300, 300))), 1)


def test_indices():
    weight = torch.randn(7, 3)

    def program(i, mask):
        return weight[i] * 2, weight[i, 1], torch.where(torch.from_numpy(mask), 1.0, weight.T)

    def make(rng, number):
        return rng.integers(0, 7, 5), rng.random(7) < 0.5

    one_graph(both(program, make), 2)


def test_sizes_that_change():
    def program(a):
        return torch.from_numpy(a).exp().sum(0) * a.shape[1]

    compiled = both(program, lambda rng, number: floats(rng, number, (3 + number, 4)))
    assert len(recordings(compiled)) <= 4


@pytest.mark.parametrize("cut", [np.s_[::2], np.s_[:, 1:], np.s_[1:3, ::2]])
def test_parts_of_arrays(cut):
    def program(a):
        return torch.from_numpy(a) * 2, torch.tensor(a)

    both(program, lambda rng, number: (rng.normal(size=(5, 4))[cut],))
    both(program, lambda rng, number: (rng.normal(size=(5, 4)).T[1:],))


def test_a_result_on_the_memory_of_the_array():
    def program(a):
        x = torch.from_numpy(a)
        return x, x[1:], x * 2

    compiled = dynfix.compile(program, backend="eager")
    for number in range(CALLS):
        (array,) = floats(np.random.default_rng(number), number)
        same, part, _ = compiled(array)
        assert (same.data_ptr(), part.data_ptr()) == (array.ctypes.data, array.ctypes.data + 16)
        array[:] = number
        assert torch.equal(part, torch.full((4, 4), float(number)))


def writes_through_the_tensor(a):
    x = torch.from_numpy(a)
    x.mul_(2)
    return x.sum(), torch.tensor(a)


def stores_later(a):
    y = torch.from_numpy(a)
    first = y.sum()
    a[0] = 0
    return first, y.sum()


def adds_in_place(a):
    y = torch.from_numpy(a)
    first = y.sum()
    a += 1
    return first, y.sum()


def asks_numpy_later(a):
    y = torch.from_numpy(a)
    y[0] = 7
    return y * float(a.sum()), a.max() > 1


def asks_numpy_before(a):
    largest = float(a.max())
    return torch.from_numpy(a) * largest


def sorts(a):
    y = torch.from_numpy(a) * 2
    a.sort()
    return y, torch.from_numpy(a) * 2


def shares_a_part(a):
    y = torch.from_numpy(a)
    z = torch.from_numpy(a[1:])
    z.zero_()
    return y.sum(), z


def counts(a):
    return torch.from_numpy(a) * len(a), a.shape[0]


@pytest.mark.parametrize(
    "program",
    [
        writes_through_the_tensor,
        stores_later,
        adds_in_place,
        asks_numpy_later,
        asks_numpy_before,
        sorts,
        shares_a_part,
        counts,
    ],
)
def test_what_the_call_does_to_the_array(program):
    both(program, floats, apart=1e-5 if program is asks_numpy_later else 0.0)


def test_one_array_given_twice():
    def program(a, b):
        return torch.from_numpy(a) + torch.from_numpy(b), torch.from_numpy(b).mul_(2)

    def make(rng, number):
        (a,) = floats(rng, number)
        return a, (a if number % 3 == 2 else a[:] if number % 3 == 1 else a.copy())

    both(program, make)


@pytest.mark.filterwarnings("ignore:The given NumPy array is not writable")
def test_arrays_that_cannot_be_written():
    def program(a):
        return torch.tensor(a) * 2

    def make(rng, number):
        (a,) = floats(rng, number)
        a.flags.writeable = number % 2 == 0
        return (a,)

    both(program, make)


def test_another_type_at_a_later_call():
    def program(a):
        return torch.tensor(a) + 1

    kinds = (np.float32, np.float32, np.float32, np.int64, np.float64, np.bool_)

    def make(rng, number):
        return (rng.normal(size=4).astype(kinds[number]),)

    both(program, make)


def test_a_buffer_that_is_filled_between_the_calls():
    class Reader(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.buffer = np.zeros((4, 3), np.float32)

        def forward(self, x):
            return x @ torch.from_numpy(self.buffer)

    reader = Reader()
    compiled = dynfix.compile(reader, backend="eager")
    for number in range(CALLS):
        reader.buffer[number % 4] = number
        x = torch.full((2, 4), float(number))
        assert torch.equal(compiled(x), reader(x))
    one_graph(compiled, 2)


def test_gradients():
    weight = torch.randn(4, 3, requires_grad=True)

    def program(a):
        x = torch.from_numpy(a).requires_grad_()
        (x @ weight).square().sum().backward()
        return x.grad

    def eager(a):
        return program(a)

    weight.grad = None
    both(program, floats, eager)


def test_arrays_that_overlap_hold_again_what_they_held():
    """What a run ahead of its call writes is taken back."""

    def program(a, b):
        a += 1
        return b * 2

    def make(rng, number):
        (a,) = floats(rng, number)
        return a, a[1:]

    both(program, make)
