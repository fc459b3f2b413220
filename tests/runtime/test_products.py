"""Products by the library, natively and in Python: the same results, wherever they go."""

import gc
import weakref

import pytest
import torch
from dynfix.runtime import torch_headers
from dynfix.runtime.programs.launch import Product
from dynfix.runtime.programs.program import Extern, Name, Program, Return, View

SHAPES = {
    "mm": ((3, 4), (4, 5)),
    "bmm": ((2, 3, 4), (2, 4, 5)),
    "addmm": ((5,), (3, 4), (4, 5)),
    "baddbmm": ((2, 1, 5), (2, 3, 4), (2, 4, 5)),
}


@pytest.fixture(params=["native", "python"])
def made(request):
    if request.param == "python":
        return lambda product: product
    torch_headers.load()
    native = torch_headers.torch_parts()
    if native is None:
        pytest.skip("no native products here")
    return lambda product: product.native(native)


def stored(shape):
    """A tensor of `shape` within a larger one, and its layout there."""
    whole = torch.randn(*shape[::-1], 2)
    part = whole[..., 1].permute(tuple(range(len(shape)))[::-1])
    return whole, (tuple(part.shape), part.stride(), part.storage_offset()), part


@pytest.mark.parametrize("name", Product.NAMES)
@pytest.mark.parametrize("placed", [False, True])
def test_results_are_torchs(made, name, placed):
    for requires_grad in (False, True):
        whole = [torch.randn(shape, requires_grad=requires_grad) for shape in SHAPES[name]]
        views = [stored(shape) for shape in SHAPES[name]]
        with torch.no_grad():
            for operands, layouts, parts in (
                (whole, [None] * len(whole), whole),
                zip(*views, strict=True),
            ):
                expected = getattr(torch, name)(*parts)
                out = torch.empty(2 * expected.numel())
                place = (tuple(expected.shape), expected.stride(), expected.numel())
                call = made(Product(name, (*layouts, place) if placed else tuple(layouts), placed))
                found = call(*operands, out) if placed else call(*operands)
                if placed:
                    assert found is None
                    found = out[expected.numel() :].view(expected.shape)
                torch.testing.assert_close(found, expected, rtol=0, atol=0)
                assert not found.requires_grad


def test_errors_are_torchs(made):
    with pytest.raises(RuntimeError, match="cannot be multiplied"):
        made(Product("mm", (None, None), False))(torch.ones(2, 3), torch.ones(2, 3))
    with pytest.raises((TypeError, AttributeError)):
        made(Product("mm", (None, None), False))(torch.ones(2, 3), None)


def test_a_program_makes_its_products_natively_once_they_can_be(monkeypatch):
    torch_headers.load()
    native = torch_headers.torch_parts()
    if native is None:
        pytest.skip("no native products here")
    monkeypatch.setattr(torch_headers._Parts, "native", None)
    turned = View("b", (4, 5), (1, 4), 0)
    step = Extern(torch.mm, (Name("a"), turned), {}, "c", (), (), pure=True)
    program = Program("twice", ["a", "b"], [step, Return((Name("c"),))], {})
    a, b = torch.randn(3, 4), torch.randn(5, 4)
    torch.testing.assert_close(program([a, b])[0], a @ b.t())
    (name,) = program._products
    assert isinstance(program.namespace[name], Product)
    torch_headers.load()
    assert isinstance(program.namespace[name], native.Product)
    torch.testing.assert_close(program([a, b])[0], a @ b.t())
    seen = weakref.ref(program)
    del program
    gc.collect()
    assert seen() is None
