"""Functions that a call makes: what decorates them is seen, and those that it returns or keeps are
made again at every later call, with cells of their own."""

import functools

import dynfix
import pytest
import torch
from helpers import Case, X, one_graph, same

TOLD = []
STATE = {"k": 1}


def told(made):
    TOLD.append(made.__name__)
    return made


def scaled(made):
    k = STATE["k"]
    return lambda x: made(x) * k


def by(k):
    return lambda made: lambda x: made(x) * k


class Adding:
    def __init__(self, k):
        self.k = k

    def __call__(self, made):
        TOLD.append(self.k)
        return lambda x: made(x) + self.k


def decorated(x):
    @told
    @scaled
    def inner(y):
        return y + 1

    return inner(x)


def decorated_by_calls(x):
    @by(STATE["k"])
    @functools.partial(scaled)
    @Adding(2)
    def inner(y):
        return y + 1

    return inner(x)


def decorated_class(x):
    @told
    class Inner:
        pass

    return x + 1, Inner.__name__


@pytest.mark.parametrize("body", [decorated, decorated_by_calls, decorated_class])
def test_decorators(body, monkeypatch):
    fn = dynfix.compile(body, backend="eager", fullgraph=True)
    for k in (1, 1, 2, 3):
        monkeypatch.setitem(STATE, "k", k)
        results = []
        for each in (fn, body):
            TOLD.clear()
            results.append(repr((each(X), TOLD)))
        assert results[0] == results[1]


def closing(x, k):
    count, seen = 0, []

    def inner(y, a=x * k, *, b=k):
        nonlocal count
        count += 1
        seen.append(count)
        return y * k + a + b + count

    def read():
        return count, list(seen)

    inner.tag = x + k
    return inner, {"read": read}


def calling_itself(x, k):
    def even(n):
        return x * k if n == 0 else odd(n - 1)

    def odd(n):
        return x - k if n == 0 else even(n - 1)

    return lambda y: even(3) + y, lambda y: [odd(1), y]


def wrapped(f):
    @functools.wraps(f)
    def wrapper(*args):
        return f(*args) * STATE["k"]

    return wrapper


def wrapping(x, k):
    @wrapped
    def inner(y):
        """Its text."""
        return y * x + k

    return [inner]


def in_loops(x, k):
    return [lambda y, i=i: y * i * k for i in range(3)]


def steps(x, k):
    def inner(y):
        for i in range(k):
            yield x * i + y

    return [lambda y: list(inner(y))]


@pytest.mark.parametrize("backend", ["eager", "native"])
@pytest.mark.parametrize("program", [closing, calling_itself, wrapping, in_loops, steps])
def test_returned_functions(program, backend):
    fn = dynfix.compile(program, backend=backend, fullgraph=True)
    kept = []
    for k in (2, 2, 3, 2, 4, 3):
        x = torch.randn(2, 3)
        kept.append((fn(x, k), program(x, k)))
    for found, real in kept:
        assert _shown(found) == _shown(real)


def _shown(made):
    """All that can be seen of the functions, each called twice."""
    told = made[-1]["read"] if isinstance(made[-1], dict) else None
    made = [each for each in made if not isinstance(each, dict)]
    answers = [f(torch.ones(3)) for f in made * 2]
    facts = [(f.__name__, f.__qualname__, f.__doc__, f.__defaults__, sorted(vars(f))) for f in made]
    return repr((facts, answers, told and told()))


def test_a_function_that_is_kept():
    class Kept:
        call = None

    def make():
        owner = Kept()

        def body(x):
            y = x + 1
            owner.call = lambda z: z * y
            return y

        return Case(fn=body, watch=lambda: owner.call and owner.call(X))

    one_graph(same(make, (X,), (X + 1,), (X,)))
