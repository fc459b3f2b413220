"""Objects that were distinct stay distinct where that was asked or written; aliases across a graph
break; tensors that can be swapped."""

import dataclasses
import types
import weakref

import dynfix
import pytest
import torch
from helpers import Case, X, Y, call, one_graph, recordings, same

TOTALS = [1.0]


class Holder:
    def __init__(self, v):
        self.v = v


def written_and_read(o, p, x):
    o.v = 5.0
    return x * p.v


def appended_and_counted(d, x):
    d["a"].append(2)
    return x * len(d["b"])


def test_objects_become_one():
    one, two = Holder(1.0), Holder(1.0)
    same(lambda: written_and_read, (one, two, X), (one, one, X), (one, two, X), (one, one, X))


def test_lists_become_one():
    shared = [1]
    apart, together = {"a": [1], "b": [1]}, {"a": shared, "b": shared}
    same(lambda: appended_and_counted, (apart, X), (together, X), (apart, X), (together, X))


def test_an_argument_that_is_a_global():
    def make():
        totals = [1.0]
        namespace = {"TOTALS": totals, "__name__": __name__}

        def f(values, x):
            values.append(2.0)
            return x * len(TOTALS)

        return Case(fn=types.FunctionType(f.__code__, namespace), totals=totals)

    eager, compiled = make(), make()
    fn = dynfix.compile(compiled.fn, backend="eager")
    for own in (False, True, False, True):
        results = []
        for case, run in ((eager, eager.fn), (compiled, fn)):
            case.totals[:] = [1.0]
            results.append(run(case.totals if own else [1.0], X))
        assert torch.equal(*results)


class Tied(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.w, self.v = (torch.nn.Parameter(torch.ones(2, 3)) for _ in range(2))

    def forward(self, x):
        return x * 2 if self.w is self.v else x * 3


def test_parameters_tied_later():
    def tie(m):
        m.v = m.w

    fn = same(Tied, (X,), tie, (X,))
    one_graph(fn)


def test_is_among():
    def f(x, values):
        return x + 1 if any(x is y for y in values) else x - 1

    a, b = X.clone(), X.clone()
    fn = same(lambda: f, call(a, [b, b]), call(a, [a, b]), call(b, [a, a]), call(b, [a, b]))
    assert not [site for recording in recordings(fn) for site in recording.sites]


def test_objects_told_apart_need_not_be_the_same_ones():
    def f(a, b, x):
        return x + 1 if a is b else x - 1

    steps = [call(Holder(1.0), Holder(2.0), X) for _ in range(4)]
    assert len(recordings(same(lambda: f, *steps))) == 1


def test_an_alias_across_a_break():
    for backend in ("eager", "native"):

        def f(p, w, n):
            q = p.detach()
            if n > 0:
                q.add_(w)
            return p.sum()

        p, fn = torch.zeros(2), dynfix.compile(f, backend=backend)
        for turn in range(1, 4):
            assert fn(p, torch.ones(2), torch.ones(())).item() == 2.0 * turn


def test_parameters_can_be_swapped():
    m = torch.nn.Linear(2, 2, bias=False).requires_grad_(False)
    fn = dynfix.compile(m, backend="eager")
    x = torch.ones(1, 2)
    fn(x), fn(x)
    torch.utils.swap_tensors(m.weight, torch.nn.Parameter(torch.ones(2, 2), False))
    assert fn(x).tolist() == [[2.0, 2.0]]


@pytest.mark.parametrize("grad", (False, True))
@pytest.mark.parametrize("backend", ("eager", "native"))
def test_results_of_one_memory_are_objects_of_their_own(backend, grad):
    def f(x, w):
        y = x * 2
        return y.detach(), w * 2, y, y[:], y.reshape(-1).view(y.shape), y.t(), y.t()

    w = torch.ones(2, requires_grad=True)
    x = torch.arange(6.0).view(2, 3).requires_grad_(grad)
    same(lambda: f, *[(x, w), (x.detach(), w.detach())] * 3, backend=backend)


def test_data_that_was_another_inputs_by_chance():
    """`x.data = y` changes nothing where both share memory; later calls' inputs do not."""

    def assigned(x, y):
        x.data = y
        return x + 1

    def assigned_view(x, y):
        x.data = y[:]
        return x + 1

    def scaled(x, y):
        x.data *= y
        return x + 1

    for fn in (assigned, assigned_view, scaled):
        compiled = dynfix.compile(fn, backend="eager")
        one, other = torch.zeros(2), torch.rand(2)
        one.data = other
        compiled(one, other)
        for size in (2, 2, 1):
            x, y = torch.rand(2), torch.rand(size)
            plain = x.clone()
            assert torch.equal(compiled(x, y), fn(plain, y.clone()))
            assert torch.equal(x, plain)


def by_display(x, y, k):
    known = {x: 1, y: 2}
    return k * known[x] + len({x, y, x}) + (y in known)


def by_stores(x, y, k):
    known, seen = {}, set()
    for number, each in enumerate((x, y)):
        known[each] = number
        seen.add(each)
    return k * known[x] + len(seen) + sum(dict.fromkeys((x, y), 1).values())


def by_sets(x, y, k):
    return k * len({x} & {y}) + ({x} == {y}) + len(frozenset((x, y)))


@pytest.mark.parametrize("program", [by_display, by_stores, by_sets])
@pytest.mark.parametrize("make", [lambda: X.clone(), lambda: Holder(1.0)], ids=["tensor", "object"])
def test_what_is_a_key_is_told_apart(program, make):
    x, y = make(), make()
    steps = ((x, y), (x, y), (x, x), (y, x), (y, y))
    compiled = dynfix.compile(program, backend="eager")
    for a, b in steps:
        assert torch.equal(compiled(a, b, X), program(a, b, X))


def found_by_an_object(keys, at, table, x):
    return x + table.get(keys[at], 7.0)


def asked_of_a_set(keys, at, table, x):
    return x + (1.0 if (keys[at], 1) in {(each, 1): 0 for each in table} else 5.0)


def held_weakly(keys, at, table, x):
    return x + (1.0 if keys[at] in WEAK else 5.0)


def found_on_the_way(keys, at, table, x):
    for each in table:
        if each is keys[at]:
            return x * 2
    return x - 1


def subscripted(keys, at, table, x):
    return x * table[keys[at]] if keys[at] in table else -x


WEAK = weakref.WeakSet()


@pytest.mark.parametrize(
    "program",
    [found_by_an_object, found_on_the_way, asked_of_a_set, held_weakly, subscripted],
    ids=lambda p: p.__name__,
)
def test_which_key_is_asked_of_a_table(program):
    keys = [Holder(1.0), Holder(2.0), Holder(3.0)]
    table = {keys[0]: 1.0, keys[1]: 2.0}
    WEAK.update(keys[:2])
    compiled = dynfix.compile(program, backend="eager")
    for first, second in ((0, 1), (0, 1), (1, 0), (2, 0), (2, 2), (0, 0), (1, 2)):
        for at in (0, 1):
            given = ([keys[first], keys[second]], at, table, X)
            assert torch.equal(compiled(*given), program(*given))


@dataclasses.dataclass(frozen=True)
class Point:
    x: int


def by_equal_key(at, one, other, table, x):
    return x * table.get(at, -1.0) + (at in table)


def containers_compared(at, one, other, table, x):
    return x + ((one, 1) == (other, 1)) + 2 * ([one] == [other]) + 4 * ({1: one} == {1: other})


@pytest.mark.parametrize("program", [by_equal_key, containers_compared])
def test_what_containers_compare(program):
    a, b = Holder(1.0), Holder(1.0)
    table = {Point(1): 2.0, Point(2): 3.0}
    compiled = dynfix.compile(program, backend="eager")
    for at, one, other in ((3, a, b), (1, a, a), (2, b, b), (3, b, a), (1, a, b)):
        given = Point(at), one, other, table, X
        assert torch.equal(compiled(*given), program(*given))


def test_what_is_deleted_in_the_call_dies_there():
    def deleted(x):
        y = x * 2
        weak = weakref.ref(y)
        shown = weak() + 1  # the recording ends here, and notes the variables
        del y
        return shown, weak() is None

    compiled = dynfix.compile(deleted, backend="eager")
    for x in (X, -X, X):
        assert compiled(x)[1]


def test_a_variable_bound_anew_lets_go_of_what_it_held():
    def asked(seen, value):
        alive = sum(each() is not None for each in seen)
        seen.append(weakref.ref(value))
        return alive

    def layers(x, seen):
        counts = []
        for _ in range(4):
            x = x * 2
            counts.append(asked(seen, x))
        return x, counts

    assert dynfix.compile(layers, backend="eager")(X, [])[1] == [0, 0, 0, 0]


class Part(torch.nn.Module):
    """Knows the module that it is part of, without owning it."""

    def __init__(self, whole):
        super().__init__()
        object.__setattr__(self, "whole", weakref.ref(whole))

    def forward(self, x):
        whole = self.whole()
        return x if whole is None else x * whole.scale


def test_what_a_weak_reference_leads_to_is_read():
    def make():
        whole = torch.nn.Module()
        whole.scale = 2.0
        part = Part(whole)
        return Case(fn=lambda x: part(x), part=part, held=[whole])

    def other(case):
        case.held[0] = torch.nn.Module()
        case.held[0].scale = 7.0
        object.__setattr__(case.part, "whole", weakref.ref(case.held[0]))

    fn = same(
        make,
        *[(X,), (X,)],
        lambda case: setattr(case.held[0], "scale", 5.0),
        *[(X,), (X,)],
        other,
        *[(X,), (X,)],
        lambda case: case.held.clear(),
        *[(X,), (X,)],
    )
    assert all(len(recording.segments) == 1 for recording in recordings(fn))


def test_weak_references_that_a_call_makes_are_kept():
    def make():
        counts, seen, keys = weakref.WeakKeyDictionary(), [], [Holder(1.0), Holder(2.0)]

        def fn(x, at):
            key = keys[at]
            counts[key] = counts.get(key, 0) + 1
            seen.append(weakref.ref(key))
            return x * counts[key] + len(counts)

        def watch():
            return sorted(counts.values()), [each() is keys[0] for each in seen]

        return Case(fn=fn, watch=watch, keys=keys)

    same(make, *[(X, at) for at in (0, 1, 0, 1, 0, 1)])


def test_a_list_that_holds_itself_has_a_type():
    def program(x):
        held = [x]
        held.append(held)
        return x * 2, type(held), len(held), held[1] is held

    one_graph(same(lambda: program, (X,), (Y,), (X,)))


def test_what_stands_behind_an_element_may_change():
    """As torch's own lists of types do, when a part of torch is loaded."""
    kinds = [int, float]
    fn = same(lambda: lambda x, kind: x * 2 if kind in kinds else x * 3, (X, int), (X, int))
    kinds.append(str)
    assert torch.equal(fn(X, int), X * 2) and len(recordings(fn)) == 1
    kinds.remove(int)
    assert torch.equal(fn(X, int), X * 3) and len(recordings(fn)) == 2
