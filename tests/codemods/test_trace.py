"""`--trace`: what a run shows of the code, and what that justifies."""

import ast
import builtins
import json

import pytest

torch = pytest.importorskip("torch")

from dynfix.codemods.cli import check
from dynfix.codemods.cli.settings import Settings
from dynfix.codemods.trace import trace_facts, traced_run
from dynfix.rewriter.source.source_file import SourceFile

from . import support

pytestmark = pytest.mark.usefixtures("forked_runs")

MODEL = """import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.h = nn.Linear(4, 4)
        self.rnn = getattr(nn, kind)(4, 4)
        self.last = globals()["helper"]

    def forward(self, x, flag=None):
        y = self.rnn(self.h(x))[0]
        return self.last(y, flag)


def helper(a, flag):
    b = a * 2
    if b.sum() > 0:
        b = b + 1
    c = a if flag is None else flag
    return b + c


def unused(a):
    if a.sum() > 0:
        a = a + 1
    return a
"""
SCRIPT = """import sys
import torch
from model import Model, unused
print(sys.argv[1:], __name__)
model = Model("GRU")
for size in (3, 5):
    model(torch.randn(size, 4))
unused(torch.ones(3))
"""


@pytest.fixture
def project(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model.py").write_text(MODEL)
    (tmp_path / "script.py").write_text(SCRIPT)
    return tmp_path


def test_what_the_run_shows(project):
    facts = trace_facts.run("script.py a 'b c'", ["model.py"])[str(project / "model.py")]
    of = {(f, t): fact for (f, t), fact in facts.table.items()}
    assert of["Model.forward", "x"] == trace_facts.Fact("tensor", 2, "float32", strided=True)
    assert of["Model.forward", "self.rnn"].cls == "torch.nn.GRU"
    assert of["helper", "b.sum()"] == trace_facts.Fact("tensor", 0, "float32", strided=True)
    assert of["helper", "flag"].what == "none"
    assert facts.captured == {"Model.forward", "helper"}


def test_the_command_fixes_what_the_run_justifies(project):
    _, out, _ = support.command("--diff", "--unsafe-fixes", "model.py")
    assert "torch.where" not in out and "allow_rnn" not in out
    _, out, _ = support.command("--diff", "--unsafe-fixes", "--trace", "script.py 1", "model.py")
    assert "+    b = torch.where(b.sum() > 0, b + 1, b)" in out
    assert "+torch._dynamo.config.allow_rnn = True" in out
    assert out.count("torch.where") == 1
    code, out, _ = support.command(
        "--check", "--output-format", "json", "--trace", "script.py", "model.py"
    )
    assert code == 1
    assert {(f["code"], f["traced"]) for f in json.loads(out)} >= {
        ("DYN201", True),
        ("DYN906", True),
    }


def test_verified_with_what_the_run_shows(project, capsys):
    made = "\n\ndef make():\n    return Model('Identity'), (torch.randn(2, 4),)\n"
    model = MODEL.replace("self.rnn(self.h(x))[0]", "self.rnn(x)") + made
    (project / "model.py").write_text(model)
    (project / "script.py").write_text("import model\nm, x = model.make()\nm(*x)\n")
    _, out, _ = support.command("--verify", "model.py:make", "model.py")
    assert "fixes kept           0" in out
    _, out, _ = support.command("--verify", "model.py:make", "--trace", "script.py", "model.py")
    assert "fixes kept           1" in out
    assert "breaks after         0" in out
    assert "torch.where(b.sum() > 0, b + 1, b)" in (project / "model.py").read_text()


def test_a_run_does_not_prove_whose_tensor_it_is(project):
    """`a.float()` may be `a` itself."""
    (project / "model.py").write_text(MODEL.replace("b = a * 2", "b = a.float()"))
    _, out, _ = support.command("--check", "--trace", "script.py", "model.py")
    assert "fix (safe): use torch.where when compiled" in out  # eager keeps its statement


def test_a_tensor_that_was_sparse_once_may_be_sparse():
    tracer = traced_run.FactCollector([])
    tracer.torch = torch
    dense, sparse = tracer.fact(torch.ones(2)), tracer.fact(torch.ones(2).to_sparse())
    nested = tracer.fact(torch.nested.nested_tensor([torch.ones(2)]))
    assert (dense.strided, sparse.strided, nested.strided) == (True, False, False)
    assert dense.join(dense).strided and not dense.join(sparse).strided


def test_facts_hold_on_while_edits_move_lines(project):
    facts = trace_facts.run("script.py", ["model.py"])
    text = "# one more line\n" + MODEL
    fixed = check.fix(
        SourceFile(text, str(project / "model.py")), Settings(unsafe_fixes=True, facts=facts)
    )
    assert "torch.where" in fixed.source.text
    assert all(f.traced for f in fixed.applied)
    again = check.fix(fixed.source, Settings(unsafe_fixes=True, facts=facts))
    assert again.source.text == fixed.source.text


def test_a_script_that_fails_or_is_missing(project):
    (project / "script.py").write_text(
        "import torch, model\nmodel.Model('GRU')(torch.ones(2, 4))\nraise SystemExit(3)\n"
    )
    facts = trace_facts.run("script.py", ["model.py"])
    assert facts[str(project / "model.py")].captured
    assert support.command("--trace", "nowhere.py", "model.py")[0] == 2


ODD = '''
import functools
class Base:
    def value(self): return 1
class Odd(Base):
    __slots__ = ("__hidden", "items")
    def __init__(self):
        super().__init__()
        self.__hidden, self.items = 3, [1, 2]
        self.items[0] += 1
    @functools.lru_cache
    def value(self, *more, key=len):
        """doc"""
        first, *rest = [super(Odd, self).value(), self.__hidden, *more]
        total = sum(n for n in rest if (m := n) > 0) + (lambda a, b=first: a + b)(2)
        text = f"{total!r:>{key('ab')}} {self.items[-1]=}"
        match rest:
            case [3, *others]: total += 1
            case _: total -= 1
        def inner():
            nonlocal total
            total += 1
            yield from range(total)
        del self.items[0]
        names = sorted(locals())
        return list(inner()), text, total if total else -total, "text" in names, super().value(), 1 < total < 99
result = Odd().value(5)
'''


def test_instrumented_code_does_the_same():
    plain, seen = {}, {}
    exec(compile(ODD, "odd.py", "exec"), plain)
    tracer = traced_run.FactCollector(["odd.py"])
    tracer.torch, tracer.depth = torch, 1
    try:
        builtins.__dynfix_see__ = tracer.see
        exec(compile(tracer.instrument(ast.parse(ODD), "odd.py"), "odd.py", "exec"), seen)
    finally:
        del builtins.__dynfix_see__
    assert seen["result"] == plain["result"]
    assert tracer.facts["odd.py", "Odd.value", "total"] == trace_facts.Fact("int")
    assert not any("__dynfix_see__" in text for _, _, text in tracer.places)
