"""Statements that raise, in calls that catch it: nothing is done again at later calls, and what
decides whether they raise is guarded."""

import collections
import copy
import functools
import itertools

import dynfix
import pytest
import torch
from helpers import Case, X, Y, same

CAUGHT = IndexError, KeyError, ValueError, TypeError, ZeroDivisionError


def _half_taken():
    yield 1
    raise ValueError


CASES = {
    "pop": (lambda o: o.pop(), [1]),
    "pop at": (lambda o: o.pop(2), [1, 2, 3]),
    "remove": (lambda o: o.remove(3), [3]),
    "del": (lambda o: o.__delitem__(2), [1, 2, 3]),
    "insert": (lambda o: o.insert("a", 1), [1]),
    "extend": (lambda o: o.extend(_half_taken()), [1]),
    "sort": (lambda o: o.sort(), [2, 1]),
    "pop key": (lambda o: o.pop("k"), {"k": 1}),
    "popitem": (lambda o: o.popitem(), {"k": 1}),
    "append to a value": (lambda o: o["k"].append(1), {"k": [2]}),
    "unhashable": (lambda o: o.setdefault([], 1), {"k": 1}),
    "pop of a set": (lambda o: o.pop(), {1}),
    "remove of a set": (lambda o: o.remove(1), {1}),
    "popleft": (lambda o: o.popleft(), collections.deque([1])),
    "move to the end": (lambda o: o.move_to_end("k"), collections.OrderedDict(k=1)),
}


def store_item(x, o):
    try:
        o[2] = 1
    except CAUGHT:
        return x * 2
    return x * 3


def delete_item(x, o):
    try:
        del o[2]
    except CAUGHT:
        return x * 2
    return x * 3


def add_to_key(x, o):
    try:
        o[2] += 1
    except CAUGHT:
        return x * 2
    return x * 3


def check(fn, full, order):
    call = dynfix.compile(fn)
    for is_full in order:
        given = copy.deepcopy(full) if is_full else type(full)()
        other, x = copy.deepcopy(given), torch.randn(2)
        torch.testing.assert_close(call(x, given), fn(x, other))
        assert given == other


@pytest.mark.parametrize("order", [(0, 0, 1, 1, 0), (1, 1, 0, 0, 1), (1, 0, 1)])
@pytest.mark.parametrize("name", CASES)
def test_methods(name, order):
    ask, full = CASES[name]

    def fn(x, o):
        try:
            ask(o)
        except CAUGHT:
            return x * 2
        return x * 3

    check(fn, full, order)


@pytest.mark.parametrize("order", [(0, 0, 1, 1, 0), (1, 1, 0, 0, 1), (1, 0, 1)])
@pytest.mark.parametrize("full", [[1, 2, 3], {2: 5}], ids=["list", "dict"])
@pytest.mark.parametrize("fn", [store_item, delete_item, add_to_key])
def test_statements(fn, full, order):
    check(fn, full, order)


def test_a_weak_table_is_asked_again_and_again():
    """Its removals are taken from a list until that raises."""
    import weakref

    class Key:
        pass

    keys = [Key(), Key()]
    table = weakref.WeakKeyDictionary({key: number for number, key in enumerate(keys)})

    def fn(x):
        return x * len(table) + sum(table.values())

    call = dynfix.compile(fn)
    for _ in range(3):
        x = torch.randn(2)
        torch.testing.assert_close(call(x), fn(x))
    keys.pop()
    torch.testing.assert_close(call(x), fn(x))


@pytest.mark.parametrize("place", [0, -1])
def test_a_list_that_grows_is_stored_to(place):
    kept = [0.0]

    def fn(x):
        kept[place] = x.sum()
        return x * 2

    call = dynfix.compile(fn)
    for turn in range(12):
        x = torch.randn(3)
        torch.testing.assert_close(call(x), x * 2)
        torch.testing.assert_close(kept[place], x.sum())
        kept.append(float(turn))
    assert len(call._dynfix_entry.recordings) == 1


USES = {
    "list": list,
    "tuple": tuple,
    "set": set,
    "sum": lambda pairs: sum(len(pair) for pair in pairs),
    "any": lambda pairs: any(map(bool, pairs)) or any(pairs),
    "all": all,
    "sorted": sorted,
    "max": max,
    "reduce": lambda pairs: functools.reduce(lambda a, b: a + b, pairs),
    "next": lambda pairs: [next(pairs), next(pairs)],
    "dict": dict,
    "loop": lambda pairs: [pair for pair in pairs],
}


@pytest.mark.parametrize("use", USES.values(), ids=USES)
def test_an_iterator_that_raises_is_not_asked_again(use):
    def f(x):
        try:
            found = use(zip([1], [1, 2], strict=True))
        except ValueError as error:
            return x * 2, str(error)
        return x, found

    same(lambda: f, (X,), (Y,), (X,))


class Failing:
    """An iterator of the user's, which notes how often it is asked."""

    def __init__(self, asked):
        self.asked = asked

    def __iter__(self):
        return self

    def __next__(self):
        self.asked.append(len(self.asked))
        if len(self.asked) % 3 == 0:
            raise KeyError("no more")
        return 1


TAKEN_BY_C = {
    "deque": lambda failing, kept: collections.deque(failing),
    "product": lambda failing, kept: itertools.product(failing, [1]),
    "+=": lambda failing, kept: kept[0].__iadd__(failing),
    "&=": lambda failing, kept: kept[1].intersection_update(failing),
    "-=": lambda failing, kept: kept[1].difference_update(failing),
}


@pytest.mark.parametrize("use", TAKEN_BY_C.values(), ids=TAKEN_BY_C)
def test_what_the_users_code_did_below_c_before_it_raised_is_done_once(use):
    def make():
        asked, kept = [], ([], {1, 2})

        def f(x):
            try:
                use(Failing(asked), kept)
            except KeyError:
                kept[0].append(x.shape[0])
            return x * len(kept[0])

        return Case(fn=f, watch=lambda: (list(asked), list(kept[0]), sorted(kept[1])))

    same(make, (X,), (Y,), (X,))


def test_an_object_that_is_called_is_not_asked_for_its_hash():
    asked = []

    class Double:
        def __call__(self, x):
            return x * 2

        def __eq__(self, other):
            return self is other

        def __hash__(self):
            asked.append(1)
            return 0

        def __getattr__(self, name):
            asked.append(name)
            raise AttributeError(name)

    double = Double()
    compiled = dynfix.compile(lambda x: double(x), fullgraph=True)
    for x in (X, Y, X):
        assert torch.equal(compiled(x), x * 2)
    assert not asked
