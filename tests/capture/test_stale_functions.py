"""What functions read and is changed between two calls is seen: cells, globals, code, defaults, partials."""

import contextlib
import functools
import operator
import types

import dynfix
import pytest
import torch
from helpers import Case, X, Y, module_from, same


def test_cells_rebound():
    def make():
        k, gain = 2.0, torch.ones(3)

        def inner(x):
            return x * k

        class M(torch.nn.Module):
            def forward(self, x):
                return inner(x) + gain * k

            @property
            def p(self):
                return k

        def setk(v):
            nonlocal k, gain
            k, gain = v, gain + 1

        m = M()
        return Case(fn=lambda x: m(x) + m.p, setk=setk)

    same(make, (X,), (X,), lambda c: c.setk(3.0), (X,), lambda c: c.setk(None or 4), (X,))


def test_cell_of_a_method_rebound():
    def make():
        k = 2.0

        class M(torch.nn.Module):
            def forward(self, x):
                return x * k

        def setk(v):
            nonlocal k
            k = v

        m = M()
        m.__dict__["setk"] = setk
        return m

    same(make, (X,), lambda m: m.setk(3.0), (X,), lambda m: m.setk(4.0), (X,))


def test_counting_decorator_on_a_method():
    def make():
        n = 0

        def counted(fn):
            @functools.wraps(fn)
            def wrapper(*args, **kwargs):
                nonlocal n
                n += 1
                return fn(*args, **kwargs)

            return wrapper

        class M(torch.nn.Module):
            @counted
            def forward(self, x):
                return x + 1

        m = M()
        return Case(fn=lambda x: m(x), watch=lambda: n)

    same(make, (X,), (X,), (Y,), (X,))


def test_globals_rebound(tmp_path):
    text = """
import torch
K, T, LIMITS = 2.0, torch.ones(3), [1, 2]
class Config: gain = 1.0
cfg = Config()
def helper(x): return x * K
def f(x): return helper(x) + T + len(LIMITS) + cfg.gain + Config.gain + abs(-3) + sum([1, 2])
"""

    def make():
        module = module_from(tmp_path, text)
        return Case(fn=module.f, m=module)

    def set_(**kw):
        return lambda c: vars(c.m).update(kw)

    same(
        make,
        (X,),
        set_(K=5.0),
        (X,),
        set_(T=torch.zeros(3)),
        (X,),
        set_(T=3),
        (X,),
        lambda c: c.m.LIMITS.append(1),
        (X,),
        set_(helper=lambda x: x - 1),
        (X,),
        lambda c: setattr(c.m.cfg, "gain", 3.0),
        (X,),
        lambda c: setattr(c.m.Config, "gain", 8.0),
        (X,),
        set_(abs=lambda v: 100),
        (X,),
        set_(sum=lambda v: 1000),
        (X,),
        lambda c: delattr(c.m, "K"),
        (X,),
    )


def test_function_code_and_defaults_replaced():
    def make():
        def helper(x, k=2.0, *, j=1.0):
            return x * k + j

        return Case(fn=lambda x: helper(x), helper=helper)

    def code(c):
        c.helper.__code__ = (lambda x, k=2.0, *, j=1.0: x - k).__code__

    same(
        make,
        (X,),
        lambda c: setattr(c.helper, "__defaults__", (5.0,)),
        (X,),
        lambda c: c.helper.__kwdefaults__.update(j=7.0),
        (X,),
        code,
        (X,),
    )


def test_partials_and_getters_replaced():
    def make():
        def scale(x, k, bias=0.0):
            return x * k + bias

        state = types.SimpleNamespace(
            p=functools.partial(scale, k=2.0),
            g=operator.attrgetter("v"),
            i=operator.itemgetter("k"),
            v=1.0,
            d={"k": 1.0},
        )
        return Case(
            fn=lambda x: state.p(x) + state.g(state) + state.i(state.d), s=state, scale=scale
        )

    same(
        make,
        (X,),
        lambda c: setattr(c.s, "p", functools.partial(c.scale, k=3.0)),
        (X,),
        lambda c: setattr(c.s, "p", functools.partial(c.scale, k=3.0, bias=1.0)),
        (X,),
        lambda c: setattr(c.s, "v", 5.0),
        (X,),
        lambda c: setattr(c.s, "g", operator.attrgetter("w")),
        lambda c: setattr(c.s, "w", 77.0),
        (X,),
        lambda c: c.s.d.update(k=6.0),
        (X,),
        lambda c: c.s.p.keywords.update(k=9.0),
        (X,),
    )


def test_config_object_inherited_values():
    def make():
        class Base:
            width, flags = 2.0, ("a",)

        class Config(Base):
            __slots__ = ("deep",)

            def __getattr__(self, name):
                if name == "lazy":
                    return 3.0
                raise AttributeError(name)

        cfg = Config()
        cfg.deep = {"x": {"y": [1.0, 2.0]}}
        return Case(
            fn=lambda x: (
                x * cfg.width
                + cfg.lazy
                + cfg.deep["x"]["y"][1]
                + len(cfg.flags)
                + getattr(cfg, "nope", 5)
            ),
            cfg=cfg,
            base=Base,
        )

    same(
        make,
        (X,),
        lambda c: setattr(c.base, "width", 4.0),
        (X,),
        lambda c: setattr(c.cfg, "width", 6.0),
        (X,),
        lambda c: setattr(c.cfg, "lazy", 8.0),
        (X,),
        lambda c: c.cfg.deep["x"]["y"].__setitem__(1, 9.0),
        (X,),
        lambda c: setattr(c.cfg, "nope", 1.0),
        (X,),
        lambda c: setattr(c.base, "flags", ()),
        (X,),
    )


class Base:
    scale = 1.0

    def __init__(self, x):
        self.x = x

    def go(self):
        return self.x * self.scale

    @property
    def next(self):
        return self.x + 1

    def __add__(self, other):
        return self.x + other


class Derived(Base):
    pass


def makes_an_instance(x):
    made = Derived(x)
    return made.go() + made.next + (made + 1)


@pytest.mark.parametrize(
    ("cls", "name", "value"),
    [
        (Base, "scale", 3.0),
        (Derived, "scale", 4.0),
        (Base, "go", lambda self: self.x - 7),
        (Derived, "go", lambda self: self.x * 50),
        (Base, "next", property(lambda self: self.x * 9)),
        (Base, "__add__", lambda self, other: self.x - other * 5),
        (Base, "__init__", lambda self, x: setattr(self, "x", x * 3)),
    ],
    ids=lambda value: getattr(value, "__name__", str(type(value).__name__)),
)
def test_classes_of_what_the_call_makes(monkeypatch, cls, name, value):
    compiled = dynfix.compile(makes_an_instance, backend="eager")
    for _ in range(2):
        assert torch.equal(compiled(X), makes_an_instance(X))
    monkeypatch.setattr(cls, name, value, raising=False)
    for _ in range(2):
        assert torch.equal(compiled(X), makes_an_instance(X))


def counting(x):
    count = 0

    def inner(y):
        nonlocal count
        count += 1
        return (lambda z: z * count)(y) + x

    return inner


def reading(x):
    table = {"k": 2}

    def inner(y):
        return y * table["k"]

    inner.change = lambda v: table.update(k=v)
    return inner


def asked_alone(x):
    k = 2

    def get():
        return k

    def put(v):
        nonlocal k
        k = v

    def inner(y):
        return y * get()

    inner.change = put
    return inner


def of_defaults(x):
    def inner(y, kept=[2]):  # noqa: B006
        return y * kept[0]

    inner.change = lambda v: kept_in(inner, v)
    return inner


def kept_in(fn, value):
    fn.__defaults__[0][0] = value


def of_attributes(x):
    def inner(y):
        return y * inner.k

    inner.k = 2
    inner.change = lambda v: setattr(inner, "k", v)
    return inner


def of_contexts(x):
    seen = [0]

    @contextlib.contextmanager
    def entered():
        seen[0] += 1
        yield seen[0]

    def inner(y):
        with entered() as n:
            return y * n

    return inner


@pytest.mark.parametrize("itself", [False, True])
@pytest.mark.parametrize(
    "maker", [counting, reading, asked_alone, of_defaults, of_attributes, of_contexts]
)
def test_a_function_that_a_compiled_call_made(maker, itself):
    """What it closes over is no less guarded than what any other function does."""
    made, eager = dynfix.compile(maker, backend="eager")(X), maker(X)
    fn = dynfix.compile(made if itself else lambda f, y: f(y) + 1, backend="eager")
    for value in (2, 3, 4, 2):
        if hasattr(made, "change"):
            made.change(value), eager.change(value)
        found = fn(Y) + 1 if itself else fn(made, Y)
        assert torch.equal(found, eager(Y) + 1)


def test_a_generator_that_a_compiled_call_made():
    def maker(x):
        def steps():
            count = 0
            while True:
                count += 1
                yield x * count

        return steps()

    made, eager = dynfix.compile(maker, backend="eager")(X), maker(X)
    fn = dynfix.compile(lambda steps, y: next(steps) + y, backend="eager")
    for _ in range(3):
        assert torch.equal(fn(made, X), next(eager) + X)


@pytest.mark.parametrize("owner", (torch, torch.nn.functional), ids=("torch", "functional"))
def test_a_function_of_torch_replaced(owner, monkeypatch):
    def make():
        class M(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.inner = torch.nn.ReLU()

            def forward(self, x):
                return self.inner(x) + owner.relu(x)

        return M()

    def patched(x, inplace=False):
        return x.clamp(min=0) * 3

    def patch(_):
        monkeypatch.setattr(owner, "relu", patched)

    with monkeypatch.context() as monkeypatch:
        original = owner.relu
        same(
            make,
            (X,),
            (X,),
            patch,
            (X,),
            (Y,),
            lambda _: monkeypatch.setattr(owner, "relu", original),
            (X,),
            backend="native",
            tolerance=(1e-6, 1e-6),
        )


@pytest.mark.parametrize("backend", ["eager", "native"])
@pytest.mark.parametrize("name", ["relu", "softmax", "layer_norm"])
def test_a_function_that_stands_before_torchs_own_runs_once(backend, name, monkeypatch):
    own, calls = getattr(torch.nn.functional, name), []
    more = {"relu": (), "softmax": (-1,), "layer_norm": ((3,),)}[name]

    def patched(x, *args, **kwargs):
        calls.append(name)
        return own(x, *args, **kwargs) + 1

    monkeypatch.setattr(torch.nn.functional, name, patched)
    call = dynfix.compile(
        lambda x: getattr(torch.nn.functional, name)(x, *more) * 2, backend=backend
    )
    for turn in range(4):
        x = torch.randn(2, 3)
        torch.testing.assert_close(call(x), (own(x, *more) + 1) * 2)
        assert len(calls) == turn + 1


# -- functions that are made anew for each call


def counting():
    count = 0

    def step(x):
        nonlocal count
        count += 1
        return x * count

    def read(x):
        return x - count

    return step, read


def nested():
    count = 0

    def step(x):
        def add():
            nonlocal count
            count += 1

        add()
        return x * count

    return step, lambda x: x - count


def averaging():
    mean = torch.zeros(3)

    def step(x):
        nonlocal mean
        mean = mean / 2 + x
        return mean * 2

    return step, lambda x: x - mean


def both(x, step, read):
    step(x)
    return step(x) + read(x) * 10


@pytest.mark.parametrize("backend", ["eager", "native"])
@pytest.mark.parametrize("make", [counting, nested, averaging])
def test_variables_of_functions_made_anew(make, backend):
    """They are written where the functions of this call have them, be they the same or others."""
    found = []
    for call in (both, dynfix.compile(both, backend=backend)):
        x, one, other = torch.arange(3.0), make(), make()
        seen = [call(x, *given) for given in (one, make(), (one[0], other[1]), one, other)]
        found.append((*seen, one[1](x), other[1](x)))
    torch.testing.assert_close(found[1], found[0])


def test_a_variable_that_another_function_shares():
    found = []
    for compiled in (lambda call: call, lambda call: dynfix.compile(call, backend="eager")):
        step, read = counting()
        call = compiled(lambda x, given, read=read: given(x) + read(x))
        others = [counting()[0], step, step, counting()[0], step]
        found.append([call(torch.arange(3.0), given) for given in others])
    torch.testing.assert_close(found[1], found[0])


def scaling(k):
    return lambda x: x * k


def unset():
    if not torch:
        k = 1

    def step(x):
        try:
            return x * k
        except NameError:
            return x

    return step


def of_a_cell(x, given):
    try:
        return x + given.__closure__[0].cell_contents
    except ValueError:
        return x


@pytest.mark.parametrize("call", [of_a_cell, lambda x, given: given(x) + 1])
def test_what_a_cell_holds(call):
    compiled = dynfix.compile(call, backend="eager")
    given = scaling(2)
    for turn, function in enumerate((unset(), given, unset(), scaling(3), given, scaling(5))):
        assert torch.equal(compiled(X, function), call(X, function))
        given.__closure__[0].cell_contents = turn


def test_a_cell_of_a_function_from_outside():
    k = 2

    def scaled(x):
        return x * k

    compiled = dynfix.compile(lambda x: of_a_cell(x, scaled), backend="eager")
    for turn in range(4):
        k = turn + 3
        assert torch.equal(compiled(X), X + k)
