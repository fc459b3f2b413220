"""Each construct of the table is really handed to its operator: name and arguments, as recorded."""

import linecache
import textwrap

import pytest
from dynfix.rewriter.instrument import emit
from plain_forms import Forms


class Recording(Forms):
    """Logs each operator's name and arguments; lambdas are shown as `...`."""

    def __init__(self, fn):
        super().__init__(fn)
        self.log = []

    def __getattribute__(self, name):
        value = super().__getattribute__(name)
        if name.startswith("_") or name in ("fn", "log") or not callable(value):
            return value
        log = super().__getattribute__("log")

        def logged(*args, **kwargs):
            shown = [..., *args] if name == "target" else args
            log.append(
                (name, *(_shown(a) for a in (shown[2:] if name == "target" else shown)), *kwargs)
            )
            return value(*args, **kwargs)

        return logged


def _shown(value):
    if callable(value):
        return getattr(value, "__name__", "...").replace("<lambda>", "...")
    return value


_made = iter(range(10**6))


def make(body, free=""):
    """`fn` of a file with that body; `free` are assignments in the function around."""
    name = f"<made {next(_made)}>"
    text = "def around():\n" + textwrap.indent(
        (free or "pass") + "\ndef fn(o, d, n=2):\n" + textwrap.indent(body, "    "), "    "
    )
    text += "\n    return fn\n"
    linecache.cache[name] = (len(text), None, text.splitlines(True), name)
    scope = {"G": 5, "__name__": "made"}
    exec(compile(text, name, "exec"), scope)
    return scope["around"]()


class Obj:
    x = 1

    def m(self, *args, **kwargs):
        return args, kwargs


def record(body, free=""):
    fn = make(body, free)
    made = []

    def factory(of):
        made.append(Recording(of))
        return made[-1]

    new = emit.rewrite(fn, factory)
    assert made[0].fn is fn
    obj = Obj()
    new(obj, {1: 2, "k": [1, 2, 3]})
    return [tuple("o" if part is obj else part for part in entry) for entry in made[0].log]


CASES = {
    "call": ("o.m(n, k=1)", [("attr", "o", "m"), ("call", "m", 2, "k")]),
    "star": ("[*d, n]", [("iter", {1: 2, "k": [1, 2, 3]})]),
    "star in a call": ("print(*'')", [("glob", "print", "print"), ("iter", ""), ("call", "print")]),
    "star in a key": ("{}.get((*'ab',))", [("attr", {}, "get"), ("iter", "ab"), ("call", "get")]),
    "for with parts": (
        "for a, (b, *c) in ((1, (2, 3)),): pass",
        [("each", ((1, (2, 3)),), ((), ((), "*")))],
    ),
    "targets in a target": (
        "(a, b), c = d, 1",
        [("unpack", ({1: 2, "k": [1, 2, 3]}, 1), (((), ()), ()))],
    ),
    "several targets": ("e = (a, b) = d", [("unpack_kept", {1: 2, "k": [1, 2, 3]}, ((), ()))]),
    "raise": (
        "try:\n    raise KeyError from None\nexcept: pass",
        [("glob", "KeyError", "KeyError"), ("raised", "KeyError"), ("raised", None)],
    ),
    "except": (
        "try: 1 / 0\nexcept ZeroDivisionError: pass",
        [
            ("binary", "/", 1, 0),
            ("glob", "ZeroDivisionError", "ZeroDivisionError"),
            ("caught", "ZeroDivisionError"),
        ],
    ),
    "two stars": ("{**d}", [("mapping", {1: 2, "k": [1, 2, 3]})]),
    "attribute": ("o.x", [("attr", "o", "x")]),
    "item": ("d[1]", [("item", {1: 2, "k": [1, 2, 3]}, 1)]),
    "slice": ("'abc'[n:]", [("item", "abc", slice(2, None))]),
    "slices": ("'abc'[0:n:1]", [("item", "abc", slice(0, 2, 1))]),
    "global": ("G", [("glob", "G", 5)]),
    "builtin": ("len", [("glob", "len", "len")]),
    "set_attr": ("o.y = n", [("set_attr", "o", "y", 2)]),
    "del_attr": ("o.y = 1; del o.y", [("set_attr", "o", "y", 1), ("del_attr", "o", "y")]),
    "set_item": ("d['z'] = n", [("set_item", {1: 2, "k": [1, 2, 3], "z": 2}, "z", 2)]),
    "del_item": ("del d[1]", [("del_item", {"k": [1, 2, 3]}, 1)]),
    "global store": ("global H; H = n", [("set_glob", "H", 2)]),
    "global walrus": ("global H; (H := n)", [("set_glob", "H", 2)]),
    "global in a tuple": ("global H; H, a = n, 1", [("set_glob", "H", 2)]),
    "global augmented": (
        "global G; G += n",
        [("glob", "G", 5), ("inplace", "+=", 5, 2), ("set_glob", "G", 7)],
    ),
    "global import": ("global math; import math", None),
    "binary": ("n + 1", [("binary", "+", 2, 1)]),
    "unary": ("-n", [("unary", "-", 2)]),
    "inplace": ("n *= 3", [("inplace", "*=", 2, 3)]),
    "aug_attr": (
        "o.x += n",
        [
            ("aug_attr", "o", "x", "+=", 2),
            ("attr", "o", "x"),
            ("inplace", "+=", 1, 2),
            ("set_attr", "o", "x", 3),
        ],
    ),
    "aug_item": (
        "d[1] -= n",
        [
            ("aug_item", {1: 0, "k": [1, 2, 3]}, 1, "-=", 2),
            ("item",),
            ("inplace", "-=", 2, 2),
            ("set_item",),
        ],
    ),
    "aug_attr in order": (
        "o.x += n + 1",
        [
            ("attr", "o", "x"),
            ("binary", "+", 2, 1),
            ("inplace", "+=", 1, 3),
            ("set_attr", "o", "x", 4),
        ],
    ),
    "compare": ("n < 3", [("compare", 2, "<", 3)]),
    "not in": ("n not in d", [("compare", 2, "not in", {1: 2, "k": [1, 2, 3]})]),
    "chain": (
        "1 < n <= 5",
        [
            ("chain", 1, "<", "...", "<=", "..."),
            ("compare", 1, "<", 2),
            ("truth", True),
            ("compare", 2, "<=", 5),
        ],
    ),
    "if": ("if n: pass", [("truth", 2)]),
    "elif": ("if not n: pass\nelif n: pass", [("not_", 2), ("truth", 2)]),
    "while": ("while n: n = 0", [("truth", 2), ("truth", 0)]),
    "if and": ("if n and o: pass", [("truth", 2), ("truth", "o")]),
    "ternary": ("1 if n else 0", [("select", 2, "...", "..."), ("truth", 2)]),
    "ternary over lines": (
        "(1\n if n\n else 0)",
        [("select", "then", "test", "orelse"), ("truth", 2)],
    ),
    "not": ("not n", [("not_", 2)]),
    "and": ("n and 0", [("and_", 2, "..."), ("truth", 2)]),
    "or": ("n or 0 or 1", [("or_", 2, "..."), ("truth", 2)]),
    "assert": ("assert n, 'm'", [("truth", 2)]),
    "for": ("for i in (1, 2): pass", [("iter", (1, 2))]),
    "comprehension": ("[i for i in (1,) if n]", [("iter", (1,)), ("truth", 2)]),
    "unpack": ("a, b = 'xy'", [("iter", "xy")]),
    "unpack to attributes": ("o.a, b = 1, 2", [("target", "o", "a"), ("set_attr", "o", "a", 1)]),
    "for over attribute": (
        "for o.i in 'z': pass",
        [("iter", "z"), ("target", "o", "i"), ("set_attr", "o", "i", "z")],
    ),
    "with": ("import contextlib as c\nwith c.nullcontext(): pass", None),
    "f-string": (
        "f'a{n:>{n}}b'",
        [("fstring", ">", (2, None, "")), ("fstring", "a", (2, None, ">2"), "b")],
    ),
    "f-string converted": ("f'a{n!r}b'", [("fstring", "a", (2, "r", ""), "b")]),
    "f-string in order": (
        "f'{n}{n + 1}'",
        [
            ("fstring", (2, None, "")),
            ("binary", "+", 2, 1),
            ("fstring", (3, None, "")),
            ("fstring", "2", "3"),
        ],
    ),
    "nested function": ("def f(x): return x + n\nf(1)", [("call", "f", 1), ("binary", "+", 1, 2)]),
    "lambda": (
        "(lambda x: x + G)(1)",
        [("call", "...", 1), ("glob", "G", 5), ("binary", "+", 1, 5)],
    ),
    "match guard": ("match n:\n    case x if x: pass", [("subject", 2, (), ()), ("truth", 2)]),
    "decorator": ("@(lambda f: f)\ndef g(): pass", [("decorator", "...")]),
}


@pytest.mark.parametrize("case", CASES)
def test_construct(case):
    body, expected = CASES[case]
    got = record(body)
    if expected is None:
        wanted = {"with": "context", "global import": "set_glob"}[case]
        assert wanted in [entry[0] for entry in got]
        return
    assert [entry[: len(want)] for entry, want in zip(got, expected, strict=True)] == expected


def test_free_variables():
    log = record("nonlocal v\nw\nv = w + 1\nv += 1\nfor i in [1]: pass", free="v = 1; w = 2")
    assert ("free", "w", 2) in log and ("set_free", "v", 3) in log and ("set_free", "v", 4) in log


def test_names_of_an_enclosing_rewritten_function_are_plain():
    log = record("def inner():\n    nonlocal n\n    n = n + 1\n    return n\ninner()")
    assert [entry[0] for entry in log] == ["call", "binary"]


def test_frame_readers_are_left_alone():
    log = record(
        "a = locals(); b = vars(); eval('n'); globals(); exec('1')\nassert '__df' not in a and"
        " '__df' not in b"
    )
    assert "locals" not in repr(log) and "eval" not in repr(log) and "globals" not in repr(log)


def test_class_bodies_are_left_alone_but_what_they_read_is_told():
    log = record("class C:\n    y = n + G\n    def m(self): return [G for _ in 'a']\nC().m()")
    assert [entry[0] for entry in log] == ["class_reads", "call", "attr", "call"]


def test_annotations_are_left_alone():
    fn = make("def f(x: G, y: 'len' = G) -> G: return 1\nz: G = 1\nreturn f")
    assert emit.rewrite(fn, Forms)(None, None).__annotations__ == {"x": 5, "y": "len", "return": 5}


@pytest.mark.parametrize(
    "body",
    [
        "global G\nfor G in 'a': pass",
        "global G\ndef G(): pass",
        "global G\ndel G",
        "global G\nwith o as G: pass",
        "global G\ntry: pass\nexcept KeyError as G: pass",
        "global G\nmatch n:\n    case G: pass",
        "slice = 1\nreturn d[1:2]",
        "__df = 1; return __df",
        "o.x += (yield)\nd.x.y += (yield)",
    ],
)
def test_refused(body):
    with pytest.raises(emit.NotRewritable, match=r"not supported by the rewriter"):
        emit.rewrite(make(body), Forms)


def test_a_global_that_shadows_slice_is_refused():
    fn = make("return 'abc'[0:n]")
    assert emit.rewrite(fn, Forms)(None, None) == "ab"
    fn.__globals__["slice"] = None
    with pytest.raises(emit.NotRewritable, match="shadowed"):
        emit.rewrite(fn, Forms)
