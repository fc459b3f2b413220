"""What `*v`, `**m` and `yield from v` take apart is guarded, wherever they stand."""

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
