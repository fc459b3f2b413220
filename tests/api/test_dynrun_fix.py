"""`dynrun --fix`: what the compiler rewrote is written into the files that ran."""

import dataclasses
import os
import subprocess
import sys
import textwrap

import pytest
from dynfix.codemods.cli import run_fixes, trace_verify

MODULE = """
    import torch
    class Inner(torch.nn.Module):
        def forward(self, x):
            z = x + 1
            z = z * 2 if z.sum() > 1 else z
            return z
"""
SCRIPT = """
    import sys, torch
    from inner import Inner
    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = Inner()
        def forward(self, x):
            y = torch.relu(x)
            if y.mean() > 0.25:
                y = y * 2
            return self.inner(y)
    net = Net()
    with torch.no_grad():
        for n in (1, 2, 3):
            print(n, sys.argv[1:], net(torch.full((2, 4), n / 8)).sum().item())
"""


def run(arguments, folder):
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [sys.executable, *arguments], cwd=folder, env=env, capture_output=True, text=True
    )
    return done.returncode, done.stdout, done.stderr


@pytest.mark.slow
def test_a_script_and_its_module_are_fixed(tmp_path):
    pytest.importorskip("torch")
    (tmp_path / "inner.py").write_text(textwrap.dedent(MODULE))
    (tmp_path / "script.py").write_text(textwrap.dedent(SCRIPT))
    command = ["-m", "dynfix.run", "--fix", "--backend", "eager", "script.py", "-x"]
    status, out, error = run(command, tmp_path)
    assert status == 0, error
    assert "-        if y.mean() > 0.25:\n-            y = y * 2\n" in error
    assert "+        y = torch.where(y.mean() > 0.25, y * 2, y)\n" in error
    assert "Verified by running script.py: the same values, text, code" in error
    assert error.endswith("inner.py was written\ndynrun: --fix: script.py was written\n")
    assert "torch.where(z.sum() > 1, z * 2, z)" in (tmp_path / "inner.py").read_text()
    assert run(["script.py", "-x"], tmp_path)[:2] == (0, out)
    assert run(command, tmp_path)[2] == "dynrun: --fix: nothing was rewritten\n"


@pytest.mark.parametrize("arguments", [["-c", "1"], ["-m", "pkg"], ["--nproc-per-node=2", "s.py"]])
def test_what_is_no_script_is_refused(tmp_path, arguments):
    status, out, error = run(["-m", "dynfix.run", "--fix", *arguments], tmp_path)
    assert (status, out) == (2, "") and "--fix takes a script, in one process" in error


def test_text_that_was_moved_to_the_margin_is_found_in_its_place():
    text = "class A:\r\n    def f(self, x):\r\n        if x > 0:\r\n            x = -x\r\n        return x\r\n"
    before, after = "if x > 0:\n        x = -x", "x = where(x > 0,\n        -x, x)"
    made = run_fixes.changed(text, 3, before, after)
    assert made == (
        "class A:\r\n    def f(self, x):\r\n        x = where(x > 0,\r\n            -x, x)\r\n"
        "        return x\r\n"
    )
    assert run_fixes.changed(text, 2, before, after) is None
    assert run_fixes.changed(text, 99, before, after) is None
    assert run_fixes.changed(text, 3, before, "x = (") is None


@dataclasses.dataclass(frozen=True)
class Change:
    file: str
    after: str
    line: int = 2
    before: str = "x = 1"


@pytest.fixture
def file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "a.py"
    path.write_text("# déjà\nx = 1\n", encoding="utf-8")
    return path


def test_a_place_that_changed_in_two_ways_stays(file, capsys):
    changes = [Change(str(file), "x = 2"), Change(str(file), "x = 3")]
    run_fixes.fix_after_run(["a.py"], changes)
    assert file.read_text(encoding="utf-8") == "# déjà\nx = 1\n"
    assert capsys.readouterr().err == "dynrun: --fix: nothing was rewritten\n"


@pytest.mark.parametrize("same", [True, False])
def test_only_what_does_the_same_is_written(file, capsys, monkeypatch, same):
    def observed(command, texts, *_, **__):
        value = "1" if same or not texts else "2"
        return trace_verify.Observed({str(file): value}, {}, "", (), {}, frozenset())

    monkeypatch.setattr(trace_verify, "observe", observed)
    change = Change(str(file), "x = 2")
    run_fixes.fix_after_run(["a.py", "-x y"], [change, change])
    assert file.read_text(encoding="utf-8") == f"# déjà\nx = {2 if same else 1}\n"
    error = capsys.readouterr().err
    assert "-x = 1\n+x = 2\n" in error
    assert ("a.py was written" if same else "a.py: fixes taken back: other values") in error


def test_without_the_codemods_it_is_an_error(tmp_path):
    code = "from dynfix.rewriter.dynrun.main import main; main(['--fix', 's.py'])"
    assert "--fix needs the command dynrun" in run(["-c", code], tmp_path)[2]
