"""What the codemod tests share: fixtures on disk, fixing a text, running the command."""

import ast
import contextlib
import io
import json
import os
from pathlib import Path

import pytest
from dynfix.codemods.cli import check
from dynfix.codemods.cli.command import main
from dynfix.codemods.cli.settings import Settings
from dynfix.codemods.hoist.plan import planned
from dynfix.codemods.rules.host.read_ahead import ReadAhead
from dynfix.codemods.trace import trace_facts
from dynfix.rewriter.catalogue import REASONS
from dynfix.rewriter.source.source_file import SourceFile

FIXTURES = Path(__file__).parent / "fixtures"

_OLD = {"target_torch": "2.11"}  # of which every rule reports


def alone(settings):
    """The settings without DYN506, unless a run is shown or they say what is ignored: it would come
    before the unsafe fixes of other rules."""
    return settings if "facts" in settings else {"ignore": ("DYN506",), **settings}


def fixed(text, unsafe=False, **settings):
    """The Fixed of a text."""
    settings = {**_OLD, **alone(settings)}
    return check.fix(SourceFile(text, "model.py"), Settings(unsafe_fixes=unsafe, **settings))


def shown(reads, text=""):
    """The settings of a traced run of model.py that showed `reads`: (outermost forward, function,
    text of the read). With the `text` of the file, those that a forward makes itself are of its
    inputs alone."""
    path, roots = os.path.realpath("model.py"), {}
    for root, function, read in reads:
        roots.setdefault(root, []).append([[path, function, read]])
    own = [
        ([[path, function, _place(text, function, read)]], True)
        for root, function, read in reads
        if root == function
    ]
    facts = (
        {path: trace_facts.TraceFacts({}, [f for _, f, _ in reads], own if text else (), roots)}
        if reads
        else {}
    )
    return (
        {"facts": planned(facts, Settings(), lambda _: SourceFile(text, "model.py"))}
        if reads
        else {}
    )


def _place(text, function, read):
    """Where the expression stands."""
    if not text:
        return None
    (within,) = [
        node for node, name in trace_facts.qualified(ast.parse(text)).items() if name == function
    ]
    node = next(n for n in ast.walk(within) if isinstance(n, ast.expr) and ast.unparse(n) == read)
    return [node.lineno, node.col_offset, node.end_lineno, node.end_col_offset]


def selecting(code):
    """The settings that select a rule which is off by default."""
    return {"extend_select": (code,)} if REASONS[code].opt_in else {}


def reads(path):
    """`shown` by the file beside a fixture's input, where there is one; its rule is selected."""
    beside = path.with_name(path.name.removesuffix(".in.py") + ".reads.json")
    text = path.read_text() if path.parent.name == ReadAhead.code else ""
    facts = shown(json.loads(beside.read_text()), text) if beside.exists() else {}
    return {**facts, **selecting(path.parent.name)}


def found(text, **settings):
    return check.findings(SourceFile(text, "model.py"), Settings(**{**_OLD, **alone(settings)}))


def codes(text, **settings):
    return [f.code for f in found(text, **settings)]


def few(cases, number):
    """The first cases, and as slow ones the others."""
    return [
        *cases[:number],
        *(pytest.param(case, marks=pytest.mark.slow) for case in cases[number:]),
    ]


def command(*argv):
    """(exit code, stdout, stderr) of `dynfix argv`."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = main([str(a) for a in argv])
        except SystemExit as stop:
            code = stop.code
    return code, out.getvalue(), err.getvalue()


def inputs():
    """Every fixture's input file, with the folder's code."""
    return sorted(FIXTURES.glob("DYN*/*.in.py"))


def expected(path, kind):
    """The file that holds what `path` becomes: kind "out" after safe fixes, "unsafe.out" after all;
    the input where it stays."""
    name = path.name.removesuffix(".in.py") + f".{kind}.py"
    return path.with_name(name)
