"""Language features: expressions. Each function is run as it is and rewritten; `log` shows what was
evaluated, and in which order."""
# ruff: noqa
# fmt: off

import math

LIMIT = 3
TABLE = {"a": [1, 2, 3]}


class Loud:
    """Logs every operator asked of it."""

    def __init__(self, name, log, true=True):
        self.name, self.log, self.true = name, log, true

    def __bool__(self):
        self.log.append(("bool", self.name))
        return self.true

    def __lt__(self, other):
        self.log.append(("lt", self.name, other.name))
        return Loud(f"{self.name}<{other.name}", self.log, self.true)

    def __format__(self, spec):
        self.log.append(("format", self.name, spec))
        return f"<{self.name}:{spec}>"

    def __repr__(self):
        self.log.append(("repr", self.name))
        return f"Loud({self.name})"

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        self.log.append(("getattr", self.name, name))
        return len(self.log)

    def __getitem__(self, key):
        self.log.append(("getitem", self.name, key))
        return len(self.log)


def said(value, log):
    log.append(value)
    return value


def arithmetic(log):
    a, b = 7, 2
    return [a + b, a - b, a * b, a / b, a // b, a % b, a**b, a << b, a >> b, a & b, a | b, a ^ b, -a, +a, ~a, not a, -1, -2.5]


def matrix_product(log):
    class M:
        def __matmul__(self, other):
            return ("mm", other)

        def __imatmul__(self, other):
            log.append("imatmul")
            return self

    m = M()
    n = m
    n @= 3
    return m @ 2, n is m


def evaluation_order(log):
    return said(1, log) + said(2, log) * said(3, log) - said(len, log)([said(4, log)])


def comparison_every_operator(log):
    a, b, c = 1, 2, [1, 2]
    return [a < b, a <= b, a > b, a >= b, a == b, a != b, a in c, a not in c, a is b, a is not b, a is None, not a in c]


def comparison_chain(log):
    return said(1, log) < said(2, log) < said(0, log) < said(9, log), 1 < said(5, log) <= 5 != 4


def comparison_chain_of_objects(log):
    a, b, c = Loud("a", log), Loud("b", log, False), Loud("c", log)
    first = a < b < c
    second = b < a < c
    return first.name, second.name


def short_circuit_values(log):
    zero, one = 0, 1
    return [zero and said(1, log), one and said(2, log), zero or said(3, log), one or said(4, log), zero or [] or said("", log) or None]


def short_circuit_of_objects(log):
    no, yes = Loud("no", log, False), Loud("yes", log)
    kept = (no and yes) is no, (yes and no) is no, (yes or no) is yes, (no or yes) is yes
    if yes and yes and no:
        log.append("wrong")
    elif not (no or no):
        log.append("right")
    while yes and not no or yes:
        break
    return kept


def truth_is_asked_once(log):
    t = Loud("t", log)
    if t:
        log.append("if")
    picked = 1 if t else 2
    assert t
    return picked, [x for x in [1, 2] if t], not t


def ternary_lazy(log):
    flag = bool(log)
    return said("yes", log) if flag else said("no", log)


def ternary_over_lines(log):
    x = 4
    return (
        said("big", log)
        if x > LIMIT
        # a comment in between
        else said("small", log)
    ), (said(1, log) if x and
        not log else
        said(2, log))


def ternary_nested(log):
    return [("a" if x < 1 else "b" if x < 2 else "c") if x < 3 else "d" for x in range(5)]


def walrus_in_condition(log):
    if (n := len("abcd")) > LIMIT and (m := n * 2) > 7:
        log.append((n, m))
    return (k := n) + k, n or (z := 3), [y := 5, y**2]


def walrus_in_comprehension(log):
    found = [last := x for x in range(6) if (half := x // 2)]
    return found, last, half


def walrus_inside_short_circuit(log):
    x = 0
    x and (x := 5)
    y = (x := 1) if not x else (x := 9)
    return x, y


def calls_with_stars(log):
    def f(*args, **kwargs):
        return args, kwargs

    pair, names = [1, 2], {"c": 3}
    return f(0, *pair, 3, *"xy", k=1, **names, **{"z": 1}), f(*pair, *pair), f(**names), f(self=1, fn=2, args=3)


def call_with_generator(log):
    return sum(x * x for x in range(4)), sorted((x for x in [3, 1]), reverse=True), max(
        y
        for y in (1, 5)
    )


def call_chain_over_lines(log):
    return (
        "a,b,c"
        .upper()
        .replace(
            ",",
            "-",  # dash
        )
        .split("-")[0:
                    2]
    )


def attributes_and_items(log):
    x = Loud("x", log)
    return x.alpha, x["k"], x[1:2], x[::2], x[..., None], x[1, 2:3], x[(1, 2)], x[1,], x[-1], x[:], x[x.beta :, 1]


def slices(log):
    data = list(range(10))
    a = 2
    return data[a:], data[:a], data[a:8:3], data[::-1], data[a], data[-a:-1], "hello"[1:3][0]


def item_of_walrus(log):
    data = [1, 2, 3]
    return data[i := 1], i


def displays(log):
    a = [1, 2]
    return [*a, 3], (*a,), {*a, 5}, {"x": 1, **{"y": 2}}, [[]], {}, (), set(a), [a[0]] * 2, {a[1]: a[0]}


def lambda_defaults(log):
    fs = [lambda x, k=i, *a, m=LIMIT, **kw: (x, k, a, m, kw, i) for i in range(3)]
    return [f(1) for f in fs], fs[0](1, 2, 3, m=4, n=5), (lambda: LIMIT)(), (lambda *a: a)(1, 2)


def lambda_in_key(log):
    return sorted(["bb", "a", "ccc"], key=lambda s: -len(s)), list(map(lambda x, y: x + y, [1, 2], [3, 4]))


def list_comprehension_nested(log):
    return [[x * y for y in range(x)] for x in range(4)], [x + y for x in range(3) if x for y in range(x) if y % 2 == 0]


def comprehension_scopes(log):
    x = "outer"
    inner = [x for x in range(3)]
    return x, inner, [x for _ in range(2)], {x: y for x, y in zip("ab", [1, 2])}, {c for c in "aab"}


def comprehension_unpacks(log):
    return [a + b + sum(c) for (a, b), *c in [((1, 2), 3), ((4, 5), 6, 7)]], [k for k, in [(1,), (2,)]]


def comprehension_first_iterable_outside(log):
    return [x for x in said([1, 2], log) for y in said([3], log)]


def generator_expression_is_lazy(log):
    g = (said(x, log) for x in range(3))
    log.append("made")
    return next(g), list(g)


def fstring_formats(log):
    x, w, p, name = math.pi, 10, 3, "é"
    return [
        f"{x:.2f}|{x:>{w}.{p}f}|{name!r}|{name!a:>12}|{name!s:<4}|{{}}|{x!r:{w}}|",
        f"{x:{'>'}{w}}", f"a{1}b{2}c", f"", f"plain", f"{w:#x} {w:,} {w=}", f"{w = !r:>5}", f"{ w + 1 = :4}", f"{'nested ' + f'{p}'}",
        rf"\n{p}\d", F"{p}", fr'\{p}', f"\t{p}\x41\N{BULLET}", "a" f"{p}" 'b' f"{w}" "c{}", f"{(lambda q: q + 1)(p)}", f"{ {'k': 1}['k'] }",
    ]  # fmt: skip


def fstring_over_lines(log):
    x = [1, 2]
    return f"""first {x[0]}
second {x[
        1]} {{
third""" f"{len(x)}" \
        "end"


def fstring_order(log):
    a, b = Loud("a", log), Loud("b", log)
    items = [1]
    text = f"{items}{items.append(2)}{items}"
    return text, f"{a:x}{said(1, log)}{b!r:>{said(12, log)}}{a}"


def fstring_failure_is_in_order(log):
    class Bad:
        def __format__(self, spec):
            raise ValueError("bad format " + spec)

    return f"{Bad():q} {said('not reached', log)}"


def format_of_wrong_spec(log):
    return f"{LIMIT:s}"


def string_operators(log):
    return "%s-%d" % ("a", 1), "a" "b" * 2, "abc"[0] + "x", "a" in "abc", b"a" b"b"


def numbers_and_constants(log):
    return 1_000, 0x1F, 1e3, 2j, True, None, ..., "s", b"b", r"\n", __debug__, (1).bit_length(), 1.0.is_integer()


def parentheses_stay(log):
    a, b = 2, 3
    return (a + b) * -(a - b) ** 2, -(a) ** 2, (a, b)[0], (not a) + 1, (a if b else b) + 1, (lambda: a)() + 1, a-(-b)


def words_without_spaces(log):
    x = [1]
    return[x[0]if(x)else(2), not(x), x[0]in(1,), x[0]in(1,), [y for y in(1,2)if(y)]]


def builtin_is_shadowed(log):
    len = lambda v: "mine"
    return len([1, 2])


def yields_are_kept(log):
    def gen():
        got = yield 1
        both = (yield got), (yield 2) or 5
        x = yield
        y = [(yield 3), x]
        return both, y

    g = gen()
    out = [next(g)]
    try:
        for value in "abcde":
            out.append(g.send(value))
    except StopIteration as stop:
        out.append(stop.value)
    return out


def yield_from(log):
    def inner():
        r = yield 1
        log.append(r)
        return "done"

    def outer():
        result = yield from inner()
        yield result

    g = outer()
    return [next(g), g.send("s"), list(g)]


def subscript_of_call_of_attribute(log):
    return TABLE["a"].copy()[1:][0].real.__class__.__name__


def conditional_lambda_default(log):
    f = (lambda x=1: x) if LIMIT else (lambda: 0)
    return f()


def local_named_like_an_import(log):
    math = "a text"
    return math.upper(), [math.title() for math in ["x"]]


def deep_nesting(log):
    return ((((((((1 + 1) + 1) + 1) + 1) + 1) + 1) + 1) + 1), [[[[[1]]]]][0][0][0][0][0]


def long_sum(log):
    a = 1
    return a + a + a + a + a + a + a + a + a + a + a + a + a + a + a + a + a + a + a + a + a + a + a + a + a + a + a + a + a + a + a


def sees_its_frame(log):
    x, y = 1, 2
    return sorted(locals()), sorted(vars()), sorted(dir()), eval("x + y"), "LIMIT" in globals(), x if x else locals()


def stars(log):
    parts, named = [1, 2], {"sep": "-", "end": "!"}
    print(*parts, *(x for x in parts), **named)
    made = [*parts, 0, *parts], (*parts,), {*parts, *"ab"} == {1, 2, "a", "b"}, {**named, "end": 2, **{}}
    return made, {(1, 2): 3}[(*parts,)], (lambda *a, **k: (a, k))(*parts, *parts, x=1, **named)


def star_of_a_number(log):
    return [*LIMIT]
