"""Lazy conjugates and negatives inside of compiled graphs, as results, and as gradients."""

import dynfix
import pytest
import torch


def conjugated(x):
    return torch.complex(x, x * 2).conj()


def negative(x):
    return torch.complex(x, x * 2).conj().imag


def read(x):
    return torch.complex(x, x * 2).conj().imag * 3 + 1


def gradients_for(result):
    """With the result's own bit, without one, and with one of another tensor."""
    made = torch.randn_like(result.resolve_neg().resolve_conj())
    other = torch.complex(torch.randn(5), torch.randn(5)).conj()
    return torch.ones_like(result), made, other if made.is_complex() else other.imag


@pytest.mark.parametrize("function", [conjugated, negative, read])
def test_results_and_gradients_are_those_of_eager(function):
    call = dynfix.compile(function, options={"strict": True})
    for which in (0, 1, 2, 0):
        x = torch.randn(5, requires_grad=True)
        found, expected = call(x), function(x)
        torch.testing.assert_close(found, expected)
        assert (found.is_conj(), found.is_neg()) == (expected.is_conj(), expected.is_neg())
        gradient = gradients_for(expected)[which]
        ours, theirs = (torch.autograd.grad(each, x, gradient) for each in (found, expected))
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("dynamic", [None, True])
def test_writes_through_negatives_of_an_input(dynamic):
    def negated(x, y):
        torch._neg_view(x).copy_(y)
        y.copy_(x)
        torch._neg_view(y)[1:].add_(x[1:] * 2)

    call = dynfix.compile(negated, dynamic=dynamic)
    for rows in (5, 5, 6, 7):
        expected = [torch.randn(rows, 3) for _ in range(2)]
        found = [each.clone() for each in expected]
        negated(*expected)
        call(*found)
        torch.testing.assert_close(found, expected)


def written(x):
    x[0].mul_(2)
    return x + 1, x.t()


@pytest.mark.covering
@pytest.mark.parametrize("function", [lambda x: (x.exp().sum(0), x + 1, x.t()), written])
@pytest.mark.parametrize("make", [torch._neg_view, lambda x: torch.complex(x, x).conj().imag])
@pytest.mark.parametrize("dynamic", [None, True])
def test_inputs_whose_memory_holds_negatives(function, make, dynamic):
    call = dynfix.compile(function, dynamic=dynamic)
    for rows in (5, 5, 6, 7):
        x = torch.randn(rows, 6)
        for each in (make(x), x.clone()):
            given = [each.clone(), each.clone()]
            given = [make(one) if each.is_neg() else one for one in given]
            assert all(one.is_neg() == each.is_neg() for one in given)
            expected, found = function(given[0]), call(given[1])
            torch.testing.assert_close(found, expected)
            torch.testing.assert_close(given[1], given[0])


@pytest.mark.covering
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("view", [torch.conj, torch._neg_view, lambda x: torch._neg_view(x.conj())])
def test_views_beside_what_they_are_views_of_and_a_view_of_an_input(view, dynamic):
    def function(x, y):
        made = x * 2
        return view(made), y * 2, x[None], made, view(made)[1:]

    call = dynfix.compile(function, dynamic=dynamic)
    for rows in (3, 3, 5, 5):
        x, y = torch.randn(rows, 4, dtype=torch.complex64), torch.randn(3, requires_grad=True)
        results = call(x, y), function(x, y)
        for found, expected in zip(*results, strict=True):
            torch.testing.assert_close(found, expected)
            assert (found.is_conj(), found.is_neg()) == (expected.is_conj(), expected.is_neg())
        for result in results:
            result[3].mul_(2)
        torch.testing.assert_close(*results)


def test_inputs_of_zeros_without_memory():
    call = dynfix.compile(lambda x, y: (x * y + 1, x.sum()))
    for _ in range(3):
        x = torch.randn(5)
        for y in (torch._efficientzerotensor(5), x):
            torch.testing.assert_close(call(x, y), (x * y + 1, x.sum()))


SPECTRA = {
    "power": lambda x: torch.fft.rfft(x).abs().pow(2),
    "filter": lambda x: torch.fft.irfft(
        torch.fft.rfft(x) * torch.fft.rfft(x[0].exp()), n=x.shape[1]
    ),
    "padded": lambda x: torch.fft.irfft(torch.fft.rfft(x, n=50).abs() ** 2, n=50),
    "cut": lambda x: torch.fft.rfft(x)[:, 3:9].abs(),
    "angle": lambda x: torch.fft.fft2(x).angle(),
    "conjugate": lambda x: torch.view_as_real(torch.fft.rfft(x).conj() * torch.fft.rfft(x * 2)),
    "sign": lambda x: torch.view_as_real(torch.fft.rfft(x).sgn()),
}


@pytest.mark.covering
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", SPECTRA)
def test_gradients_of_spectra(name, dtype):
    def function(x):
        return SPECTRA[name](x)

    call = dynfix.compile(function, options={"strict": True})
    for shape in ((6, 21), (6, 21), (6, 21), (3, 32)):
        x = torch.randn(shape, dtype=dtype)
        x[1], x[2, 4] = 0, -0.0
        given = x.clone().requires_grad_(), x.clone().requires_grad_()
        found, expected = call(given[0]), function(given[1])
        torch.testing.assert_close(found, expected)
        assert found.stride() == expected.stride()
        seed = torch.randn_like(expected)
        ours, theirs = (
            torch.autograd.grad(made, leaf, seed)[0]
            for made, leaf in zip((found, expected), given, strict=True)
        )
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
        assert ours.stride() == theirs.stride()


@pytest.mark.parametrize("dynamic", [False, True])
def test_spectra_lie_in_memory_as_the_library_leaves_them(dynamic):
    def f(x):
        return torch.fft.ifft(x, dim=1), torch.fft.rfft(x * 2, dim=0), torch.fft.ihfft2(x)

    call = dynfix.compile(f, dynamic=dynamic, options={"strict": True})
    for size in (5, 6, 7, 6):
        x = torch.randn(4, size, 3, requires_grad=True)
        found, expected = call(x), f(x)
        torch.testing.assert_close(found, expected)
        assert [each.stride() for each in found] == [each.stride() for each in expected]


def test_gradients_of_parts_along_axes_from_the_end():
    def f(x):
        turned = (x * (1 + 2j)).transpose(-1, -2)
        return turned.narrow(-1, 0, 1).abs(), turned.narrow(-2, 1, 1).abs()

    call = dynfix.compile(f, dynamic=True)
    for shape in ((3, 2), (3, 2), (5, 4), (7, 2), (4, 4)):
        x = torch.randn(shape, requires_grad=True)
        ours, theirs = (torch.autograd.grad(sum(map(torch.sum, g(x))), x)[0] for g in (call, f))
        torch.testing.assert_close(ours, theirs)


def test_a_gradient_that_is_a_lazy_conjugate_is_resolved_before_its_parts_are_read():
    def f(x):
        pairs = torch.stack([x * 2, x * 3], -1)
        return -torch.view_as_complex(pairs).conj()

    call = dynfix.compile(f)
    for _ in range(3):
        x = torch.randn(7, 3, requires_grad=True)
        ours, theirs = (torch.autograd.grad(y, x, torch.ones_like(y))[0] for y in (call(x), f(x)))
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("shape", [(), (3,)])
def test_parts_of_a_conjugate_whose_memory_was_written_through_it(shape):
    def function(x):
        x.conj().mul_(2)
        torch.stack([x, x.conj()])
        return x.conj().imag

    call = dynfix.compile(function)
    for _ in range(4):
        x = torch.randn(shape, dtype=torch.complex64)
        given = x.clone()
        found, expected = call(x), function(given)
        torch.testing.assert_close((found, x), (expected, given))
        assert (found.is_neg(), found.data_ptr()) == (expected.is_neg(), x.data_ptr() + 4)
