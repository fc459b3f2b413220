"""The standard library in captured code: what changes containers from outside reads no more of
them than it needs, so that a call serves the next ones."""

import bisect
import collections
import heapq
import itertools
import operator
import os
import re
import statistics
import types

import dynfix
import pytest
import torch
from helpers import Case, X, Y, one_graph, same, tensor, watching

FOUR = [(X,), (Y,), (X,), (Y,)]


def heaps(s, x):
    heap = []
    for index, value in enumerate([3, 1, 2, 1, 5]):
        heapq.heappush(heap, (value, index, x * value))
        if len(heap) > 3:
            heapq.heappop(heap)
    kept = [3, 5, 4, 8]
    heapq.heapify(kept)
    s.seen = heapq.heapreplace(kept, 9), heapq.heappushpop(kept, 1), heapq.nlargest(2, kept)
    try:
        heapq.heappop([])
    except IndexError as error:
        s.error = str(error)
    return heapq.heappop(heap)[2], heap, kept, list(heapq.merge([1, 3], [2]))


def sentinels(s, x):
    values, nan = iter([3, 2, 0, 5]), float("nan")
    until_zero = list(iter(lambda: next(values), 0))
    until_nan = list(iter(iter([1.0, nan, 2.0]).__next__, nan))
    return x * len(until_zero), until_zero, until_nan, list(values)


def ended(s, x):
    def give():
        raise StopIteration

    return x, list(iter(give, 0))


@pytest.mark.parametrize("body", [heaps, sentinels, ended])
def test_one_recording(body):
    one_graph(same(watching(body), *FOUR))


def test_heap_from_outside():
    def body(s, x):
        heapq.heapify(s.heap)
        least = heapq.heappop(s.heap)
        heapq.heappush(s.heap, least)
        return x * least, s.heap[0]

    one_graph(same(watching(body, heap=lambda: [5, 3, 8, 3]), *FOUR))


@pytest.mark.parametrize("kind", [dict, collections.OrderedDict])
def test_lists_that_grow_in_a_dict(kind):
    def body(s, x):
        s.kept.setdefault("seen", []).append(x.detach() * 2)
        s.kept.setdefault("n", 3)
        return x * s.kept["n"]

    one_graph(same(watching(body, kept=kind), *FOUR, (X,), (Y,)), 2)


def test_popped_and_stored_again():
    def body(s, x):
        state = s.kept.pop("state")
        s.kept["state"] = state * 2 + x
        return s.kept.pop("absent", 4) * x, s.kept.setdefault("state"), len(s.kept)

    same(watching(body, kept=lambda: {"state": tensor(1, 2, 3), "other": []}), *FOUR)


def test_what_is_not_there_raises():
    def body(s, x):
        found = []
        for key in ("a", "b", [1]):
            try:
                found.append(s.kept.pop(key))
            except (KeyError, TypeError) as error:
                found.append(type(error))
        return x, found

    same(watching(body, kept=lambda: {"a": 1}), *FOUR)


def test_a_list_sorted_by_a_function():
    def body(s, x):
        s.kept.sort(key=lambda pair: pair[0])
        s.names.sort(key=len, reverse=True)
        return x * s.kept[0][0], s.names[0]

    state = {"kept": lambda: [(3, "a"), (1, "b"), (2, "c")], "names": lambda: ["a", "ccc", "bb"]}
    one_graph(same(watching(body, **state), *FOUR), 2)


def test_a_list_of_tensors_sorted_by_value():
    def body(s, x):
        s.kept.append(x.sum())
        s.kept.sort(key=lambda t: t.item())
        return s.kept[0] * x

    same(watching(body, kept=list), (X,), (Y,), (X * 3,), (Y,))


def test_a_sort_that_raises_halfway():
    def body(s, x):
        try:
            s.kept.sort(key=lambda value: value if value < 3 else "text")
        except TypeError:
            return x * s.kept[0]

    same(watching(body, kept=lambda: [1, 2, 3]), *FOUR)


def test_methods_and_namespaces_of_what_changes():
    """To bind a method to an object is not to read it."""

    class Counter:
        n = 0

    def body(s, x):
        s.counter.n += 1
        s.counter.scaled = types.MethodType(lambda self, value: value * self.n, s.counter)
        s.counter.last = types.SimpleNamespace(owner=s.counter, value=x)
        return s.counter.scaled(s.counter.last.value)

    def make():
        state = Case(counter=Counter())
        return Case(fn=lambda x: body(state, x), watch=lambda: state.counter.n)

    one_graph(same(make, *FOUR, (X,), (Y,)), 3)


def test_inference_mode_that_is_off():
    def f(x):
        with torch.no_grad(), torch.inference_mode(False):
            shown = x * 2
        with torch.inference_mode(mode=not x.requires_grad):
            return shown, x.sin()

    one_graph(same(lambda: f, *((tensor(1, n, 3, grad=True),) for n in range(3))))


class Bound:
    """What C code is given, and asks by methods in Python that read it."""

    def __init__(self):
        self.n, self.asked = 1, []

    def __iter__(self):
        self.asked.append("iter")
        return iter(range(self.n))

    def __index__(self):
        return self.n

    def below(self, value):
        self.asked.append(value)
        return value < self.n

    def times(self, value, *more):
        return value * self.n


class Alike:
    """Equal to each other where `bound` says so."""

    def __init__(self, bound):
        self.bound = bound

    def __hash__(self):
        return 1

    def __eq__(self, other):
        return self.bound.n > 2


class Filling(dict):
    bound = None

    def __missing__(self, key):
        return self.bound.n


class Asked(Filling):
    def __getitem__(self, key):
        return super().__getitem__(key) * 2


def filling(bound, kind=Filling):
    made = kind()
    made.bound = bound
    return made


ASKING = {
    "accumulate": lambda s: list(itertools.accumulate([1, 2, 3], lambda a, b: a + s.times(b))),
    "bisect": lambda s: bisect.bisect([1, 2, 3, 4, 5], 4, key=s.times),
    "chain": lambda s: list(itertools.chain(s, [3])),
    "chain of each": lambda s: list(itertools.chain.from_iterable([s, [3], s])),
    "combinations": lambda s: list(itertools.combinations(s, 2)),
    "compress": lambda s: list(itertools.compress([1, 2, 3], s)),
    "cycle": lambda s: list(itertools.islice(itertools.cycle(s), 5)),
    "deque": lambda s: list(collections.deque(s, maxlen=2)),
    "dropwhile": lambda s: list(itertools.dropwhile(s.below, [0, 1, 2, 3])),
    "filterfalse": lambda s: list(itertools.filterfalse(s.below, [0, 1, 2, 3])),
    "frozenset": lambda s: len(frozenset([Alike(s), Alike(s)])),
    "groupby": lambda s: [
        (key, list(group)) for key, group in itertools.groupby([0, 1, 2, 3], s.below)
    ],
    "islice": lambda s: list(itertools.islice(s, 9)),
    "itemgetter": lambda s: operator.itemgetter("x")(filling(s)),
    "missing": lambda s: filling(s, Asked)["x"],
    "mean": lambda s: statistics.mean(s),
    "pairwise": lambda s: list(itertools.pairwise(s)),
    "product": lambda s: list(itertools.product(s, s)),
    "replaced": lambda s: re.sub("a", lambda match: str(s.times(2)), "aba"),
    "set": lambda s: len({*[Alike(s)], *[Alike(s)]}) + len(set([Alike(s), Alike(s)])),  # noqa: C405
    "slice": lambda s: [1, 2, 3, 4, 5][:s],
    "starmap": lambda s: list(itertools.starmap(s.times, [(1,), (2, 3)])),
    "takewhile": lambda s: list(itertools.takewhile(s.below, [0, 1, 2, 3])),
    "tee": lambda s: [list(each) for each in itertools.tee(s)],
    "zip_longest": lambda s: list(itertools.zip_longest(s, [1])),
}


@pytest.mark.parametrize("ask", ASKING.values(), ids=ASKING)
def test_what_c_code_asks_of_the_users_objects_is_seen(ask):
    def now(n):
        return lambda s: setattr(s, "n", n)

    def make():
        bound = Bound()
        bound.fn, bound.watch = lambda x: (x * 2, ask(bound)), lambda: list(bound.asked)
        return bound

    same(make, (X,), (Y,), now(3), (X,), (Y,), now(4), (X,), now(5), (X,), now(1), (Y,))


class Plugin:
    pass


class First(Plugin):
    pass


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x * len(os.path.join("a", "b.bin")) + len(os.path.splitext("a.b")),
        lambda x: x + len(list[int]([1, 2])) + dict[str, int](a=1)["a"],
        lambda x: collections.defaultdict[str, list](list)["a"] == [] and x + 1,
        lambda x: collections.deque[int]([1, 2], maxlen=1)[0] * x,
        lambda x: x * len(Plugin.__subclasses__()),
    ],
    ids=["frozen", "containers", "defaultdict", "deque", "subclasses"],
)
def test_one_graph_of_what_only_computes(function):
    compiled = dynfix.compile(function, backend="eager", fullgraph=True)
    for x in (X, Y, X):
        assert torch.equal(compiled(x), function(x))


def test_subclasses_are_asked_at_every_call():
    def count(x):
        return x * len(Plugin.__subclasses__())

    def added(function):
        added.made = type("Second", (Plugin,), {})

    same(lambda: count, (X,), (Y,), added, (X,), (Y,))
