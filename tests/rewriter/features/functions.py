"""Language features: functions, closures, classes, generators."""
# ruff: noqa
# fmt: off

import functools
import sys
import warnings

CALLS = []


def traced(fn):
    @functools.wraps(fn)
    def wrapper(*args, **kwargs):
        CALLS.append(fn.__name__)
        return fn(*args, **kwargs)

    return wrapper


def twice(times=2):
    def deco(fn):
        return lambda *args: [fn(*args) for _ in range(times)]

    return deco


class Base:
    __secret = "base"
    registry = {}

    def __init__(self, value=0):
        super().__init__()
        self.value = value
        self.__hidden = value * 2

    def hello(self, greeting="hello"):
        return f"{greeting} {type(self).__name__} {self.__secret} {self.__hidden}"

    @property
    def doubled(self):
        return self.value * 2

    @doubled.setter
    def doubled(self, new):
        self.value = new / 2

    @classmethod
    def make(cls, *args):
        return cls(*args)

    @staticmethod
    def plain(x, *, y=1):
        return x + y

    def __call__(self, x):
        return self.value + x

    def __private(self):
        return "private"

    def reach(self):
        self.__private, f = lambda: "replaced", self.__private
        del self.__hidden
        return f(), self.__private(), [self.__secret for _ in range(1)], hasattr(self, "_Base__hidden")

    def keyword(self):
        return dict(__x=1)

    def __repr__(self):
        return f"Base({self.value})"


class Child(Base):
    __secret = "child"

    def __init__(self, value, extra):
        super().__init__(value)
        self.extra = extra

    def hello(self, *args):
        own = self.__secret
        return super(Child, self).hello(*args) + " and " + own + (super().hello() if args else "")

    @classmethod
    def make(cls, *args):
        return super().make(*args, "made")

    def klass(self):
        return __class__, [__class__ for _ in "a"][0].__name__

    def nested(self):
        def inner():
            return super(__class__, self).hello("inner")

        return inner()


class _Under:
    def __m(self):
        return "under"

    def go(self):
        return self.__m()


class Counter:
    total = 0

    def __init__(self):
        self.items = []

    def add(self, *values):
        for v in values:
            self.items.append(v)
            Counter.total += v
            self.__class__.total += 0
        return self

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.items.append(exc[0])
        return True

    def __iter__(self):
        yield from self.items

    def __len__(self):
        return len(self.items)


def methods_and_super(log):
    b, c = Base(3), Child(4, "x")
    b.doubled = 10
    return b.hello(), c.hello(), c.hello("hi"), b.doubled, c.make(1).extra, Base.make(5), b.plain(1, y=4), b(1), c.klass(), c.nested()


def private_names(log):
    return Base(1).reach(), Child(2, 3).reach(), _Under().go(), Base(1).keyword()


def protocol_methods(log):
    total = Counter.total
    with Counter() as counter:
        counter.add(1, 2).add(3)
        raise KeyError("swallowed")
    return list(counter), len(counter), bool(Counter()), Counter.total - total, 3 in counter


def decorators(log):
    @traced
    @twice(times=3)
    def f(x):
        return x + 1

    @functools.lru_cache(maxsize=None)
    def fib(n):
        return n if n < 2 else fib(n - 1) + fib(n - 2)

    del CALLS[:]
    return f(1) if log else fib(20), f.__name__, CALLS


@traced
def decorated(a, *, b=2):
    """Its doc."""
    return a * b


def decorated_function(log):
    return decorated(3), decorated(2, b=5), decorated.__doc__, decorated.__wrapped__(4)


def signatures(log):
    def f(a, b=2, /, c=3, *args, d, e=5, **kw):
        return a, b, c, args, d, e, kw

    def g(a, /, *, b): return a, b

    return f(1, d=4), f(1, 2, 3, 4, 5, d=6, z=7), g(1, b=2), f.__defaults__, f.__kwdefaults__


def missing_argument(log):
    def f(a, *, b):
        return a, b

    return f(1)


def unexpected_argument(log):
    return Base.plain(1, z=2)


def defaults_are_evaluated_once(log):
    def f(x, acc=[]):
        acc.append(x)
        return acc

    return f(1), f(2), f(3, [])


def closures(log):
    def counter(start):
        n = start

        def step(by=1):
            nonlocal n
            n += by
            return n

        def reset():
            nonlocal n
            n = start

        return step, reset

    step, reset = counter(10)
    a = step(), step(5)
    reset()
    return a, step(), step.__closure__[-1].cell_contents if False else None


def closures_in_loops(log):
    late = [lambda: i for i in range(3)]
    made = []
    for k in range(3):
        def show(j=k):
            return j, k
        made.append(show)
    return [f() for f in late], [f() for f in made]


def nonlocal_everywhere(log):
    a = b = c = 0

    def f():
        nonlocal a, b, c
        a, (b, *_) = 1, (2, 3)
        for c in range(3):
            pass
        with warnings.catch_warnings() as b:
            pass
        return (a := a + 1)

    return f(), a, b, c


def recursion(log):
    def fact(n):
        return 1 if n <= 1 else n * fact(n - 1)

    def even(n): return n == 0 or odd(n - 1)
    def odd(n): return n != 0 and even(n - 1)

    return fact(6), even(10), odd(7)


def recursion_too_deep(log):
    def down(n):
        return down(n + 1)

    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(200)
    try:
        down(0)
    except RecursionError as error:
        return type(error).__name__
    finally:
        sys.setrecursionlimit(limit)


def generators(log):
    def count(n):
        """Counts."""
        i = 0
        try:
            while i < n:
                sent = yield i
                if sent:
                    i = sent
                i += 1
        except GeneratorExit:
            log.append("closed")
            raise
        finally:
            log.append("finally")

    g = count(10)
    out = [next(g), next(g), g.send(5)]
    g.close()
    return out, list(count(3)), [x for x in count(2)]


def module_generator(n):
    for i in range(n):
        got = yield i * 2
        if got:
            yield got


def generator_of_module(log):
    g = module_generator(3)
    return next(g), g.send("s"), list(g), type(g).__name__


def generator_throw(log):
    def g():
        while True:
            try:
                yield 1
            except ValueError as error:
                log.append(str(error))
                yield 2

    it = g()
    return next(it), it.throw(ValueError("thrown")), next(it)


def generator_error(log):
    def g():
        yield 1
        raise KeyError("inside")

    return list(g())


def local_class(log):
    factor = 3

    class Local:
        scale = factor * 2
        names = [n for n in ("a", "b")]
        both = {k: scale_ for k, scale_ in zip(names, [1, 2])}

        def __init__(self, x):
            self.x = x

        def scaled(self):
            return self.x * factor * self.scale

        def who(self):
            return super().__repr__()[:2], __class__.__name__

    class Sub(Local, metaclass=type):
        def scaled(self):
            return -super().scaled()

    return Local(2).scaled(), Sub(1).scaled(), Local.names, Local.both, Local(1).who()


def class_body_effects(log):
    class C:
        log.append("body")
        x = 1
        if x:
            y = x + 1
        for z in range(3): pass

        @property
        def p(self):
            return self.y

    return C.y, C.z, C().p


def dunder_class_in_nested(log):
    return Child(1, 2).klass()[0] is Child


def first_class_functions(log):
    ops = {"add": lambda a, b: a + b, "len": len, "base": Base}
    return ops["add"](1, 2), ops["len"]([1]), ops["base"](2), (max, min)[1](3, 4), list(filter(None, [0, 1]))


def function_attributes(log):
    def f():
        f.count = getattr(f, "count", 0) + 1
        return f.count

    f.note = "n"
    return f(), f(), f.note, f.__name__, f.__qualname__, f.__module__


def annotations_stay(log):
    def f(x: int, *a: "str", y: list = None, **k: dict) -> "Base":
        z: int = 1
        return z

    return f.__annotations__, f(1)


def unbound_free_variable(log):
    def f():
        return later

    if log:
        later = 1
    return f()


def star_keyword_clash(log):
    def f(a, **k): return a, k
    return f(1, **{"b": 2}, c=3)


def shadows(log):
    list = tuple
    dict = {"x": 1}

    def print(*a):
        log.append(a)

    print(list([1, 2]), dict["x"])
    return [str for str in "ab"], (lambda sum: sum)(1)


def returns_in_loops(log):
    for i in range(5):
        for j in range(5):
            if i * j == 6:
                return i, j


def many_locals_in_lambda(log):
    a, b, c = 1, 2, 3
    return (lambda x: (a if x else b) and (x or c))(0), (lambda: [y for y in (a, b) if y > a or c])()


def partials(log):
    add = functools.partial(lambda a, b, *, c=0: a + b + c, 1, c=10)
    return add(2), functools.reduce(lambda p, q: p * q, [1, 2, 3, 4])


def map_with_generator_state(log):
    seen = iter(range(100))
    return [next(seen) for _ in range(2)], list(map(lambda x: x + next(seen), [0, 0]))


def chained_calls(log):
    return Counter().add(1).add(2, 3).items[-1], Base.make(3).__class__.make(4).value


def returns_nothing(log):
    if log:
        return
