"""Graphs of our own compiler with calls of the library: of operators whose results have sizes that
data decides, on sparse, nested and wrapped tensors."""

import random

import dynfix
import pytest
import torch
import torch.nn.functional as F
from dynfix.rewriter.frontend.library_calls import PartProgram, WrappedProgram
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils import _pytree as pytree

lin = torch.nn.Linear(4, 3)


def rows(x):
    kept = x[(x > 0).any(1)] * 2
    return kept.sin() + 1, kept.sum(0)


def counted(x):
    n = (x > 0).sum().item()
    torch._check(n >= 0)
    torch._check(n <= x.numel())
    return torch.zeros(n, 2) + x.sum(), x.flatten()[:n].exp() * 2


def asks_sizes(x):
    kept = x[x.sum(1) > 0]
    n, d = kept.shape
    padded = F.pad(kept, (0, 0, 0, x.shape[0] - n))
    return padded * 2, kept.reshape(n * d), kept.sum() / (len(kept) + 1)


def several(x):
    values, places, counts = torch.unique((x * 3).round(), return_inverse=True, return_counts=True)
    return values.exp() * 2, places + 1, counts.float().mean()


def routed(x):
    chosen, out = lin(x).argmax(-1), torch.zeros(len(x), 3)
    for each in range(2):
        at = torch.where(chosen == each)[0]
        out = out.index_add(0, at, lin(x[at]).relu() * (each + 1))
    return out


def writes(x):
    y, other = x * 2 + 1, torch.zeros_like(x)
    top, flat, same = y[0], y.view(-1), torch.zeros_like(x)
    top.add_(5)
    flat[-1] = 7
    same[x > 0] = 3
    kept = flat[flat > 1]
    return y.sin() + 1, kept * 2, top * 1, other - 1, same.exp()


def sparse(x):
    places = torch.stack([torch.arange(4), (x[0] > 0).long().cumsum(0) % 3])
    matrix = torch.sparse_coo_tensor(places, x.sum(0), (4, 4))
    return torch.sparse.mm(matrix, lin(x[:4])).relu() * 2


def jagged(x):
    nested = torch.nested.nested_tensor_from_jagged(x, torch.tensor([0, 2, len(x)]))
    return (lin(nested).relu() * 2).values(), lin(nested).to_padded_tensor(0.0)


class Pair(torch.Tensor):
    """Two tensors that go together."""

    @staticmethod
    def __new__(cls, a, b):
        return torch.Tensor._make_wrapper_subclass(
            cls, a.shape, strides=a.stride(), dtype=a.dtype, requires_grad=a.requires_grad
        )

    def __init__(self, a, b):
        self.a, self.b = a, b

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        sides = [
            func(*pytree.tree_map_only(cls, lambda each: getattr(each, side), args), **kwargs)
            for side in ("a", "b")
        ]
        made = isinstance(sides[0], torch.Tensor)
        return cls(*sides) if made else sides[0]


def wrapped(x):
    pair = Pair(x, x * 2)
    return ((pair @ lin.weight.detach().t()).sin() * 2).sum(0)


def plain(result):
    leaves = pytree.tree_leaves(result)
    return [
        side for each in leaves for side in ((each.a, each.b) if type(each) is Pair else [each])
    ]


PROGRAMS = [rows, counted, asks_sizes, several, routed, writes, sparse, jagged, wrapped]


@pytest.mark.covering
@pytest.mark.parametrize("learns", [False, True])
@pytest.mark.parametrize("program", PROGRAMS)
def test_one_graph(program, learns):
    if learns and program in (several, wrapped):
        return  # which have no gradients, or none to plain tensors
    compiled = dynfix.compile(program, fullgraph=True)
    torch.manual_seed(0)
    for size in (6, 6, 6, 7, 9):
        x = torch.randn(size, 4)
        found = []
        for fn in (program, compiled):
            lin.zero_grad()
            given = x.clone().requires_grad_(learns)
            results = plain(fn(given))
            if learns:
                sum(each.sum() for each in results if each.requires_grad).backward()
            found.append((results, given.grad, lin.weight.grad))
        (results, *gradients), (expected, *others) = found
        torch.testing.assert_close(results, expected)
        for one, other in zip(gradients, others, strict=True):
            assert (one is None) == (other is None)
            if one is not None:
                torch.testing.assert_close(one, other)


def test_what_stands_between_is_compiled_for_moving_sizes(monkeypatch):
    made = []
    version = PartProgram._version

    def noted(self, given):
        made.append(version(self, given))
        return made[-1]

    monkeypatch.setattr(PartProgram, "_version", noted)
    compiled = dynfix.compile(lambda x: x[x > 0].sin() * 2 + 1, fullgraph=True)
    for size in (5, 6, 7, 8, 9, 10):
        x = torch.arange(12.0) - 12 + size
        torch.testing.assert_close(compiled(x), x[x > 0].sin() * 2 + 1)
    assert len(made) == 2  # for one size, and for all


def test_an_error_of_the_library_is_eagers():
    def program(x, index):
        return x[x > 0][index] * 2

    compiled = dynfix.compile(program)
    for size in (3, 4, 3):
        x, index = torch.arange(6.0) - 6 + size, torch.tensor([size - 2])
        torch.testing.assert_close(compiled(x, index), program(x, index))
        with pytest.raises(IndexError):
            compiled(x, index + 7)


def test_inputs_that_only_the_library_takes():
    compiled = dynfix.compile(lambda a, x: (a @ x).relu() + a.shape[0], fullgraph=True)
    torch.manual_seed(0)
    for size, kind in ((4, "coo"), (4, "csr"), (4, "coo"), (5, "coo"), (5, "csr")):
        dense, x = torch.randn(size, 4) * (torch.rand(size, 4) > 0.5), torch.randn(4, 2)
        matrix = dense.to_sparse() if kind == "coo" else dense.to_sparse_csr()
        torch.testing.assert_close(compiled(matrix, x), (matrix @ x).relu() + size)


# -- classes that wrap a tensor


class Wrapping(torch.Tensor):
    @staticmethod
    def __new__(cls, inner, meta=None):
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)

    def __init__(self, inner, meta=None):
        self.inner, self.meta = inner, meta

    def __tensor_flatten__(self):
        return ["inner"], self.meta

    @classmethod
    def __tensor_unflatten__(cls, inner, meta, size, stride):
        return cls(inner["inner"], meta)

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        meta = next(each.meta for each in args if isinstance(each, Wrapping))
        plain = pytree.tree_map_only(Wrapping, lambda each: each.inner, args)
        made = pytree.tree_leaves(func(*plain, **(kwargs or {})))[0]
        return cls(made, meta) if isinstance(made, torch.Tensor) else made


FACTOR, SEEN = 1.0, []


class ByConstant(Wrapping):
    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        plain = pytree.tree_map_only(Wrapping, lambda each: each.inner, args)
        return ByConstant(func(*plain, **(kwargs or {})) * FACTOR)


class Logging(Wrapping):
    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        SEEN.append(func.__name__)
        plain = pytree.tree_map_only(Wrapping, lambda each: each.inner, args)
        return Logging(func(*plain, **(kwargs or {})))


class CountingItself(Wrapping):
    count = 0

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        cls.count += 1
        plain = pytree.tree_map_only(Wrapping, lambda each: each.inner, args)
        return CountingItself(func(*plain, **(kwargs or {})) * cls.count)


class Drawing(Wrapping):
    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        plain = pytree.tree_map_only(Wrapping, lambda each: each.inner, args)
        return Drawing(func(*plain, **(kwargs or {})) + random.random())


class ByMeta(Wrapping):
    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        meta = next(each.meta for each in args if isinstance(each, Wrapping))
        plain = pytree.tree_map_only(Wrapping, lambda each: each.inner, args)
        return ByMeta(func(*plain, **(kwargs or {})) * meta[0], meta)


@pytest.mark.parametrize("kind", [ByConstant, Logging, CountingItself, Drawing, ByMeta])
def test_what_a_class_does_besides_computing(kind, monkeypatch):
    found = []
    for call in (deeper, dynfix.compile(deeper)):
        SEEN.clear()
        CountingItself.count = 0
        random.seed(0)
        meta = [1.0]
        for turn in range(5):
            monkeypatch.setitem(globals(), "FACTOR", float(turn))
            meta[0] = turn
            values = call(kind(torch.arange(3.0), meta)).inner
            found.append(([round(each, 4) for each in values.tolist()], list(SEEN)))
    assert found[5:] == found[:5]


def deeper(x):
    return ((x * 2).sin() + 1).relu()


def test_a_class_that_only_computes_is_compiled(monkeypatch):
    kinds, version = [], WrappedProgram._version

    def noted(self, given):
        kinds.append(type(given[0]))
        return version(self, given)

    monkeypatch.setattr(WrappedProgram, "_version", noted)
    compiled = dynfix.compile(deeper)
    for turn in range(4):
        x = torch.arange(3.0) + turn
        assert torch.allclose(compiled(TwoTensor(x, x * 2)).b, deeper(x * 2))
    assert kinds == [TwoTensor]


@pytest.mark.parametrize("backend", ["eager", "native"])
def test_a_store_to_what_a_class_reads(backend):
    def stores(x):
        x.inner = x.inner + 1
        return x * 2

    compiled = dynfix.compile(stores, backend=backend)
    for turn in range(4):
        x = Wrapping(torch.arange(3.0) + turn)
        assert torch.equal(compiled(x).inner, (torch.arange(3.0) + turn + 1) * 2)
        assert torch.equal(x.inner, torch.arange(3.0) + turn + 1)
