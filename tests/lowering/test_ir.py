import itertools
import random

import pytest
import torch
from dynfix.lowering.loops import legality, sizes
from dynfix.lowering.loops.dump import dump
from dynfix.lowering.loops.ir import Buffer, Const, Group, Load, Nest, Op, Store
from dynfix.lowering.loops.sizes import FloorDiv, Index, Mod
from dynfix.runtime.errors import LoweringError

from .examples import EXAMPLES


def evaluate(index: Index, values):
    total = index.offset
    for atom, factor in index.terms:
        if isinstance(atom, FloorDiv):
            total += factor * (evaluate(atom.base, values) // atom.divisor)
        elif isinstance(atom, Mod):
            total += factor * (evaluate(atom.base, values) % atom.divisor)
        else:
            total += factor * values[atom]
    return total


@pytest.mark.parametrize("seed", range(60))
def test_simplified_indices_keep_their_value(seed):
    rng = random.Random(seed)
    axes = sizes.make_axes([rng.choice([2, 3, 4, 6]) for _ in range(3)])
    index = sizes.linear(axes, [rng.choice([1, 2, 3, 12]) for _ in axes], rng.choice([0, 1, 5]))
    plain = []
    for _ in range(3):
        d, kind = rng.choice([2, 3, 4, 6, 12]), rng.choice([sizes.floordiv, sizes.mod])
        plain.append((kind, d))
        index = (
            kind(index, d)
            if rng.random() < 0.6
            else sizes.add(kind(index, d), sizes.scale(index, rng.choice([1, d])))
        )
        low, high = sizes.bounds(index)
        points = itertools.product(*(range(a.size) for a in axes))
        found = [evaluate(index, dict(zip(axes, point, strict=True))) for point in points]
        assert low <= min(found) and max(found) <= high


def test_division_by_a_divisor_and_back_is_exact():
    axes = sizes.make_axes((4, 6, 5))
    flat = sizes.linear(axes, (30, 5, 1))
    assert sizes.delinear(flat, (4, 6, 5)) == tuple(sizes.atom_index(a) for a in axes)
    merged = sizes.atom_index(sizes.Axis(0, 120))
    parts = sizes.delinear(merged, (4, 6, 5))
    assert sizes.linear(parts, (30, 5, 1)) is merged


@pytest.mark.parametrize("seed", range(40))
def test_floordiv_and_mod_agree_with_python(seed):
    rng = random.Random(seed)
    axes = sizes.make_axes([rng.choice([2, 3, 4, 6]) for _ in range(3)])
    index = sizes.linear(axes, [rng.choice([1, 2, 3, 12]) for _ in axes], rng.choice([0, 1, 5]))
    first, second = rng.choice([2, 3, 4, 6]), rng.choice([2, 3, 12])
    for one, two in itertools.product((sizes.floordiv, sizes.mod), repeat=2):
        made = two(one(index, first), second)
        plain = {sizes.floordiv: lambda a, b: a // b, sizes.mod: lambda a, b: a % b}
        for point in itertools.product(*(range(a.size) for a in axes)):
            values = dict(zip(axes, point, strict=True))
            assert evaluate(made, values) == plain[two](
                plain[one](evaluate(index, values), first), second
            )


def test_nodes_are_interned_and_floats_told_apart():
    buffer = Buffer("x", torch.float32, 4)
    assert Buffer("x", torch.float32, 4) is buffer
    assert Const(0.0, torch.float32) is not Const(-0.0, torch.float32)
    assert Const(1, torch.int64) is not Const(True, torch.bool)
    assert Const(float("nan"), torch.float32) is Const(float("nan"), torch.float32)


@pytest.mark.parametrize("make", EXAMPLES, ids=lambda make: make.__name__)
def test_examples_are_legal_and_print(make):
    group, _, expected = make()
    legality.check([group], "examples")
    text = dump(group)
    assert all(name + "[" in text for name in expected)


def _nest(value, buffer, index=None, space=(4,)):
    at = sizes.atom_index(sizes.Axis(0, space[0])) if index is None else index
    return Group("k", space, (Nest(space, (), (Store(buffer, at, value),)),))


X, Y = Buffer("x", torch.float32, 4), Buffer("y", torch.float32, 4)
AT = sizes.atom_index(sizes.Axis(0, 4))


@pytest.mark.parametrize(
    ("group", "message"),
    [
        (_nest(Load(X, sizes.add(AT, sizes.const(1))), Y), "runs from 1 to 4"),
        (_nest(Load(X, AT), Buffer("y", torch.float64, 4)), "is given"),
        (_nest(Op("nothing", (Load(X, AT),), torch.float32), Y), "no operation nothing"),
        (_nest(Op("add", (Load(X, AT), Const(1, torch.int64)), torch.float32), Y), "add of"),
        (_nest(Load(X, sizes.atom_index(sizes.Axis(0, 3))), Y), "not one of the nest's"),
        (_nest(Load(Buffer("t", torch.float32, 1, "local"), sizes.ZERO), Y), "before it is stored"),
        (_nest(Load(Buffer("y", torch.float32, 9), AT), Y), "two buffers are named y"),
    ],
)
def test_illegal_nests_are_refused(group, message):
    with pytest.raises(LoweringError, match=message):
        legality.check([group], "a test")
