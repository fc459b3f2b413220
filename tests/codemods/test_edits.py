"""Intents: what is written for an edit, and that nothing else changes by a byte."""

import ast

import pytest
from dynfix.rewriter.source import intents
from dynfix.rewriter.source.parentheses import Binding, shown
from dynfix.rewriter.source.source_file import SourceFile
from dynfix.rewriter.source.spans import Edit, Refusal, apply

from . import support


def made(text, *edits):
    """What the edits, made of the SourceFile, make of a text; the Refusal that one of them is."""
    source = SourceFile(text)
    built = [make(source) for make in edits]
    if any(isinstance(b, Refusal) for b in built):
        return next(b.why for b in built if isinstance(b, Refusal))
    return source.with_text(apply(text, intents.realised(source, built))).text


def statement(source, text):
    """The first statement whose first line begins with `text`."""
    nodes = (n for n in ast.walk(source.tree) if isinstance(n, ast.stmt))
    return next(n for n in nodes if source.segment(n).startswith(text))


def expression(source, text):
    nodes = (n for n in ast.walk(source.tree) if isinstance(n, ast.expr))
    return next(n for n in nodes if ast.unparse(n) == text)


def delete(text):
    return lambda source: intents.delete_statement(source, statement(source, text))


def wrap(*texts):
    return lambda source: intents.wrap(source, [statement(source, t) for t in texts], "if a:")


def swap(old, new):
    return lambda source: intents.replace_statements(source, [statement(source, old)], new)


def express(old, new):
    return lambda source: intents.replace_expression(source, expression(source, old), new)


def before(old, new):
    return lambda source: intents.insert_before(source, statement(source, old), new)


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("stop(); x = 1; stop()\n", "x = 1; stop()\n"),
        ("x = 1; stop()\ny = 2\n", "x = 1\ny = 2\n"),
        ("x = 1; stop()  # why\ny\n", "x = 1  # why\ny\n"),
        ("x = 1; stop(); y = 2 ;\n", "x = 1; y = 2 ;\n"),
        ("if a: stop()\nx\n", "if a: pass\nx\n"),
        ("if a: stop()  # why\nx\n", "if a: pass  # why\nx\n"),
        ("if a: stop(); x = 1\n", "if a: x = 1\n"),
        ("if a:\n    stop()  # why\nelse:\n    y\n", "if a:\n    pass  # why\nelse:\n    y\n"),
        ("def f():\n\tx\n\tstop()  # why\n\ty\n", "def f():\n\tx\n\t# why\n\ty\n"),
        ("x\nstop()", "x\n"),
        ("x\r\nstop(\r\n)\r\ny\r\n", "x\r\ny\r\n"),
        ("try:\n  x\nexcept E: stop(); y\n", "try:\n  x\nexcept E: y\n"),
    ],
)
def test_delete(text, want):
    assert made(text, delete("stop()" if "stop()" in text else "stop(")) == want


def test_two_deletions_on_one_line():
    """`breakpoint(); x = x + 1; breakpoint()` is still `x = x + 1`."""
    text = """import torch

@torch.compile
def step(x: torch.Tensor):
    breakpoint(); x = x + 1; breakpoint()
    return x
"""
    want = text.replace("breakpoint(); x = x + 1; breakpoint()", "x = x + 1")
    assert support.fixed(text, unsafe=True).source.text == want


@pytest.mark.parametrize(
    ("text", "run", "want"),
    [
        ("say()  # why\nx\n", ["say"], "if a:\n    say()  # why\nx\n"),
        ("x = 1; say()  # why\n", ["say"], "x = 1\nif a:\n    say()  # why\n"),
        ("say(); x = 1  # why\n", ["say"], "if a:\n    say()\nx = 1  # why\n"),
        ("x; say(); y\n", ["say"], "x\nif a:\n    say()\ny\n"),
        ("if b: say()  # why\ny\n", ["say"], "if b:\n    if a:\n        say()  # why\ny\n"),
        ("if b: x; say()\n", ["say"], "if b:\n    x\n    if a:\n        say()\n"),
        (
            "def f():\n  say(1)\n\n  # between\n  say(2)\n  y\n",
            ["say(1)", "say(2)"],
            "def f():\n  if a:\n    say(1)\n\n    # between\n    say(2)\n  y\n",
        ),
        (
            'def f():\n    say("""a\n  b""",\n        1)\n',
            ["say"],
            'def f():\n    if a:\n        say("""a\n  b""",\n            1)\n',
        ),
        (
            "if b:\n    x\nelif c: say()\nelse:\n    y\n",
            ["say"],
            "if b:\n    x\nelif c:\n    if a:\n        say()\nelse:\n    y\n",
        ),
    ],
)
def test_wrap(text, run, want):
    assert made(text, wrap(*run)) == want


@pytest.mark.parametrize(
    ("text", "new", "want"),
    [
        ("old()  # why\n", "new(1)", "new(1)  # why\n"),
        ("x; old(); y  # why\n", "new(1)", "x; new(1); y  # why\n"),
        ("x; old()  # why\n", "a = 1\nb = 2", "x\na = 1\nb = 2  # why\n"),
        ("if b: old()\n", "a = 1\nb = 2", "if b:\n    a = 1\n    b = 2\n"),
        ("if b: old()  # why\n", "new", "if b: new  # why\n"),
        ("def f():\n\told()  # why\n", "if b:\n\t\ty", "def f():\n\tif b:\n\t\ty  # why\n"),
        ("def f():\n    old(\n        1,  # why\n    )\n", "new", "a comment would be lost"),
        ("old(\n    1,  # why\n)\n", "new(\n  1,  # why\n)", "new(\n  1,  # why\n)\n"),
    ],
)
def test_replace_statements(text, new, want):
    assert made(text, swap("old(", new)) == want


@pytest.mark.parametrize(
    ("text", "old", "new", "want"),
    [
        ("y = a * b\n", "b", "c + d", "y = a * (c + d)\n"),
        ("y = a * (b)\n", "b", "c + d", "y = a * (c + d)\n"),
        ("y = a * b\n", "a", "c / d", "y = c / d * b\n"),
        ("y = -a ** b\n", "a", "-c", "y = -(-c) ** b\n"),
        ("y = a.b\n", "a", "c or d", "y = (c or d).b\n"),
        ("y = f(a)\n", "a", "c if d else e", "y = f(c if d else e)\n"),
        (
            "y = [b for a in c if d]\n",
            "d",
            "e if f else g",
            "y = [b for a in c if (e if f else g)]\n",
        ),
        ("y = a\n", "a", "c\n.d", "y = (c\n.d)\n"),
        ("y = (a)\n", "a", "c\n.d", "y = (c\n.d)\n"),
        ("y = (a, b)\n", "(a, b)", "c", "y = c\n"),
        ("y = f(a for a in b)\n", "b", "c or d", "y = f(a for a in c or d)\n"),
        ("y = (  # why\n  a +\n  b)  # too\n", "a", "c", "y = (  # why\n  c +\n  b)  # too\n"),
        ("y = f(  # why\n  a\n)\n", "f(a)", "g(a)", "a comment would be lost"),
        ("while a: b\n", "a", "c", "while c: b\n"),
        ("def f(a=(2.0)): b\n", "2.0", "3.0", "def f(a=(3.0)): b\n"),
        ("with a as b, c: d\n", "c", "e", "with a as b, e: d\n"),
        ("é = 'é' + a * b\n", "b", "c - d", "é = 'é' + a * (c - d)\n"),
    ],
)
def test_replace_expression(text, old, new, want):
    assert made(text, express(old, new)) == want


@pytest.mark.parametrize(
    ("text", "want"),
    [
        (
            "def f():\n    # why\n    old()\n",
            "def f():\n    # why\n    a\n    if b:\n        c\n    old()\n",
        ),
        ("x; old()  # why\n", "x\na\nif b:\n    c\nold()  # why\n"),
        ("if x: old()\n", "if x:\n    a\n    if b:\n        c\n    old()\n"),
    ],
)
def test_insert_before(text, want):
    assert made(text, before("old", "a\nif b:\n    c")) == want


@pytest.mark.parametrize(
    ("text", "want"),
    [
        (
            "def f():\n    old()  # why\n    x\n",
            "def f():\n    old()  # why\n    a\n\n    b\n    x\n",
        ),
        ("def f():\n    old()", "def f():\n    old()\n    a\n\n    b"),
        ("old(); x\n", "it shares its line with others"),
    ],
)
def test_insert_after(text, want):
    assert made(text, lambda s: intents.insert_after(s, statement(s, "old"), "a\n\nb")) == want


def test_a_comment_that_moves_is_not_lost():
    source = SourceFile("x = [  # why\n    1]\n")
    assert isinstance(intents.replace_statements(source, source.tree.body, "f()"), Refusal)
    moved = intents.replace_statements(source, source.tree.body, "f()", moved="y = [  # why\n1]")
    assert isinstance(moved, Edit)


def test_texts_in_the_places_of_parts():
    source = SourceFile("y = f(a, b.c) + é(b)\n")
    inner = {expression(source, "b.c"): "d", expression(source, "é(b)"): "g"}
    assert source.substituted(source.tree.body[0].value, inner) == "f(a, d) + g"
    assert source.substituted(expression(source, "f(a, b.c)"), inner) == "f(a, d)"
    inner[source.tree.body[0].value.right.args[0]] = "within"
    with pytest.raises(ValueError, match="overlap"):
        source.substituted(source.tree.body[0].value, inner)


def test_two_edits_of_one_expression():
    assert made("y = f(a, b)\n", express("a", "c"), express("b", "d")) == "y = f(c, d)\n"


@pytest.mark.parametrize(
    ("text", "least", "want"),
    [
        ("a + b", Binding.ATOM, "(a + b)"),
        ("a + b", Binding.SUM, "a + b"),
        ("a.b(c)[d]", Binding.ATOM, "a.b(c)[d]"),
        ("2", Binding.ATOM, "(2)"),
        ("2.0", Binding.ATOM, "2.0"),
        ("(a, b)", Binding.ATOM, "(a, b)"),
        ("(a), (b)", Binding.ATOM, "((a), (b))"),
        ("a or b", Binding.TEST, "a or b"),
        ("lambda: a", Binding.OR, "(lambda: a)"),
        ("(a\n.b)", Binding.TEST, "(a\n.b)"),
    ],
)
def test_parentheses(text, least, want):
    source = SourceFile(f"y = {text}\n")
    assert shown(source, source.tree.body[0].value, least) == want


def test_an_edit_that_is_no_python_is_not_made():
    source = SourceFile("old()\n")
    with pytest.raises(ValueError, match="no Python"):
        intents.realised(source, [intents.replace_statements(source, source.tree.body, "if")])
    assert intents.realised(source, [Edit(0, 3, "new")]) == [Edit(0, 3, "new")]


HEAD = "import torch\nfrom torch import nn\n\n\n"
KEEPS = {
    "loop": """@torch.compile
def step(x: torch.Tensor):
    total = torch.zeros(3, dtype=torch.long)
    for i in range(3):
        # the reason
        total = total + i
    return total + x.shape[0]
""",
    "while": """@torch.compile
def step(x: torch.Tensor):
    y = x * 2
    while y.sum() < 10:  # the reason
        y = y + 1
    return y
""",
    "masked write": """@torch.compile
def step(x: torch.Tensor):
    y = x.clone()
    y[x > 0] = (  # the reason
        x[x > 0] * 2)
    return y
""",
    "dict attribute": """class Config(dict):
    __getattr__ = dict.__getitem__
    __setattr__ = dict.__setitem__


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.config = Config(scale=2)

    def forward(self, x):
        return x * (self.config  # the reason
                    .scale)
""",
}


@pytest.mark.parametrize("text", KEEPS.values(), ids=KEEPS)
def test_a_comment_that_would_be_lost_makes_a_fix_refuse(text):
    result = support.fixed(HEAD + text, unsafe=True)
    assert "# the reason" in result.source.text
    assert "a comment would be lost" in {f.kept for f in result.left}
    bare = support.fixed(HEAD + text.replace("# the reason", ""), unsafe=True)
    assert bare.source.text != HEAD + text.replace("# the reason", "")


def test_parentheses_over_lines_stay_one_expression():
    text = (
        HEAD
        + """class Model(nn.Module):
    def forward(self, x: torch.Tensor):
        setattr(self, "last", (x
                               .detach()))
        return x
"""
    )
    want = text.replace('setattr(self, "last", (x', "self.last = (x").replace(
        "detach()))", "detach())"
    )
    assert support.fixed(text).source.text == want


def test_a_default_in_parentheses():
    text = """import numpy as np
import torch
from scipy.ndimage import gaussian_filter


def smooth(x, sigma=(2.0)):
    return torch.from_numpy(gaussian_filter(x.numpy(), sigma))


@torch.compile
def step(x: torch.Tensor):
    return x - smooth(x.detach())
"""
    made_ = support.fixed(text, unsafe=True).source.text
    assert "def smooth(x: torch.Tensor, sigma: float = (2.0)) -> torch.Tensor:\n" in made_
    assert "def _(x, sigma=2.0):\n" in made_
    ast.parse(made_)
