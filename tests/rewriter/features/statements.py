"""Language features: statements."""
# ruff: noqa
# fmt: off

import contextlib

COUNT = 0
SETTINGS = {"n": 1}


class Box:
    kind = "box"

    def __init__(self, **values):
        self.__dict__.update(values)

    def __eq__(self, other):
        return type(other) is Box and vars(self) == vars(other)

    def __repr__(self):
        return f"Box({sorted(self.__dict__.items())})"


class Watched:
    """Logs loads, stores and deletions."""

    def __init__(self, log):
        object.__setattr__(self, "log", log)
        object.__setattr__(self, "values", {"x": 1, "l": [1]})

    def __getattr__(self, name):
        self.log.append(("get", name))
        return self.values[name]

    def __setattr__(self, name, value):
        self.log.append(("set", name, value))
        self.values[name] = value

    def __delattr__(self, name):
        self.log.append(("del", name))

    def __getitem__(self, key):
        self.log.append(("getitem", key))
        return self.values.get(key, 10)

    def __setitem__(self, key, value):
        self.log.append(("setitem", key, value))
        self.values[key] = value

    def __delitem__(self, key):
        self.log.append(("delitem", key))


def said(value, log):
    log.append(value)
    return value


def if_elif_else(log):
    out = []
    for x in range(4):
        if x == 0:
            out.append("zero")
        elif x == 1: out.append("one"); continue
        elif x > 2 and not x % 2 == 0:
            out.append("odd")
        else:
            out.append("else")
    return out


def while_else(log):
    n = 3
    while n:
        n -= 1
        if n == 5:
            break
    else:
        log.append("done")
    while True:
        n += 1
        if n < 3: continue
        break
    else:
        log.append("never")
    return n


def for_else(log):
    for i in range(3):
        if i == 1:
            break
    else:
        log.append("never")
    for j in []: pass
    else:
        log.append("else")
    for i, (a, *b) in enumerate([(1, 2, 3), "xy"]): log.append((i, a, b))
    for x in 1, 2: log.append(x)
    return i


def for_over_iterator_with_state(log):
    it = iter([1, 2, 3, 4])
    for x in it:
        log.append((x, next(it)))
    return list(it)


def for_stores_to_places(log):
    box, d = Box(), {}
    for box.x in range(3):
        log.append(box.x)
    for d["a"], box.y in [(1, 2), (3, 4)]:
        pass
    return box, d, [0 for box.z in "ab"], box.z


def unpacking(log):
    a, b = 1, 2
    a, b = b, a
    (c, d), *e = [(1, 2), 3, 4]
    [f, *g, h] = "wxyz"
    *i, = (1, 2)
    j = k = [5]
    l, = [1]
    (m), n = {"x": 1, "y": 2}
    return a, b, c, d, e, f, g, h, i, j is k, l, m, n


def unpacking_too_many(log):
    a, b = [1, 2, 3]


def unpacking_too_few(log):
    a, b, *c = iter([1])


def unpacking_not_iterable(log):
    a, b = 5


def unpacking_to_places(log):
    w, t = Watched(log), Box()
    w.a, w["b"], t.c = said((1, 2, 3), log)
    (w.d, (t.e, *t.f)) = 1, (2, 3, 4)
    w.g = t.h = w[said("i", log)] = said([1], log)
    w.j, k = w.k, w.j = 1, 2
    return t, k


def store_order(log):
    def box(name):
        log.append(name)
        return Watched(log)

    box("target").x = said(1, log)
    box("target")[said("key", log)] = said(2, log)
    box("inner").l[said(0, log)] = said(3, log)
    w = Watched(log)
    w.y = w.x
    w[0] = w.x
    w[1:2, ...] = w["q"]
    return None


def store_sees_rebinding(log):
    a, b = Box(), Box()
    target = a

    def swap():
        nonlocal target
        target = b
        return 1

    target.x = swap()
    target.y = 2
    return a, b


def augmented_names(log):
    a, b, c = 5, [1], "s"
    alias = b
    a += 2; a -= 1; a *= 3; a //= 2; a **= 2; a %= 50; a <<= 2; a >>= 1; a |= 1; a &= 0xFF; a ^= 3
    b += (2, 3)
    c *= 2
    f = 3.0
    f /= 2
    return a, b is alias, b, c, f


def augmented_places(log):
    w = Watched(log)
    w.x += 1
    w.x += said(2, log)
    w["k"] -= 1
    w[said("k", log)] *= said(3, log)
    w[1:2] += w.x
    w.l += [said(2, log)]
    w.l[0] += 5
    w.l[said(0, log)] += w.l[0] + said(1, log)
    return w.values


def augmented_reads_before(log):
    box = Box(n=1)

    def bump():
        box.n += 10
        return 100

    box.n += bump()
    items = [1, 2]

    def grow():
        items[0] = 50
        return 1

    items[0] += grow()
    return box, items


def augmented_failure(log):
    w = Watched(log)
    w.x += "text"


def augmented_tuple_item(log):
    t = ([1],)
    try:
        t[0] += [2]
    except TypeError as error:
        log.append(str(error))
    return t


def deletions(log):
    w = Watched(log)
    a, b, d = 1, 2, {"x": 1, "y": 2, "z": 3}
    del w.x, w["k"], a
    del (b, d["x"]), [d["y"]]
    del w[1:2]
    try:
        a
    except NameError as error:
        log.append(type(error).__name__)
    return d


def annotated_stores(log):
    x: int = 1
    y: "never" = [x]
    z: undefined_name
    box = Box()
    box.a: undefined_name = said(2, log)
    box.b: int
    d = {}
    d["k"]: int = 3
    return x, y, box, d


def global_store(log):
    global COUNT, FRESH
    COUNT = COUNT + 1
    COUNT += 10
    FRESH = "new"
    n, COUNT = COUNT, 0
    (FRESH := FRESH + "er")
    import math as FRESH2
    return n, COUNT, FRESH


def global_import(log):
    global json, decode
    import json
    from json import loads as decode
    return json.dumps({}), decode("[1]")


@contextlib.contextmanager
def ctx(name, log, swallow=False):
    log.append(("enter", name))
    try:
        yield name
    except ValueError:
        if not swallow:
            raise
    finally:
        log.append(("exit", name))


def with_statements(log):
    box = Box()
    with ctx("a", log) as a, ctx("b", log) as box.b:
        log.append(a)
    with (ctx("c", log) as c, ctx("d", log, swallow=True)):
        raise ValueError("swallowed")
    with contextlib.suppress(KeyError): {}["x"]
    with ctx(("x", "y"), log) as (p, q):
        pass
    return box, c, p, q


def with_not_a_manager(log):
    with said(5, log) as x:
        pass


def match_statement(log):
    def kind(v):
        match v:
            case 0 | 1:
                return "small"
            case int(n) if n > 100:
                return ("large", n)
            case [x, y, *rest]:
                return ("seq", x, y, rest)
            case {"k": value, **others}:
                return ("map", value, others)
            case Box(kind="box", n=n) if n:
                return ("box", n)
            case str() as s:
                return ("str", s)
            case None:
                return "none"
            case _:
                return "other"

    return [kind(v) for v in (0, 500, [1, 2, 3], {"k": 1, "z": 2}, Box(n=3), Box(n=0), "t", None, 5.5)]


def match_tuple_subject(log):
    x, y = 1, 2
    match x, said(y, log):
        case (1, b): return b


def conditional_import(log):
    if COUNT is not None:
        import math, os.path as osp
    else:
        import cmath as math
    from string import ascii_letters as letters, digits
    return math.floor(2.5), osp.basename("a/b"), len(letters), digits


def import_failure(log):
    from math import does_not_exist


def semicolons(log): a = 1; b = a + 1; log.append(a); return a, b


def expression_statements(log):
    said(1, log); said(2, log)
    "a string"
    log and said(3, log)
    [said(x, log) for x in "ab"]
    ...
    return COUNT


def name_error_global(log):
    return no_such_name + 1


def name_error_after_del(log):
    def f(flag):
        if flag:
            value = 1
        return value

    log.append(f(True))
    return f(False)


def attribute_error(log):
    box = Box()
    return box.missing


def item_error(log):
    return SETTINGS[
        "nope"
    ]


def type_error_in_call(log):
    return said(1)


def type_error_in_operator(log):
    x = "a"
    y = 1
    return x + y


def call_of_uncallable(log):
    return SETTINGS(1)


def zero_division_deep(log):
    def inner(n):
        if n == 0:
            return 1 / n
        return inner(n - 1)

    return inner(3)


def error_in_argument_over_lines(log):
    return said(
        said(1, log),
        SETTINGS["zz"],
    )


def prints(log):
    print("a", 1, sep="-", end="!\n")
    for x in range(2): print(f"{x=}")
    print(*[1, 2], **{"sep": ","})


def continuation_lines(log):
    x = 1 + \
        2
    assert x \
        == 3
    if x > 1 and \
            x < 5:
        return x, \
            -x


def comments_and_blank_lines(log):
    # before
    x = [  # opening
        1,  # one

        2,
    ]  # closing

    # between
    return (x[0]  # first
            # alone
            + x[1])


def docstring_is_kept(log):
    def f():
        """The doc, with
        two lines."""

    def g():
        "a" "b"

    return f.__doc__, g.__doc__


def strings_over_lines(log):
    return """one
  two
three""", '''
''', SETTINGS["n"]


def error_in_a_chain_over_lines(log):
    return (said("text", log)
            .strip()
            # a comment
            .nope(
                1))


def error_in_attributes_over_lines(log):
    return COUNT.real. \
        real \
        .nope


def error_in_a_called_method_over_lines(log):
    return (
        Box
        .__init__(
            said(1, log),
            2,
        )
    )
