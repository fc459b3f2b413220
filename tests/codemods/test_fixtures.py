"""Fixtures on disk: what safe fixes and all fixes make of each input, and that a second run changes
nothing."""

import ast

import pytest
from dynfix.codemods.rules import RULES

from . import support

CASES = [(path, kind) for path in support.inputs() for kind in ("out", "unsafe.out")]


@pytest.mark.parametrize(
    ("path", "kind"), CASES, ids=[f"{p.parent.name}-{p.name[:-6]}-{k}" for p, k in CASES]
)
def test_fixture(path, kind, request):
    """`.out.py` after safe fixes (absent: no change), `.unsafe.out.py` after all (absent: as after
    the safe ones)."""
    text, run = path.read_text(), support.reads(path)
    result = support.fixed(text, unsafe=kind != "out", **run)
    unchanged = text if kind == "out" else support.fixed(text, **run).source.text
    target = support.expected(path, kind)
    if request.config.getoption("--regen", default=False):
        target.unlink(missing_ok=True)
        if result.source.text != unchanged:
            target.write_text(result.source.text)
    want = target.read_text() if target.exists() else unchanged
    assert result.source.text == want
    ast.parse(result.source.text)
    if result.source.text != text:
        result = support.fixed(want, unsafe=kind != "out", **run)
        assert result.source.text == want
    assert not result.applied


@pytest.mark.parametrize("path", support.inputs(), ids=lambda p: p.name)
def test_fixture_is_about_its_rule(path):
    """Every input makes its folder's rule speak, except those named `quiet_*` and `noqa*`, which
    must not."""
    codes = {f.code for f in support.found(path.read_text(), **support.reads(path))}
    assert (path.parent.name in codes) is not path.name.startswith(("quiet_", "noqa"))


@pytest.mark.parametrize("rule", RULES, ids=lambda r: r.code)
def test_documented_example(rule):
    """The example in the documentation is what the rule does."""
    run = support.shown(rule.shown, rule.before if rule.code == "DYN110" else "")
    run |= support.selecting(rule.code)
    assert rule.code in support.codes(rule.before, **run)
    unsafe = rule.safety is None or rule.safety.value == "unsafe"
    result = support.fixed(rule.before, unsafe=unsafe, **run)
    if rule.after is None:
        assert rule.code in {f.code for f in result.left}
    else:
        assert result.source.text == rule.after
        assert rule.code not in {f.code for f in result.left}


@pytest.mark.parametrize("rule", RULES, ids=lambda r: r.code)
def test_every_rule_is_complete(rule):
    """Code, name, message, help and documentation are there; what has a fix says how safe it is;
    and fixtures have a suppressed case."""
    assert rule.code.startswith("DYN")
    assert all([rule.name, rule.message, rule.help, rule.__doc__])
    assert (rule.safety is None) == (rule.after is None), "`safety` is that of the fix in `after`"
    texts = [p.read_text() for p in support.inputs() if p.parent.name == rule.code]
    assert texts
    assert any(f"noqa: {rule.code}" in t for t in texts)


def test_prints_in_expressions_are_found():
    source = (support.FIXTURES / "DYN301" / "expressions.in.py").read_text()
    kept = [f for f in support.found(source) if f.code == "DYN301" and f.fix is None]
    assert [f.line for f in kept] == [16, 18, 20, 21]
