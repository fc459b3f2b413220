"""What `*v`, `**m` and `yield from v` take apart is guarded, wherever they stand."""

import collections
import functools

import pytest
from helpers import X, one_graph, same


class Counting:
    """Iterates in Python."""

    def __init__(self, n):
        self.n = n

    def __iter__(self):
        yield from range(self.n)


class Mapped:
    """A mapping that is no dict."""

    def __init__(self, n):
        self.n = n

    def keys(self):
        return [str(i) for i in range(self.n)]

    def __getitem__(self, key):
        return self.n + int(key)


class Doubled(dict):
    """A dict that `**` takes apart by its methods."""

    def __iter__(self):
        return iter(["a"])

    def keys(self):
        return ["a"]

    def __getitem__(self, key):
        return 2 * super().__getitem__(key)


def total(*args, **kwargs):
    return sum(args) + sum(kwargs.values()) + len(args) + 10 * len(kwargs)


def in_list(x, v):
    return x * sum([*v, 1])


def in_tuple(x, v):
    return x * len((*v,)) + sum((*v, *v))


def in_set(x, v):
    return x * sum({*v, 7})


def in_call(x, v):
    return x * total(1, *v)


def in_builtin(x, v):
    return x * max(*v, -1, -2)


def in_lambda(x, v):
    return (lambda *a: x * sum(a))(*v)


def in_for(x, v):
    for k in *v, 5:
        x = x * k
    return x


def in_subscript(x, v):
    return x * {(1, 2): 3, (1, 3): 4}.get((*v,), 0)


def in_slice_store(x, v):
    made = [0, 0]
    made[1:] = v
    return x * sum(made) + len(made)


def in_class_body(x, v):
    class Made:
        made = [*v]  # noqa: RUF012

    return x * sum(Made.made)


def in_raise(x, v):
    try:
        raise ValueError(*v)
    except ValueError as error:
        return x * sum(error.args)


def by_yield_from(x, v):
    def each():
        yield from v

    return x * sum(each())


SEQUENCES = [[1, 2], [1, 3], [1, 3, 4], (2, 3), Counting(2), Counting(3), {5: 1}, range(4)]


@pytest.mark.parametrize(
    "body",
    [
        in_list,
        in_tuple,
        in_set,
        in_call,
        in_builtin,
        in_lambda,
        in_for,
        in_subscript,
        in_slice_store,
        in_raise,
        by_yield_from,
    ],
)
def test_iterables(body):
    same(lambda: body, *[(X, v) for v in SEQUENCES])
    one_graph(same(lambda: body, (X, [1, 2]), (X, [1, 3]), (X, [1, 2])), 2)


def test_class_body():
    same(lambda: in_class_body, *[(X, v) for v in SEQUENCES])


def mapping_in_call(x, m):
    return x * total(**m)


def mapping_in_builtin(x, m):
    return x * sum(dict(**m, z=1).values())


def mapping_in_display(x, m):
    made = {"a": 100, **m}
    return x * sum(made.values()) + len(made)


@pytest.mark.parametrize("body", [mapping_in_call, mapping_in_builtin, mapping_in_display])
def test_mappings(body):
    mappings = [{"a": 1}, {"a": 2}, {"b": 2}, {}, Mapped(1), Mapped(2), Doubled(a=1), Doubled(a=2)]
    same(lambda: body, *[(X, m) for m in mappings])
    one_graph(same(lambda: body, (X, {"a": 1}), (X, {"a": 2}), (X, {"a": 1})), 2)


def test_what_cannot_be_taken_apart():
    same(lambda: in_call, (X, [1]), (X, 5), (X, [2]), (X, None), (X, [1]))
    same(lambda: mapping_in_display, (X, {}), (X, 5), (X, {"a": 3}))


def test_a_tensor_is_taken_apart():
    def body(x):
        return torch_sum(*x) + x[0]

    def torch_sum(*parts):
        return sum(parts)

    same(lambda: body, (X,), (X[:2],), (X * 2,), (X,))


class Lacking(collections.defaultdict):
    def __missing__(self, key):
        return 7


def test_what_a_dict_makes_of_a_missing_key():
    def body(x, d):
        return x * d["q"] + len(d)

    made = [collections.defaultdict(int), collections.defaultdict(lambda: 4), Lacking(int)]
    same(lambda: body, *[(X, d) for d in [*made, {"q": 3}, collections.defaultdict(int, q=1)]])


def in_for_target(x, v):
    for a, (b, *c) in v:
        x = x * a + b + sum(c)
    return x


def in_comprehension_target(x, v):
    return x * sum(a * b[0] for a, b in v)


def in_nested_target(x, v):
    (a, (b, *_)), *rest = v
    return x * a + b + len(rest)


def in_kept_target(x, v):
    kept = (a, b), *rest = v
    return x * a + len(kept) + len(rest) + b[0]


class Giving:
    def __init__(self, given):
        self.given = given

    def __enter__(self):
        return self.given

    def __exit__(self, *error):
        return False


def in_with_target(x, v):
    with Giving(v[0]) as (a, b):
        return x * a + b[0]


PAIRS = [
    [[1, [2]], [3, [4]]],
    [[1, [5]], [3, [4]]],
    [[1, [5, 6]], [3, [4]]],
    ([2, (5,)], [3, [4, 4]]),
    [[2, [5]]],
    [[1]],
]


@pytest.mark.parametrize(
    "body",
    [in_for_target, in_comprehension_target, in_nested_target, in_kept_target, in_with_target],
)
def test_targets_with_parts(body):
    same(lambda: body, *[(X, v) for v in PAIRS])
    one_graph(same(lambda: body, *[(X, v) for v in (PAIRS[0], PAIRS[1], PAIRS[0])]))


class Answering:
    """Special methods in Python that builtins ask."""

    def __init__(self, k):
        self.k = k

    def __len__(self):
        return self.k

    def __str__(self):
        return f"{self.k}"

    def __round__(self, digits=0):
        return self.k + digits


@pytest.mark.parametrize(
    "body",
    [len, lambda v: int(str(v)), round, lambda v: round(v, 2)],
    ids="len str round at".split(),
)
def test_what_special_methods_answer(body):
    fn = same(lambda: lambda x, v: x * body(v), *[(X, Answering(k)) for k in (1, 2, 3, 2, 5, 1)])
    assert not any(recording.sites for recording in fn._dynfix_entry.recordings)


def test_a_cache_made_in_the_call():
    def body(x, k):
        @functools.lru_cache
        def times(n):
            return n * k

        return x * times(2)

    same(lambda: body, *[(X, k) for k in (1, 2, 3, 1)])


class Based:
    k = 2


def test_a_class_attribute_written_and_read_by_super():
    class Sub(Based):
        def get(self):
            return super().k

    def body(x, k):
        Based.k = k
        return x * Sub().get()

    fn = same(lambda: body, *[(X, k) for k in (1, 2, 3, 1)])
    assert not any(recording.sites for recording in fn._dynfix_entry.recordings)
