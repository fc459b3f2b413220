"""Objects that a model fills call by call, as caches of keys and values are: fresh ones are what
the recorded one was before the call."""

import dataclasses
import functools

import dynfix
import pytest
import torch
from counting_graphs import Counting
from helpers import Case, X, one_graph, recordings, same


class Layer:
    def __init__(self):
        self.ready = False

    def update(self, x):
        if not self.ready:
            self.dtype = x.dtype
            self.kept = torch.zeros(0, *x.shape[1:])
            self.ready = True
        self.kept = torch.cat([self.kept, x])
        return self.kept


@dataclasses.dataclass
class Output:
    value: torch.Tensor
    layer: Layer

    def __setattr__(self, name, value):
        super().__setattr__(name, value)


def _generate(step, x, turns):
    layer, results = Layer(), []
    for turn in range(turns):
        results.append(step(x if turn == 0 else x[:1] * turn, layer).value)
    return results


@pytest.mark.parametrize("name", ["eager", "native"])
def test_the_second_run_records_nothing(name):
    def step(x, layer):
        return Output(layer.update(x * 2).sum(0), layer)

    compiled = dynfix.compile(step, backend=name)
    x = torch.randn(4, 3)
    torch.testing.assert_close(_generate(compiled, x, 6), _generate(step, x, 6))
    before = len(recordings(compiled))
    torch.testing.assert_close(_generate(compiled, x, 9), _generate(step, x, 9))
    assert before == len(recordings(compiled))


def test_what_the_call_stored_is_no_condition():
    def step(x, layer):
        layer.count = x.shape[0]
        layer.count += 1
        return Output(x * layer.count, layer)

    backend = Counting()
    compiled = dynfix.compile(step, backend=backend)
    for _ in range(4):
        layer = Layer()
        assert torch.equal(compiled(torch.ones(3), layer).value, torch.full((3,), 4.0))
        assert layer.count == 4
    assert backend.built == 1


def test_other_keys_of_a_dict_do_not_matter():
    def make():
        table = {"b": 2.0}

        def fn(x):
            scale = table.get("a", 1.0)
            return x * (3.0 if "b" in table else 5.0) + scale

        return Case(fn=fn, table=table)

    def more(case):
        case.table[f"c{len(case.table)}"] = 1

    fn = same(make, (X,), more, (X,), more, (X,), (X,))
    one_graph(fn)
    steps = (lambda case: case.table.__setitem__("a", 7.0)), (lambda case: case.table.pop("b"))
    same(make, (X,), steps[0], (X,), steps[1], (X,), steps[0], (X,))


def test_a_dict_that_says_it_has_every_key():
    class Full(dict):
        def __contains__(self, key):
            return True

        def __missing__(self, key):
            return 9

    def make():
        table = Full(a=1)

        def fn(x):
            return x * table["b"] + ("c" in table) + table.get("d", 5)

        return Case(fn=fn, table=table)

    put = (lambda case, name=name: case.table.__setitem__(name, 3) for name in "bcd")
    same(make, (X,), *(step for each in put for step in (each, (X,), (X,))))


def test_a_cached_function_that_answers_none():
    def make():
        table = {}

        @functools.cache
        def found(name):
            return table.get(name)

        def fn(x):
            scale = found("a")
            return x if scale is None else x * scale

        return Case(fn=fn, table=table, found=found)

    def put(case):
        case.table["a"] = 3.0

    same(make, (X,), (X,), put, (X,), lambda case: case.found.cache_clear(), (X,), (X,))


def test_a_cached_function_answers_what_it_holds():
    def make():
        scale, given = [2], [3]

        class Own:
            factor = 10

            @functools.cache  # noqa: B019
            def times(self, n):
                return self.factor * n

        own = Own()

        @functools.lru_cache(maxsize=1)
        def scaled(n):
            return n * scale[0]

        def fn(x):
            return x * scaled(given[0]) + own.times(2)

        state = dict(scale=scale, given=given, scaled=scaled, own=own)
        return Case(fn=fn, watch=lambda: scaled.cache_info().misses, **state)

    same(
        make,
        (X,),
        (X,),
        lambda case: case.scale.__setitem__(0, 5),
        (X,),
        lambda case: case.scaled.cache_clear(),
        (X,),
        (X,),
        lambda case: case.scaled(7),
        lambda case: case.scale.__setitem__(0, 9),
        (X,),
        lambda case: setattr(case.own, "factor", 50),
        (X,),
        lambda case: type(case.own).times.cache_clear(),
        (X,),
        (X,),
    )


def test_what_a_cache_holds_is_read_anew():
    """Lists, objects, tensors and modules that a cached function gave are used again, changed by
    calls and between them."""

    def make():
        class Found:
            hits = 0

        @functools.cache
        def several(n):
            return [n], Found(), torch.full((3,), float(n))

        @functools.cache
        def layer(n):
            torch.manual_seed(n)
            return torch.nn.Linear(3, 3)

        def fn(x, n):
            filled, found, table = several(n)
            filled.append(0)
            found.hits += 1
            return layer(n)(x) * table + len(filled) + found.hits

        return Case(fn=fn, several=several, layer=layer)

    steps = (X, 1), (X, 1), (X, 2), (X, 1), (X, 2)
    clear = (lambda case: case.several.cache_clear()), (lambda case: case.layer.cache_clear())
    zero = lambda case: case.several(1)[2].zero_()  # noqa: E731
    same(make, *steps, zero, *steps, clear[0], *steps, clear[1], *steps)


def test_a_cache_that_forgets_is_pure():
    @functools.lru_cache(maxsize=1)
    def limits(n):
        return n, (n + 1, "a")

    fn = same(lambda: lambda x, n: x * limits(n)[0] + limits(n)[1][0], *[(X, 1), (X, 2)] * 3)
    assert len(recordings(fn)) == 2


def test_a_cached_tensor_stays_that_of_the_first_call():
    def make():
        @functools.cache
        def normal(weight):
            return weight.detach() / weight.detach().norm()

        weight = torch.nn.Parameter(torch.ones(3))
        return Case(fn=lambda x: x * normal(weight), weight=weight, normal=normal)

    def write(case):
        with torch.no_grad():
            case.weight[0] = 5.0

    same(make, (X,), (X,), write, (X,), lambda case: case.normal.cache_clear(), (X,), (X,))
