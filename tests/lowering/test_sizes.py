"""Arithmetic on sizes that only a call knows, against numbers."""

import itertools
import math
import random

import pytest
from dynfix.lowering.loops import polynomials, sizes
from dynfix.lowering.loops.ir import Buffer
from dynfix.lowering.loops.polynomials import (
    Var,
    at_least,
    common,
    divided,
    evaluate,
    least,
    split,
    variable,
)
from dynfix.lowering.loops.storage import pack_slots
from dynfix.lowering.loops.symint import GraphSymbols
from torch import float32, uint8
from torch._dynamo.source import ConstantSource
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv

N, M = Var("n", 7, 2), Var("m", 5, 2)
A, B = variable(N), variable(M)
NUMBERS = [{N: 2, M: 2}, {N: 7, M: 5}, {N: 3, M: 11}, {N: 64, M: 9}]
FACTORS = [2, 3, 4, 64, A, B, A * B, A * 4, B * 64, A + 1, B - 1]


def value(index, places, numbers):
    """The index for axis values `places`."""

    def of(atom):
        if isinstance(atom, sizes.Axis):
            return places[atom.number]
        base, divisor = value(atom.base, places, numbers), evaluate(atom.divisor, numbers)
        return base // divisor if isinstance(atom, sizes.FloorDiv) else base % divisor

    return evaluate(index.offset, numbers) + sum(
        evaluate(f, numbers) * of(a) for a, f in index.terms
    )


def test_arithmetic_is_that_of_polynomials():
    assert (A + 1) * (B - 1) == A * B - A + B - 1 and A - A == 0 and 2 * A - A == A
    assert str(A * B * 64 + 3) == "(m * n * 64 + 3)" and str(A) == "n"
    assert divided((A + 1) * (B - 1), B - 1) == A + 1 and divided(A * B + 1, B) is None
    assert split(A * B - 1, B) == (A - 1, B - 1) and split(64 * A - 1, 64) == (A - 1, 63)
    assert common(A * 64, A * B * 32)[0] == A * 32
    assert at_least(A * B - 4, 0) and not at_least(A - 3, 0) and least(A * B - A) == 2
    assert at_least(12 - variable(Var("k", 3, 2, most=12)), 0)


@pytest.mark.parametrize(
    "question",
    [lambda: A < 3, lambda: bool(A), lambda: A // 2, lambda: range(A), lambda: max(A, 3)],
)
def test_no_answer_is_guessed(question):
    with pytest.raises(polynomials.UnknownSize):
        question()


def test_regrouped_axes_agree_with_numbers():
    chosen = random.Random(0)
    for _ in range(400):
        shape = [chosen.choice(FACTORS) for _ in range(chosen.randint(1, 4))]
        flat = sizes.linear(sizes.make_axes(shape), sizes.contiguous_strides(shape))
        other, rest = [], math.prod(shape)
        for factor in chosen.sample(FACTORS, 3):
            if divided(rest, factor) is not None:
                other.append(factor)
                rest = divided(rest, factor)
        other.insert(chosen.randint(0, len(other)), rest)
        made = sizes.delinear(flat, other)
        for numbers in NUMBERS:
            lengths = [evaluate(size, numbers) for size in shape]
            if min(lengths) < 1:
                continue
            places = {k: chosen.randrange(length) for k, length in enumerate(lengths)}
            whole = value(flat, places, numbers)
            assert (
                value(sizes.linear(made, sizes.contiguous_strides(other)), places, numbers) == whole
            )
            for d, index in enumerate(made):
                found = whole // evaluate(math.prod(other[d + 1 :]), numbers)
                assert value(index, places, numbers) == (
                    found % evaluate(other[d], numbers) if d else found
                )


def test_divisions_and_bounds_agree_with_numbers():
    chosen = random.Random(1)
    for _ in range(800):
        shape = [chosen.choice(FACTORS) for _ in range(3)]
        terms = [
            sizes.atom_index(axis, chosen.choice([1, 2, -1, A, B, A * B, A - B]))
            for axis in sizes.make_axes(shape)
        ]
        index = sizes.add(*terms, sizes.const(chosen.choice([0, 1, -1, A - 1, A * B - 1, -A, 5])))
        one, two = chosen.choice(FACTORS), chosen.choice(FACTORS)
        made = (
            sizes.floordiv(sizes.mod(index, one), two),
            sizes.mod(sizes.floordiv(index, one), two),
            index,
        )
        for numbers in NUMBERS:
            if any(evaluate(size, numbers) < 1 for size in (*shape, one, two)):
                continue
            places = {k: chosen.randrange(evaluate(size, numbers)) for k, size in enumerate(shape)}
            whole, d, e = (
                value(index, places, numbers),
                evaluate(one, numbers),
                evaluate(two, numbers),
            )
            found = [value(m, places, numbers) for m in made]
            assert found == [whole % d // e, whole // d % e, whole]
            for number, m in zip(found, made, strict=True):
                low, high = sizes.bounds(m)
                assert low is None or evaluate(low, numbers) <= number
                assert high is None or number <= evaluate(high, numbers)


def test_live_buffers_of_run_time_sizes_share_no_bytes():
    chosen = random.Random(2)
    for _ in range(50):
        wanted = []
        for k in range(12):
            first, dtype = k // 2, chosen.choice([float32, uint8])
            buffer = Buffer(
                f"b{k}", dtype, chosen.choice([A, B, A * B, A * 3 + 1, A * 16, A * B + B])
            )
            wanted.append(
                (first, first + chosen.randrange(4), buffer.size * dtype.itemsize, buffer)
            )
        places, total, variables = pack_slots(wanted, 128)
        for numbers in NUMBERS:
            known = dict(numbers)
            for var in variables:
                known[var] = evaluate(var.formula[1][0], known) // var.formula[1][1]
            spans = [
                (evaluate(places[b], known), evaluate(places[b] + n, known), f, e)
                for f, e, n, b in wanted
            ]
            assert all(
                low >= 128 and high <= evaluate(total, known) and low % 64 == 0
                for low, high, _, _ in spans
            )
            for i, (low, high, first, end) in enumerate(spans):
                for start, stop, begin, close in spans[i + 1 :]:
                    assert end < begin or close < first or high <= start or stop <= low


def number(env, value):
    source = ConstantSource(f"number{value}")
    return env.create_symintnode(
        env.create_symbol(value, source, DimDynamic.DYNAMIC), hint=value, source=source
    )


def test_variables_are_found_in_what_a_call_is_given():
    env = ShapeEnv()
    n, m = number(env, 5), number(env, 7)
    direct = GraphSymbols([("x", n * m), ("y", m), ("z", n * m)])
    assert [given.text for given in direct.variables] == ["y", "(x - 0) // n1"]
    assert (
        polynomials.hint(direct.size(n)) == 5
        and direct.size(n * m + 1) == direct.size(n) * direct.size(m) + 1
    )
    solved = GraphSymbols([("x", n * 3 + 1)])
    assert [given.text for given in solved.variables] == ["(x - 1) // 3"] and polynomials.hint(
        solved.size(n)
    ) == 5
    assert (
        solved.size((n * 4) // 2) == solved.size(n) * 2
        and polynomials.hint(solved.size(n // 2)) == 2
    )


def test_what_cannot_be_taken_apart_is_a_variable_itself():
    env = ShapeEnv()
    n, m = number(env, 5), number(env, 7)
    symbols = GraphSymbols([("x", n * m), ("y", n * m), ("z", n * n + m * m)])
    names = [given.var.name for given in symbols.variables]
    assert len(set(names)) == len(names) == 2 and [given.text for given in symbols.variables] == [
        "x",
        "z",
    ]
    assert polynomials.hint(symbols.size(n * m)) == 35
    with pytest.raises(polynomials.Unsupported):
        symbols.size(n)


def test_indices_that_are_never_equal_have_no_value_in_common():
    def taken(index, axes):
        return {value(index, places, {}) for places in itertools.product(*map(range, axes))}

    r, found = random.Random(0), 0
    for _ in range(3000):
        made = []
        outer = r.choice((6, 8, 12, 24))
        for _ in range(2):
            axes = [r.randint(1, 4) for _ in range(3)]
            steps = [r.choice((outer, outer, 1)), r.choice((1, 2, 3, 0)), r.choice((48, 96, 4, 1))]
            terms = [
                (sizes.Axis(k, n), f) for k, (n, f) in enumerate(zip(axes, steps, strict=True))
            ]
            index = sizes.const(r.randint(0, 9))
            for axis, factor in terms:
                index = sizes.add(index, sizes.scale(sizes.atom_index(axis), factor))
            made.append((index, axes))
        (one, mine), (two, its) = made
        if sizes.never_equal(one, two):
            found += 1
            assert taken(one, mine).isdisjoint(taken(two, its)), (one, two)
    assert found > 300
