"""Locks: what is written of a run, that equal runs write equal bytes, and that each change of the
source is named by its line."""

import importlib.util
import itertools
import linecache
import os
import sys

import forked
import pytest

torch = pytest.importorskip("torch")
import dynfix
from dynfix.codemods.cli.command import main as dynfix_command
from dynfix.rewriter.lock import lock_file
from dynfix.rewriter.lock.lock_changes import compared
from dynfix.rewriter.lock.lock_file import LockError, LockFact, SourcePlace
from dynfix.rewriter.lock.lock_run import BYTES, SECONDS, Lock
from dynfix.rewriter.lock.stable_text import StableText

MODEL = """\
import dynfix
import torch
from torch import nn
import torch.nn.functional as F


class Net(nn.Module):
    def __init__(self, width=6):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(4, width), nn.Linear(width, 4)])
        self.scale = 0.5

    def forward(self, x):
        for layer in self.layers:
            x = F.relu(layer(x)) * self.scale
        dynfix.graph_break()
        return torch.exp(x) - 1


torch.manual_seed(0)
net = Net()
step = dynfix.compile(net)
with torch.no_grad():
    for size in (3, 3, 3, 3):
        step(torch.ones(size, 4))
"""
_numbers = itertools.count()


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Runs a script in this process; the facts of what it compiled."""
    monkeypatch.chdir(tmp_path)

    def run(text):
        lock, path = Lock(), tmp_path / "model.py"
        path.write_text(text)
        linecache.checkcache(str(path))
        lock.begin()
        try:
            spec = importlib.util.spec_from_file_location(f"lock_{next(_numbers)}", path)
            spec.loader.exec_module(importlib.util.module_from_spec(spec))
            lock.write("made.lock")
            return (tmp_path / "made.lock").read_text()
        finally:
            lock.end()
            (tmp_path / "made.lock").unlink(missing_ok=True)

    return run


def changes(before, after):
    return compared(lock_file.parsed(before, "before"), lock_file.parsed(after, "after"))


def test_equal_runs_write_equal_bytes(run, tmp_path):
    text = run(MODEL)
    assert run(MODEL) == text
    assert str(tmp_path) not in text and " at 0x" not in text
    assert lock_file.written(lock_file.parsed(text, ""), ()) == "".join(
        line for line in text.splitlines(keepends=True) if not line.startswith("#")
    )


SEEDS = {
    "print": (
        "        dynfix",
        "        print(x.shape)\n        dynfix",
        "print(x.shape)",
        "print",
    ),
    "item": (
        "        dynfix",
        "        self.last = x.sum().item()\n        dynfix",
        "self.last = x.sum().item()",
        "sum",
    ),
    "dtype": (" * self.scale", ".double().mul(self.scale).float()", "x = F.relu(", "double"),
    "attribute": ("scale = 0.5", "scale = 0.25", "model.py:11: self.scale = 0.25", "0.25"),
    "number": ("torch.exp(x) - 1", "torch.exp(x) - 2", "return torch.exp(x) - 2", "sub(exp, 2)"),
    "layer": ("width=6", "width=5", "x = F.relu(layer(x))", "float32[5, 4]"),
    "batch": ("(3, 3, 3, 3)", "(3, 3, 5, 5)", "x = F.relu(layer(x))", "recompile"),
    "break removed": ("        dynfix.graph_break()\n", "", "dynfix.graph_break()", "gone: DYN000"),
    "break": ("        return", "        dynfix.graph_break()\n        return", "", "graph break"),
    "activation": ("F.relu", "F.gelu", "the line was: x = F.relu(layer(x))", "gelu(linear) x2"),
    "loop": (
        "        return",
        "        for _ in range(2):\n            x = torch.tanh(x)\n        return",
        "x = torch.tanh(x)",
        "tanh",
    ),
    "mode": ("compile(net)", "compile(net, mode='reduce-overhead')", "step = dyn", "cudagraphs"),
    "fewer layers": (", nn.Linear(width, 4)]", "]", "x = F.relu(layer(x))", "linear"),
    "operands": ("torch.exp(x) - 1", "1 - torch.exp(x)", "return 1 - torch.exp(x)", "rsub"),
}


@pytest.fixture(scope="module")
def before():
    return []


@pytest.mark.parametrize(("old", "new", "line", "words"), SEEDS.values(), ids=SEEDS)
def test_a_change_is_named_by_its_line(run, before, old, new, line, words):
    if not before:
        before.append(run(MODEL))
    assert old in MODEL
    found = changes(before[0], run(MODEL.replace(old, new)))
    assert found.failing
    assert line in str(found) and words in str(found)


def test_lines_that_moved_are_no_change(run):
    before = run(MODEL)
    moved = MODEL.replace("\n\nclass", "\nUNUSED = 1\n\n\nclass").replace("- 1\n", "- 1  # why\n")
    assert not changes(before, run(moved))


def test_equal_versions_are_counted(run):
    text = "import dynfix, torch\nfor _ in range(2):\n    f = dynfix.compile(torch.nn.ReLU())\n"
    text += "    f(torch.ones(3))\n"
    before = run(text)
    assert "\n  version x2\n" in before
    assert not changes(before, before)
    more = changes(before, run(text.replace("range(2)", "range(3)")))
    assert "compiled version of ReLU: 2 before, 3 now" in str(more)


def test_the_order_in_which_things_run_is_no_change(run):
    def made(*names):
        made = "".join(f"def {name}(x):\n    return x.{name}() + 1\n" for name in ("sin", "cos"))
        calls = "".join(f"dynfix.compile({name})(torch.ones(2))\n" for name in names)
        return run("import dynfix, torch\n" + made + calls)

    first, second = made("sin", "cos"), made("cos", "sin")
    assert first.replace(":7: dynfix.compile(cos)", ":6: dynfix.compile(cos)") == second.replace(
        ":7: dynfix.compile(sin)", ":6: dynfix.compile(sin)"
    )
    assert not changes(first, second)


def test_what_an_earlier_process_learnt_changes_nothing(run):
    """An optimizer's first step is left to eager once it is known that nothing serves it again."""
    text = (
        "import dynfix, torch\nnet = torch.nn.Linear(4, 2)\n"
        "opt = torch.optim.Adam(net.parameters())\n"
        "@dynfix.compile\ndef update():\n    opt.zero_grad()\n"
        "    net(torch.ones(2, 4)).sum().backward()\n    opt.step()\n"
        "for _ in range(4):\n    update()\n"
    )
    first = run(text)
    assert first.count("\n  version") == 2
    assert run(text) == first


FACTS = """\
lock 1
torch 2.13.0
time step: 1 ms to 100 ms
entry step
  line a.py:3: y = x + 1
    guard self.k == 2
    op add(x, 1)
  line a.py:9: z = y.sum()
    op sum(add)
  version
    guards 9 on types
    graph aaaa 2 operators
kernel bbbb cpp, reads 4 bytes, writes 4
  line a.py:3: y = x + 1
"""


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("torch 2.13.0", "torch 2.14.0", "torch: was 2.13.0; is 2.14.0"),
        ("kernel bbbb", "kernel cccc", "a.py:3: y = x + 1\n  kernels: 1 changed"),
        ("graph aaaa", "graph cccc", "the same operators take other results"),
        ("op sum(add)", "op sum(add) x2", "a.py:9: z = y.sum()\n  operator of step: was sum(add);"),
    ],
)
def test_facts_that_fail_a_check(old, new, words):
    found = changes(FACTS, FACTS.replace(old, new))
    assert found.failing and words in str(found)


def test_a_break_stands_before_what_follows_from_it():
    broken = FACTS.replace("    op sum(add)\n", "    break DYN101 why\n").replace("add(", "sub(")
    said = str(changes(FACTS, broken))
    assert said.index("a.py:9") < said.index("a.py:3")


@pytest.mark.parametrize(
    ("old", "new"),
    [("self.k == 2", "self.k == 3"), ("1 ms to", "2 ms to"), ("guards 9", "guards 10")],
)
def test_guards_and_measured_ranges_are_told_and_pass(old, new):
    found = changes(FACTS, FACTS.replace(old, new))
    assert found and not found.failing
    assert "this run is as the lock says: 1 function, 1 graph, 1 kernel" in str(found)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "no lock"),
        ("lock 2\n", "no lock"),
        ("lock 1\n    x\n", ":2: "),
        ("lock 1\n x\n", ":2: "),
    ],
)
def test_what_is_no_lock_is_said(text, why):
    with pytest.raises(LockError, match=why):
        lock_file.parsed(text, "a.lock")


def test_texts_are_those_of_any_checkout(tmp_path):
    text = StableText(str(tmp_path))
    assert text.line(f"<f at 0x7f11> in {tmp_path}/a/b.py") == "<f> in a/b.py"
    assert text.line("{3, 1, 2} /usr/lib/x/site-packages/pkg/m.py 6/2") == "{1, 2, 3} pkg/m.py 6/2"
    assert text.place(f"{tmp_path}/a.py:4: x  = {{3, 1}}") == SourcePlace("a.py", 4, "x = {3, 1}")
    assert (
        text.line("'run_1700000000' == '/tmp/tmpab12/x' 123456789")
        == "'run_#' == '<temporary>' 123456789"
    )
    assert str(LockFact("line", "a.py:4: x = y").place) == "a.py:4: x = y"


@pytest.mark.parametrize("unit", [SECONDS, BYTES], ids=["seconds", "bytes"])
@pytest.mark.parametrize("expected", [3e-6, 0.4, 5e8])
def test_noise_does_not_leave_a_range(unit, expected):
    told = unit.range(expected, expected)
    assert {unit.range(expected * noise, expected) for noise in (0.6, 1.7)} == {told}
    assert unit.range(expected * 3, expected, told) == told or unit is BYTES
    assert unit.range(expected * 1e4, expected, told) != told


def test_without_begin_there_is_no_lock():
    with pytest.raises(LockError, match=r"dynfix\.lock\.begin"):
        Lock().facts([])


SCRIPT = """\
import os, torch
net = torch.nn.Linear(3, 2)
opt = torch.optim.SGD(net.parameters(), lr=0.1)
os.chdir("/")
for n in range(3):
    loss = net(torch.ones(4, 3)).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
"""


def dynrun(folder, *words, **environment):
    env = {**os.environ, "OMP_NUM_THREADS": "1", **environment}
    command = [sys.executable, "-m", "dynfix.run", *words, "script.py"]
    done = forked.run(command, cwd=folder, env=env, capture_output=True, loaded="doc_warm")
    return done.returncode, done.stderr


def test_dynrun_writes_and_checks(tmp_path, capsys):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    assert dynrun(tmp_path, "--lock", "a.lock")[0] == 0
    assert "line script.py:6: loss" in (tmp_path / "a.lock").read_text()
    script.write_text(SCRIPT.replace("pow(2)", "abs()"))
    status, said = dynrun(tmp_path, "--lock", "b.lock", DYNFIX_LOCK_CHECK="a.lock")
    assert status == 1 and "dynrun: script.py:6: loss = net(torch.ones(4, 3)).abs()" in said
    names = [str(tmp_path / name) for name in ("a.lock", "b.lock")]
    assert dynfix_command(["lock", "check", *names]) == 1
    assert dynfix_command(["lock", "diff", *names]) == 0
    assert dynfix_command(["lock", "check", names[0], names[0]]) == 0
    assert dynfix_command(["lock", "check", names[0], str(script)]) == 2
    assert "script.py:6: loss = net" in capsys.readouterr().out


def test_the_environment_asks_for_a_lock(tmp_path):
    (tmp_path / "script.py").write_text(
        "import dynfix, sys, torch\nf = dynfix.compile(lambda x: x.sin() * 2)\nf(torch.ones(3))\n"
        "if sys.argv[1:]: raise KeyError\n"
    )

    def run(*words, **environment):
        command = [sys.executable, "script.py", *words]
        env = {**os.environ, **environment}
        return forked.run(command, cwd=tmp_path, env=env, capture_output=True)

    assert run(DYNFIX_LOCK="a.lock").returncode == 0
    assert "op mul(sin, 2)" in (tmp_path / "a.lock").read_text()
    assert "the script failed" in run("x", DYNFIX_LOCK_CHECK="a.lock").stderr
    other = (tmp_path / "a.lock").read_text().replace("mul(sin, 2)", "mul(sin, 3)")
    (tmp_path / "a.lock").write_text(other)
    done = run(DYNFIX_LOCK_CHECK="a.lock")
    assert done.returncode == 1 and "was mul(sin, 3); is mul(sin, 2)" in done.stderr


def test_it_is_part_of_the_package():
    assert isinstance(dynfix.lock, Lock)
