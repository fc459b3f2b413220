"""`--trace` runs what it fixed, and takes back the files after which the script differs; `--verify`
counts one graph under fullgraph=True."""

import pytest

torch = pytest.importorskip("torch")

from dynfix.codemods.cli import side_by_side, trace_verify
from dynfix.codemods.cli.settings import Settings
from dynfix.codemods.trace import saved_facts

from . import support

pytestmark = pytest.mark.usefixtures("forked_runs")

MODEL = """import torch


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = torch.nn.Linear(4, 4)

    def forward(self, x):
        y = self.lin(x)
        print("shape", y.shape)
        return y * 2
"""
OTHER = """import torch


class Other(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = torch.nn.Linear(4, 4)

    def forward(self, x):
        y = self.lin(x)
        return y, y.mean().item()
"""
SCRIPT = """import time, torch
from model import Model
from other import Other
torch.manual_seed(1)
y = Model()(torch.randn(2, 4))
print(y.sum(), Other()(y)[0].shape)
"""


@pytest.fixture
def project(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DYNFIX_CODEMOD_CACHE", str(tmp_path / ".cache"))
    for name, text in (("model", MODEL), ("other", OTHER), ("script", SCRIPT)):
        (tmp_path / f"{name}.py").write_text(text)
    return tmp_path


def test_what_differs_is_taken_back_file_by_file(project):
    argv = ("--trace", "script.py", "--unsafe-fixes", "--ignore", "DYN506", "model.py", "other.py")
    code, _, err = support.command(*argv)
    assert "other.py: fixes taken back: other values" in err
    assert "one graph: 1 of 2 modules before, 2 of 2 after" in err
    assert (project / "other.py").read_text() == OTHER
    assert "is_compiling" in (project / "model.py").read_text()
    assert code == 1
    support.command("--no-verify", *argv)
    assert ".item()" not in (project / "other.py").read_text()


def test_what_differs_from_run_to_run_proves_nothing(project):
    script = SCRIPT.replace("print(y.sum()", "print(time.perf_counter()")
    (project / "script.py").write_text(script)
    _, _, err = support.command("--trace", "script.py", "model.py")
    assert "Verified by running script.py: the same values, code; one graph" in err
    assert "is_compiling" in (project / "model.py").read_text()


def test_verify_counts_one_graph(project):
    made = "\n\ndef make():\n    return Model(), (torch.ones(2, 4),)\n"
    (project / "model.py").write_text(MODEL + made)
    _, out, _ = support.command("--verify", "model.py:make")
    assert "one graph before    no\n  one graph after    yes\n" in out


BESIDE = """import torch


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = torch.nn.Linear(4, 4)
        self.head = torch.nn.Linear(4, 4)
        self.register_buffer("seen", torch.zeros(4))

    def forward(self, x):
        BODY
"""
KEPT = "y = self.lin(x)\n        return y.t() * 1"
OTHERWISE = {
    "layout": "y = self.lin(x)\n        return (y.t() * 1).contiguous()",
    "gradient": KEPT.replace("* 1", "* 1 + 0 * self.head.bias.sum()"),
    "buffer": "self.seen += 1\n        y = self.lin(x)\n        return y.t() * 1",
    "input": "y = self.lin(x)\n        x.add_(1)\n        return y.t() * 1",
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """What a training step with each text gives."""
    folder = tmp_path_factory.mktemp("beside")
    texts = {k: BESIDE.replace("BODY", v) for k, v in {"kept": KEPT, **OTHERWISE}.items()}
    (folder / "model.py").write_text(texts["kept"])
    call = "m = Model()\nm(torch.ones(4, 4)).sum().backward()\n"
    (folder / "script.py").write_text("import torch\nfrom model import Model\n" + call)
    path, script = str(folder / "model.py"), str(folder / "script.py")
    return {k: trace_verify.observe([script], {path: t}) for k, t in texts.items()}


@pytest.mark.parametrize("what", OTHERWISE)
def test_what_values_alone_do_not_tell(runs, what):
    assert runs["kept"].differs(runs[what], ("values",)) == "other values"


def test_side_by_side_tells_strides_memory_and_what_is_left():
    def behaviour(function):
        return side_by_side.observe(lambda: (function, (torch.ones(2, 3), torch.ones(2, 3))), 0)

    def plain(x, y):
        return (x * 2).t(), y

    def written(x, y):
        y.mul_(2).div_(2).add_(1)
        return (x * 2).t(), y - 1

    for other, told in (
        (lambda x, y: ((x * 2).t().contiguous(), y), "strides"),
        (lambda x, y: ((x * 2).t(), y.clone()), "share memory"),
        (written, "input 1"),
    ):
        found = side_by_side.differences(behaviour(plain), behaviour(other))
        assert told in " ".join(found)
    assert not side_by_side.differences(behaviour(plain), behaviour(plain))


def test_several_files_are_taken_back_by_one_run(project, monkeypatch):
    """However many files differ, the script runs before, after, once more to see what it repeats,
    and then without the fixes that differed."""
    names = [f"other{i}" for i in range(5)]
    for name in names:
        (project / f"{name}.py").write_text(OTHER)
    calls = [f"import {n}\n{n}.Other()(torch.ones(2, 4))\n" for n in names]
    (project / "script.py").write_text("import torch\n" + "".join(calls))
    runs, observed = [], trace_verify._observed
    monkeypatch.setattr(trace_verify, "_observed", lambda *a: runs.append(a) or observed(*a))
    argv = ("--trace", "script.py", "--unsafe-fixes", "--ignore", "DYN506")
    _, _, err = support.command(*argv, *(f"{n}.py" for n in names))
    assert err.count("fixes taken back: other values") == 5
    assert all((project / f"{n}.py").read_text() == OTHER for n in names)
    assert len(runs) == 4


COMPILED = """import torch


@torch.compile
def step(x):
    if torch.compiler.is_compiling():
        return x * FACTOR
    return x * 2
"""


def test_other_values_when_compiled(project):
    (project / "step.py").write_text(COMPILED.replace("FACTOR", "2"))
    (project / "script.py").write_text("import torch, step\nstep.step(torch.ones(2))\n")
    path = str(project / "step.py")
    right = trace_verify.observe([str(project / "script.py")], {})
    wrong = trace_verify.observe(
        [str(project / "script.py")], {path: COMPILED.replace("FACTOR", "3")}
    )
    assert list(right.breaks.values()) == list(wrong.breaks.values()) == [0]
    assert right.differs(wrong, ("values",)) == "step gives other values when compiled"
    assert right.blamed(wrong, ("values",)) == {path}


BROKEN = """import torch


@torch.compile
def one(x):
    {}
    return x * 2


@torch.compile
def other(x):
    print("other")
    torch._dynamo.graph_break()
    return x * 2
"""


def test_breaks_are_counted_where_a_fix_may_have_made_more(project):
    """Of what runs no fixed text, once; the run before notes that of others for it."""
    path = str(project / "step.py")
    (project / "step.py").write_text(BROKEN.format("print(1)"))
    (project / "kept.py").write_text(BROKEN.format("print(1)"))
    (project / "script.py").write_text(
        "import torch, step, kept\n"
        "for m in (step, kept):\n    m.one(torch.ones(2)); m.other(torch.ones(2))\n"
    )
    more = BROKEN.format("print(1); x = x + 1; print(2); x = x + 2; print(3)")
    after = trace_verify.observe([str(project / "script.py")], {path: more})
    assert {n.rpartition(":")[2] for n in after.changed} == {"one", "other"}
    assert {n.rpartition(":")[0] for n in after.changed} == {path}
    name = next(n for n in after.changed if n.endswith(":one"))
    before = trace_verify.observe([str(project / "script.py")], {}, broken=[name])
    other = next(n for n in after.breaks if n.endswith("kept.py:other"))
    assert before.breaks[other] == 1 < after.breaks[other]
    before = before.completed(after)
    assert before.breaks[other] == after.breaks[other]
    assert name in before._more_breaks(after)
    assert other not in before._more_breaks(after)


def test_what_breaks_as_often_as_before_is_not_taken_back(project):
    """What was one graph with all fixes breaks again without those that changed a value."""
    (project / "step.py").write_text(BROKEN.format("print(1); x = x + 1; print(2)"))
    (project / "script.py").write_text("import torch, step\nstep.one(torch.ones(2))\n")
    before = trace_verify.observe(["script.py"], {}, broken=[])
    retreat = trace_verify._Retreat(["script.py"], [], Settings(), before, ("values",))
    assert set(before.breaks.values()) == {1}
    retreat._count({str(project / "step.py")})
    after = trace_verify.observe(
        ["script.py"], {str(project / "step.py"): BROKEN.format("x = x + 1; print(2)")}
    )
    assert not retreat.before.differs(after, ("values",))
    assert all(number > 1 for number in retreat.before.breaks.values())


ATTENTION = """import math, torch


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = torch.nn.Linear(8, 24)

    def forward(self, x):
        q, k, v = self.lin(x).chunk(3, -1)
        weights = torch.softmax(q @ k.mT / math.sqrt(q.size(-1)), dim=-1)
        return weights @ v
"""
CALLS = """import torch
from model import Model
torch.manual_seed(1)
model = Model()
for _ in range(3):
    model(torch.randn(2, 5, 8)).square().sum().backward()
"""


def test_fixes_that_round_are_verified_with_a_tolerance_and_what_they_took_is_kept(project):
    (project / "model.py").write_text(ATTENTION)
    (project / "script.py").write_text(CALLS)
    argv = ("--trace", "script.py", "--unsafe-fixes", "--select", "DYN804", "model.py")
    _, _, err = support.command(*argv)
    assert "Verified by running script.py: the same values" in err
    assert "scaled_dot_product_attention" in (project / "model.py").read_text()
    ((name, (milliseconds, breaks)),) = saved_facts.costs("model.py", str(project)).items()
    assert (name, breaks) == ("Model", 0) and milliseconds > 0
    wrong = ATTENTION.replace("dim=-1", "dim=-2")
    runs = [
        trace_verify.observe(["script.py"], {str(project / "model.py"): t}, rounded=True)
        for t in (ATTENTION, wrong)
    ]
    assert runs[0].differs(runs[1], ("values",)) == "other values"


def test_verify_takes_a_tolerance_for_fixes_that_round(project):
    made = (
        "\n\ndef make():\n    torch.manual_seed(0)\n    return Model(), (torch.randn(2, 5, 8),)\n"
    )
    (project / "model.py").write_text(ATTENTION + made)
    argv = ("--unsafe-fixes", "--select", "DYN804", "--check", "--verify", "model.py:make")
    _, out, _ = support.command(*argv)
    assert "fixes kept           1" in out and "up to rounding" in out


BRANCH = """import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(4, 4)

    def forward(self, x):
        h = self.lin(x)
        if h.sum() > 0:
            h = h * 2
            h = h + 1
        else:
            h = h - 1
        return h
"""
TWICE = """import torch
from model import Model
torch.manual_seed(1)
model, x = Model(), torch.randn(2, 4) * 9
for given in (x, -x):
    model(given)
"""


def test_a_run_that_took_every_side_proves_a_path(project):
    (project / "model.py").write_text(BRANCH)
    (project / "script.py").write_text(TWICE.replace("(x, -x)", "(x, x)"))
    support.command("--trace", "script.py", "model.py")
    assert (project / "model.py").read_text() == BRANCH
    (project / "script.py").write_text(TWICE)
    _, _, err = support.command("--trace", "script.py", "model.py")
    assert "one graph: 0 of 1 modules before, 1 of 1 after" in err
    assert "torch.where" in (project / "model.py").read_text()


UNSUITED = """import torch
from torch import nn

NAMES = ["a", "b", "c", "d"]


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(4, 4)

    def forward(self, x):
        best = self.lin(x).argmax(-1)
        return best, [NAMES[i] for i in best.tolist()]
"""


def test_what_dynamo_cannot_go_on_with_is_taken_back(project):
    """Dynamo fails on a symbol that picks from a list; the frame would silently run in eager."""
    (project / "model.py").write_text(UNSUITED)
    (project / "script.py").write_text(TWICE)
    _, _, err = support.command("--unsafe-fixes", "--trace", "script.py", "model.py")
    assert "model.py: fixes taken back: Model has more graph breaks" in err
    assert (project / "model.py").read_text() == UNSUITED
