"""Sizes that change, where C code and Python's own functions read them."""

import bisect
import collections
import dataclasses
import itertools
import math

import dynfix
import pytest
import torch
from dynfix.rewriter.capture.numbers import symbolic
from helpers import Case, call, one_graph, rows, same

F = torch.nn.functional


def _float_first(x):
    n = x.shape[0]
    return (
        0.5 * n,
        1.0 / n,
        n == 7.0,
        2.5 - n,
        1.5**n,
        max(n, 6.0),
        min(6.5, n),
        sum([0.5, n]),
        True * n,
        (n > 5) + n,
    )


def _between(x):
    scale = 1.0 / x.shape[0]
    return x * scale if 4.5 < x.shape[0] < 8 else x * 3


def _padded(x):
    return F.pad(x, (0, 0, 0, (x.shape[0] > 2) * x.shape[0])), -x.shape[0] % 4


def _caught(x):
    try:
        k = 10 // (x.shape[0] - 7)
    except ZeroDivisionError:
        k = 0
    return x * k, k


def _caught_later(x):
    try:
        k = 10 // (x.shape[0] - 9)
    except ZeroDivisionError:
        k = -1
    return x * 2, k


def _shifted(x):
    try:
        return x, 1 << (x.shape[0] - 7)
    except ValueError:
        return x + 1, 0


def _guarded_division(x):
    return torch.zeros(10 // (x.shape[0] - 9) if x.shape[0] > 9 else 2) + x.sum()


def _texts(x):
    n = x.shape[0]
    s = str(n)
    return (
        "x".join(str(s) for s in x.shape),
        "-".join(map(str, x.shape)),
        len(s),
        list(s),
        [c for c in s],
        "5" in s,
        s < "6",
        s * 2,
        f"{n} %d" % 3,
        "%s-%s" % (f"{n}", 1),
        max(s, "6"),
        sorted([s, "6"]),
        s.zfill(3),
        s + "!",
        s[0],
    )


def _percents(x):
    n = x.shape[0]
    return "%d rows" % (n,), "%(n)d" % {"n": n}, "%5d" % (n,), "%*d" % (n, 3), "%s" % ((n,),)


def _c_readers(x):
    n, many = x.shape[0], list(range(100))
    many.insert(n, "here")
    popped = many.pop(n + 1)
    queue = collections.deque(range(10))
    queue.rotate(n)
    return (
        popped,
        many[:12],
        list(queue),
        [i for i, _ in enumerate("ab", start=n)],
        int("11", base=n),
        round(3.14159265, n),
        round(3.14159265, ndigits=n),
        [1, 2].__mul__(n),
        bytes(s for s in x.shape),
        math.fsum(s / 3 for s in x.shape),
        math.prod(x.shape),
        list(itertools.islice(itertools.count(), n)),
        divmod(n, 3),
        "ab" * n,
        [0] * n,
    )


WEIGHT = torch.ones(7, 4)


def _same_as_static(x):
    return WEIGHT.is_same_size(x), x.is_same_size(WEIGHT), torch.is_same_size(WEIGHT, x)


def _shared(x):
    t = (x.shape[0],)
    for _ in range(26):
        t = (t, t)
    a, b = x.shape[0], 1
    for _ in range(40):
        a, b = b, a + b
    return a % 1000, b % 1000, len(t)


@dataclasses.dataclass
class Holder:
    n: object
    more: object = None


class Slotted:
    __slots__ = ("n",)

    def __init__(self, n):
        self.n = n


Pair = collections.namedtuple("Pair", "a b")


def _held(x):
    n = x.shape[0]
    holder = Holder(n, [n, (n, 1)])
    return (
        type(holder.n) is int,
        dataclasses.replace(holder, more=n),
        Pair(n, x),
        collections.deque([n]),
        frozenset([n]),
        {(n, 1)},
        {(n, 1): 1},
        Slotted(n).n,
        holder,
    )


def _raised(x):
    if x.shape[0] > 6:
        raise KeyError(x.shape[0], x.shape)
    return x


MORE = [
    _float_first,
    _between,
    _padded,
    _caught,
    _caught_later,
    _shifted,
    _guarded_division,
    _texts,
    _percents,
    _c_readers,
    _same_as_static,
    _shared,
    _held,
    _raised,
]


@pytest.mark.covering
@pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])
@pytest.mark.parametrize("body", MORE, ids=lambda body: body.__name__)
def test_what_c_code_reads(body, backend):
    steps = [call(rows(n)) for n in (5, 7, 3, 9, 12, 7, 10, 6)]
    same(
        lambda: lambda x: body(x),
        *steps,
        backend=backend,
        tolerance=None if backend == "eager" else (1e-5, 1e-6),
    )


def test_no_traced_number_is_left():
    """Exact types, in what a call returns, keeps and raises, also where the recording ends
    early."""

    def kept(x, case):
        n = x.shape[0]
        case.seen.add((n, 1)), case.queue.append(n)
        case.by_size[n, x.shape[1]] = n
        case.holder = Holder(n)
        if n == 9:
            id(x)  # ends the recording
        case.n, case.is_int = n, type(n) is int
        if n == 6:
            raise ValueError(n, x.shape)
        return lambda k=n: (k, n)

    case = Case(seen=set(), queue=collections.deque(), by_size={})
    compiled = dynfix.compile(lambda x: kept(x, case), backend="eager")
    for n in (5, 7, 8, 9, 6, 11):
        try:
            found = compiled(rows(n))()
        except ValueError as error:
            found = (*error.args[:1], *error.args[1])
        everything = [
            *found,
            *(k for pair in case.seen for k in pair),
            *case.queue,
            *(k for pair in case.by_size for k in pair),
            *case.by_size.values(),
            case.holder.n,
            case.n,
        ]
        assert {type(value) for value in everything} == {int} and case.is_int


def test_sizes_that_cannot_be_symbols_after_all(monkeypatch):
    """What is found out late leaves a recording for one size, whose results are that size's at
    later calls as well."""

    def refused(self):
        raise symbolic.Inconsistent("found out late")

    monkeypatch.setattr(symbolic.RecordedSymbols, "close", refused)
    same(
        lambda: lambda x: (x * 2, x.shape[0], -x.shape[0] % 4),
        *(call(rows(n)) for n in (5, 7, 9, 7, 9, 5)),
    )


@pytest.mark.parametrize("backend", [pytest.param("aot_eager", marks=pytest.mark.slow), "native"])
def test_windows_of_batches_whose_length_is_padded(backend):
    def body(x):
        x = F.pad(x, (0, 0, 0, (-x.shape[1]) % 4))
        return x.view(x.shape[0], -1, 4, 4).sum(2)

    sizes = ((2, 5), (2, 7), (3, 7), (4, 9), (5, 6), (3, 8), (2, 4))
    steps = [
        call(torch.linspace(-1, 1, b * t * 4).view(b, t, 4).requires_grad_()) for b, t in sizes
    ]
    same(lambda: body, *steps, backend=backend, tolerance=(1e-5, 1e-6))


@pytest.mark.parametrize("backend", ["aot_eager", "native"])
def test_numbers_too_large_for_a_kernel(backend):
    steps = [call(torch.arange(4.0), n) for n in (5, 7, 2**33, 9, 2**40, 2**62, 3)]
    same(
        lambda: lambda x, n: x.double() ** 2 + n**2 // 3,
        *steps,
        backend=backend,
        tolerance=(1e-9, 0),
    )
    steps = [call(rows(n).double()) for n in (3, 4, 7, 5)]
    same(lambda: lambda x: x + x.shape[0] * 2**60, *steps, backend=backend, tolerance=(1e-9, 0))


def test_one_object_stays_one_object():
    def body(x, keep):
        n = x.shape[0]
        listed, paired, table = [n], (n, x.shape[1]), {}
        got = table.get("a", listed)
        got.append(1)
        keep.append(paired)
        first = sorted([listed, [1]])
        return listed, got is listed, any(part is listed for part in first), paired, n is n

    compiled = dynfix.compile(body, backend="eager")
    for size in (5, 7, 3, 9):
        keep, expected = [], []
        found = compiled(rows(size), keep)
        assert found == body(rows(size), expected) and keep[0] is found[3]


def test_overflows_are_the_users_to_catch():
    def body(x, s):
        try:
            p = s**2, s * 0.5
        except OverflowError:
            p = -1.0
        return x * 2, p

    same(lambda: body, *(call(rows(3), s) for s in (0.5, 2.0, 3.0, 1e300, 4.0)))
    same(lambda: body, *(call(rows(3), s) for s in (3, 5, 7, 10**400, 4)))


def test_builtins_answer_as_python_does():
    class Named(str):
        def __repr__(self):
            return "REPR"

    class Odd:
        def __init__(self, length, code):
            self.length, self.code = length, code

        def __len__(self):
            return self.length

        def __hash__(self):
            return self.code

    def answers(function):
        try:
            return function()
        except Exception as error:
            return type(error).__name__, str(error)

    def body(x):
        it = iter([3, 0, 2, 5])
        asked = (
            lambda: sum(["a", "b"], ""),
            lambda: max(1, 2, default=3),
            lambda: min([1], foo=3),
            lambda: str(Named("abc")),
            lambda: hash(Odd(1, 1 << 70)),
            lambda: hash(Odd(1, -1)),
            lambda: len(Odd(-1, 0)),
            lambda: len(Odd(3, 0)),
            lambda: max(it, key=lambda v: 1 // v),
            lambda: list(it),
            lambda: max([]),
            lambda: max([], default=7),
            lambda: max(3, 1, 2),
            lambda: min("b", "a"),
            lambda: sum([0.1] * 10),
            lambda: sorted("bca", reverse=True),
            lambda: sorted([(1, "b"), (0, "c"), (1, "a")], key=lambda p: p[0]),
        )
        return x * 2, [answers(one) for one in asked]

    same(lambda: lambda x: body(x), *(call(rows(n)) for n in (5, 5, 7, 3)))


def test_other_ranks_where_sizes_move():
    def program(x):
        return x * 2 if x.is_contiguous() else x + x.dim()

    steps = [(torch.arange(n * 6.0).view(n, 2, 3),) for n in (2, 3, 4)]
    ranks = [(torch.arange(float(n)),) for n in (4, 5, 6)]
    fn = same(lambda: program, *steps, *ranks, (torch.tensor(1.0),), *steps)
    one_graph(fn)


def test_places_in_sorted_lists():
    bounds = [2, 4, 8]

    def program(x, n):
        by_size = bisect.bisect_left(bounds, x.shape[0])
        return x * bisect.bisect(bounds, n), by_size, bisect.bisect((1, 5), n, key=lambda v: v * 2)

    def other(_):
        bounds[0] = 0

    steps = [(rows(n), n) for n in (2, 5, 9)]
    one_graph(same(lambda: program, *steps, other, *steps))


def test_places_in_memory_are_guarded():
    def fn(x, n):
        part = x.sin()[1:] if n else x[1:]
        return part * x.storage_offset() + part.storage_offset()

    compiled = dynfix.compile(fn, fullgraph=True, dynamic=False, backend="eager")
    for _ in range(3):
        whole = torch.randn(8)
        for n in (0, 1):
            for x in (whole[:5], whole[1:6], whole[3:]):
                assert torch.equal(compiled(x, n), fn(x, n))
    assert len(compiled._dynfix_entry.recordings) == 6
