"""Classes, functions and enumerations that the language's tests use."""

import abc
import collections
import dataclasses
import enum
import functools
import typing


class Base:
    kind = "base"

    def __init__(self, k=2.0):
        self.k, self.reads = k, 0

    def __init_subclass__(cls, **kwargs):
        super().__init_subclass__()
        cls.tagged = kwargs

    def scale(self, x):
        return x * self.k

    @classmethod
    def make(cls, k):
        return cls(k)

    @staticmethod
    def shift(x):
        return x + 1

    @property
    def twice(self):
        return self.k * 2

    @functools.cached_property
    def cached(self):
        print("computing")
        return self.k + 1

    @functools.lru_cache(maxsize=None)  # noqa: B019
    def memo(self, n):
        print("memo", n)
        return n * 2


class Mixin:
    def scale(self, x):
        return super().scale(x) + 10

    @property
    def twice(self):
        return super().twice + 1


class Child(Mixin, Base, tag="t"):
    __slots__ = ()
    kind = "child"

    def __getattr__(self, name):
        if name.startswith("dyn_"):
            self.reads += 1
            return len(name)
        raise AttributeError(f"no {name}")

    def __private(self):
        return 7

    def private(self):
        return self.__private()


class Meta(type):
    made = 0

    def __call__(cls, *args):
        Meta.made += 1
        return super().__call__(*args)

    def __getattr__(cls, name):
        return Meta.made

    @property
    def count(cls):
        return Meta.made

    def __len__(cls):
        return 3

    def __iter__(cls):
        return iter([1, 2])


class WithMeta(metaclass=Meta):
    def __init__(self, v):
        self.v = v


class Vec:
    def __init__(self, t):
        self.t = t

    def __add__(self, o):
        return Vec(self.t + (o.t if isinstance(o, Vec) else o))

    __radd__ = __add__

    def __mul__(self, o):
        return Vec(self.t * o)

    def __neg__(self):
        return Vec(-self.t)

    def __getitem__(self, i):
        return self.t[i]

    def __setitem__(self, i, v):
        self.t[i] = v

    def __len__(self):
        return len(self.t)

    def __iter__(self):
        return iter(self.t)

    def __contains__(self, v):
        return v == 5

    def __call__(self, x):
        return self.t + x

    def __matmul__(self, o):
        return (self.t * o.t).sum()

    def __iadd__(self, o):
        self.t = self.t + o
        return self

    def __lt__(self, o):
        return self.t.shape < o.t.shape

    def __eq__(self, o):
        return self.t.shape == o.t.shape

    def __hash__(self):
        return 3

    def __bool__(self):
        return True

    def __abs__(self):
        return Vec(self.t.abs())

    def __repr__(self):
        return f"Vec({self.t})"

    def __format__(self, spec):
        return f"<{spec}>{self.t}"

    def __enter__(self):
        return self.t

    def __exit__(self, *e):
        return False

    def __float__(self):
        return float(self.t.sum())

    def __index__(self):
        return 1

    def __reversed__(self):
        return [1, 2]

    def __missing__(self, k):
        return 1


class Color(enum.Enum):
    RED, BLUE = 1, 2

    @property
    def k(self):
        return self.value * 2


class Perm(enum.Flag):
    R, W = 1, 2


@dataclasses.dataclass
class Data:
    x: object
    n: int = 0
    items: list = dataclasses.field(default_factory=list)
    made: typing.ClassVar[int] = 0

    def __post_init__(self):
        Data.made += 1
        self.n += 1
        self.items.append(self.made * 0)


@dataclasses.dataclass(frozen=True, order=True)
class Key:
    a: int
    b: str = "b"


Point = collections.namedtuple("Point", "x y", defaults=[1])


class Typed(typing.NamedTuple):
    a: object
    b: int = 3

    def total(self):
        return self.a + self.b


class Abstract(abc.ABC):
    @abc.abstractmethod
    def go(self, x): ...


class Concrete(Abstract):
    def go(self, x):
        return x + 3


def decorated(k):
    def wrap(fn):
        @functools.wraps(fn)
        def inner(*args, **kwargs):
            return fn(*args, **kwargs) * k

        return inner

    return wrap


@decorated(2)
@decorated(3)
def helper(x, *, plus=0):
    return x + plus


def gen(x, n):
    for i in range(n):
        got = yield x * i
        if got:
            x = x + got
    return x


def outer_gen(x):
    last = yield from gen(x, 2)
    yield last


@functools.singledispatch
def dispatch(v, x):
    return x


@dispatch.register
def _(v: int, x):
    return x * v


@functools.lru_cache
def fib(n):
    return n if n < 2 else fib(n - 1) + fib(n - 2)


def coroutine(x):
    g = gen(x, 3)
    a = next(g)
    b = g.send(5)
    return a, b, list(g), list(outer_gen(x))
