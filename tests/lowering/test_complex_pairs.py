"""Arithmetic of complex numbers as loops over pairs, against eager."""

import dynfix
import pytest
import torch
from dynfix.lowering.loops.kernel_graph import ExternCall

from .harness import check, check_gradients, compiled, units

aten = torch.ops.aten
FREE = {aten.view_as_real.default, aten._conj.default, aten.conj_physical.default}


def rotated(x, frequencies):
    """Rotary embeddings as in the first Llama."""
    pairs = torch.view_as_complex(x.float().unflatten(-1, (-1, 2)))
    return torch.view_as_real(pairs * frequencies[:, None, :]).flatten(3).type_as(x)


def frequencies(rows, width):
    angles = torch.outer(torch.arange(rows), 1e-4 ** torch.linspace(0, 1, width // 2))
    return torch.polar(torch.ones_like(angles), angles)


def mixed(x, y, scale):
    """Each rule once, what is read in pairs and what is not."""
    first = torch.view_as_complex(x)
    second = (first.conj() * y - first * scale).reshape(-1, y.shape[-1])
    third = second * 2 + (1.5 - 0.5j) * scale - (scale - y) * 1j
    rows = torch.conj_physical(third).sum(0, keepdim=True).clone()
    return torch.view_as_real(rows.expand(3, -1) - y.conj()), third, third.abs(), (-second).imag


def calls(found):
    items = [item for unit in found for item in unit.items]
    return {item.target for item in items if isinstance(item, ExternCall)}


@pytest.mark.covering
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("shape", [(1, 1, 1, 2), (2, 7, 3, 34), (3, 33, 17, 64)])
def test_rotary_embeddings_are_loops(dtype, shape, monkeypatch):
    found = units(monkeypatch)
    x, turns = torch.randn(shape).to(dtype), frequencies(shape[1], shape[3])
    tolerance = {"rtol": 1e-2 if dtype.itemsize == 2 else 1e-5, "atol": 1e-5}
    check(rotated, x, turns, **tolerance)
    check(rotated, x.transpose(1, 2).contiguous().transpose(1, 2), turns, **tolerance)
    check_gradients(rotated, x, turns, **tolerance)
    assert found and calls(found) <= FREE


@pytest.mark.covering
@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize("width", [1, 3, 17, 32])
def test_values_and_gradients_are_those_of_eager(width, lazy, dynamic):
    call = dynfix.compile(mixed, dynamic=dynamic, options={"strict": True})
    for rows in (2, 2, 5, 6):
        results, gradients = [], []
        for function in (mixed, call):
            torch.manual_seed(rows)
            leaves = torch.randn(rows, width, 2), torch.randn(1, width, 2), torch.randn(width)
            x, y, scale = (leaf.requires_grad_() for leaf in leaves)
            turned = torch.view_as_complex(y)
            results.append(function(x, turned.conj() if lazy else turned, scale))
            seeds = [torch.randn(each.shape, dtype=each.dtype) for each in results[-1]]
            gradients.append(torch.autograd.grad(results[-1], (x, y, scale), seeds))
        torch.testing.assert_close(results[1], results[0])
        torch.testing.assert_close(gradients[1], gradients[0], rtol=1e-4, atol=1e-4)
        assert [r.stride() for r in results[1]] == [r.stride() for r in results[0]]


def test_what_is_no_number_stays_so():
    special = [0.0, -0.0, 1.5, float("inf"), float("-inf"), float("nan")]
    parts = torch.cartesian_prod(torch.tensor(special), torch.tensor(special))
    x = parts[:, None].expand(-1, len(parts), -1).contiguous()

    def product(x, y):
        return torch.view_as_real(torch.view_as_complex(x) * y)

    y = torch.view_as_complex(parts)
    found, expected = compiled(product, x, y)(x, y), product(x, y)
    torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)
    assert torch.equal(found.signbit() & (found == found), expected.signbit() & (found == found))


def test_lone_products_of_complex_numbers_are_the_librarys(monkeypatch):
    found = units(monkeypatch)
    given = torch.randn(2, 50, 2).unbind()
    check(lambda x, y: x * y, *map(torch.view_as_complex, given))
    assert calls(found) == {aten.mul.Tensor}


@pytest.mark.parametrize(
    "view",
    [torch.view_as_real, lambda z: z.imag, lambda z: z.real[1:], lambda z: z.conj().imag],
    ids="pairs imag real conjugate".split(),
)
def test_a_part_of_a_result_stays_a_view_of_it(view):
    def fn(x):
        product = x * (1 + 2j) * x
        return view(product), product

    call = dynfix.compile(fn, fullgraph=True)
    for _ in range(3):
        x = torch.randn(5)
        (part, whole), expected = call(x), fn(x)
        part.mul_(2)
        expected[0].mul_(2)
        torch.testing.assert_close((part, whole), expected)


@pytest.mark.parametrize("dynamic", [False, True])
def test_views_of_pairs_that_lie_inside_memory(dynamic):
    def fn(x, y):
        later = x[1:]
        product, part = later * y, later.real
        part.fill_(part.flatten()[0])
        return product

    call = dynfix.compile(fn, fullgraph=True, dynamic=dynamic)
    for width in (5, 7, 7, 3):
        one, y = torch.randn(4, width, dtype=torch.complex64), torch.randn(width) + 1j
        two = one.clone()
        torch.testing.assert_close(call(one, y), fn(two, y))
        torch.testing.assert_close(one, two)
