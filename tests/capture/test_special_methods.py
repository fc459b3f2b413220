"""Special methods of the user's that C code calls: `==` of a dict's keys, `<` of a sort, the text
of an object in a text."""

import functools
import operator

import pytest
import torch
from helpers import Case, X, Y, same

LIMIT = 2


class Key:
    """Equal by its name alone; `n` is a field that `__str__` reads."""

    kind = "key"
    __slots__ = ("n", "name")

    def __init__(self, name, n=0):
        self.name, self.n = name, n

    def identity(self):
        return (self.kind, self.name.lower())

    def __eq__(self, other):
        return isinstance(other, Key) and self.identity() == other.identity()

    def __hash__(self):
        return hash(self.identity())

    def __repr__(self):
        return f"{type(self).__name__}({self.name!r}, {self.n})"


class Special(Key):
    kind = "special"


class Rank:
    def __init__(self, value):
        self.value = value

    @property
    def rank(self):
        return min(self.value, LIMIT)

    def __eq__(self, other):
        return self.rank == other.rank

    def __lt__(self, other):
        return self.value < other.value

    def __hash__(self):
        return self.rank

    def __index__(self):
        return self.rank


class Loud:
    def __init__(self, n, seen):
        self.n, self.seen = n, seen

    def __eq__(self, other):
        self.seen.append(self.n)
        return self.n == other.n

    def __hash__(self):
        return 1

    def __lt__(self, other):
        self.seen.append(-self.n)
        return self.n < other.n


def keyed(x, name, n):
    made = {Key("A", n): x}
    made[Key("a", 2)] = made[Key("a")] * 2
    made.setdefault(Key(name), x + n)
    return made[Key("a")], len(made), made.get(Key(name, 3)), Key("b") in made, list(made)[0].n


def members(x, name):
    keys = [Key("a"), Special("a"), Key(name)]
    place = keys.index(Key(name.upper()))
    return x * place, keys.count(Key("a")), {*keys} == {Key("a"), Special("a")}, keys == keys[:]


def texts(x, name):
    key, rank = Key(name, x.shape[0]), Label(x.shape[0])
    return (
        x + 1,
        f"{key}|{key!r:>12}",
        "%s %r" % (key, [key]),
        f"{[key]}{ {key: 1} }",
        str((key,)),
        "{} {:>3}".format(rank, rank.value),
    )


def numbers(x, n):
    rank = Rank(n)
    return x[rank], x[:rank], [1, 2, 3][rank], list(range(rank)), x.narrow(0, 0, rank.rank)


def sorts(x, n):
    ranks = [Rank(3), Rank(n), Rank(1)]
    ranks.sort(reverse=True)
    least = sorted((rank, place) for place, rank in enumerate(ranks))[0][1] if n == 5 else 0
    down = sorted([3, n, 2], key=functools.cmp_to_key(lambda a, b: b - a))
    return x * sorted(ranks)[1].value, max(ranks).value, least, down, [r.value for r in ranks]


@pytest.mark.parametrize(
    ("function", "arguments"),
    [
        (keyed, [("a", 1), ("b", 1), ("b", 2), ("A", 5)]),
        (members, [("a",), ("b",), ("A",), ("a",)]),
        (texts, [("a",), ("b",), ("a",)]),
        (numbers, [(1,), (0,), (7,)]),
        (sorts, [(2,), (4,), (5,), (2,)]),
    ],
)
def test_methods_that_read_fields_stay_in_the_graph(function, arguments):
    same(lambda: function, *((X, *more) for more in arguments), fullgraph=True)


class Label(Rank):
    """Its text is made of a number that may come from a tensor."""

    def __str__(self):
        return f"{self.value}"

    __repr__ = __str__


def test_numbers_of_tensors_in_the_fields():
    def read(x):
        label = Label(x.sum().item())
        return (
            "%s" % label,
            str([label]),
            f"{[label]}",
            {label: 1}.get(Label(6.0)),
            [label].count(4),
        )

    def sizes(x):
        label = Label(x.shape[0])
        order = sorted([label, Label(3), Label(4)])
        return x + 1, "%s" % label, [label] == [Label(5)], [each.value for each in order]

    same(lambda: read, *((torch.ones(3) * n,) for n in (1, 2, 1, 5)))
    same(lambda: sizes, *((torch.ones(n),) for n in (2, 2, 3, 5, 7)), fullgraph=True)


def test_what_such_methods_read_is_guarded():
    """Fields, constants of the class and of the module, the methods themselves."""

    def make():
        table, key = {Key("a"): 2.0, Key("b"): 3.0}, Key("a")
        case = Case(fn=lambda x: (x * table.get(key, 7.0), str([key])), key=key, table=table)
        return case

    def change(**fields):
        return lambda case: [setattr(case.key, name, value) for name, value in fields.items()]

    same(make, (X,), (Y,), change(name="b"), (X,), change(n=4), (X,), change(name="z"), (X,))
    same(make, (X,), lambda case: case.table.update({Key("a"): 5.0}), (X,), (Y,))


def test_classes_and_globals_that_such_methods_read_are_guarded(monkeypatch):
    def make():
        return lambda x: x * [Rank(9), Rank(1)].index(Rank(3))

    def limit(value):
        return lambda _: monkeypatch.setitem(globals(), "LIMIT", value)

    def equal(method):
        return lambda _: monkeypatch.setattr(Rank, "__eq__", method)

    same(make, (X,), limit(1), (X,), limit(3), (X,), limit(2), (X,))
    same(
        make,
        (X,),
        lambda _: monkeypatch.setattr(Rank, "rank", property(lambda self: 0)),
        (X,),
        equal(lambda self, other: self.value == 1),
        (X,),
    )
    monkeypatch.undo()
    same(lambda: lambda x: x * ({Key("a"): 2}.get(Special("a"), 5)), (X,), (Y,))


class Counting:
    def __init__(self, value, seen):
        self.own, self.seen = value, seen

    @property
    def rank(self):
        self.seen.append(self.own)
        return self.own


def test_properties_of_what_is_compared_with_run_as_often_as_in_eager():
    def make():
        seen = []
        mixed = [Rank(1), Counting(1, seen), Counting(2, seen)]
        return Case(fn=lambda x: x * mixed.count(Rank(1)), watch=lambda: tuple(seen))

    same(make, (X,), (Y,), (X,))


def test_methods_that_do_more_run_as_often_as_in_eager():
    def make():
        seen = []

        def run(x):
            loud = [Loud(n, seen) for n in (3, 1, 2)]
            first = sorted(loud)[0].n
            table = {loud[1]: x}
            return x * first, table[Loud(1, seen)], loud.index(Loud(2, seen)), len({*loud})

        return Case(fn=run, watch=lambda: tuple(seen))

    same(make, (X,), (Y,), (X,))


@pytest.mark.parametrize(
    "ask",
    [
        lambda table, key: table[key],
        lambda table, key: table.get(key),
        lambda table, key: key in table,
        lambda table, key: table.update({key: 5}),
        lambda table, key: table.__setitem__(key, 5),
        lambda table, key: table.setdefault(key, 7),
        lambda table, key: list(table).index(key),
        lambda table, key: operator.setitem(table, key, 9),
        lambda table, key: {key, *table},
    ],
)
def test_a_dict_asks_its_keys_as_often_as_in_eager(ask):
    def make():
        seen = []
        outside = {Loud(1, seen): 2.0}

        def run(x, n):
            made = {Loud(2, seen): 3.0}
            made[Loud(n, seen)] = 4.0
            del made[Loud(n, seen)]
            return x, ask(outside, Loud(1, seen)), ask({**made, Loud(n, seen): 1}, Loud(n, seen))

        return Case(fn=run, watch=lambda: (tuple(seen), list(outside.values())))

    same(make, (X, 2), (Y, 2), (X, 3), (X, 2))
