"""`DYNFIX_LOGS` and `set_logs`: what is said while code is compiled."""

import os
import sys

import forked
import pytest

torch = pytest.importorskip("torch")
import dynfix

NAMES = ["graph_breaks", "recompiles", "guards", "graph_code", "fusion", "output_code"]
SCRIPT = """
import torch, dynfix

def fn(x, scale):
    y = x.sin() * scale
    torch.set_num_threads(torch.get_num_threads())
    return y.exp()

compiled = dynfix.compile(fn, backend='eager')
for n in (3, 3, 4):
    compiled(torch.ones(n), 2.0)
"""


@pytest.fixture(autouse=True)
def silent_afterwards():
    yield
    dynfix.set_logs()


def logged(capsys, *names):
    dynfix.set_logs(**dict.fromkeys(names, True))
    compiled = dynfix.compile(lambda x, n: (x.sin() * n).exp())
    for size in (3, 3, 4, 5):
        compiled(torch.ones(size), 2.0)
    return capsys.readouterr().err.splitlines()


def test_a_recompilation_names_the_guard_and_its_line(capsys):
    (line,) = logged(capsys, "recompiles")
    assert "test_compile_logs.py:" in line and "(4,) instead of (3,)" in line


def test_graphs_and_kernels_are_shown_with_their_lines(capsys):
    lines = logged(capsys, "graph_code", "fusion", "output_code")
    kinds = [line.split()[0] for line in lines]
    assert set(kinds) == {"[graph_code]", "[fusion]", "[output_code]"}
    assert any("sin = " in line for line in lines) and any('extern "C"' in line for line in lines)
    assert any("reads 12 bytes, writes 12" in line for line in lines)
    above = [line for line in lines if line.startswith("[graph_code]     # ")]
    assert all("test_compile_logs.py" in line for line in above) and len(above) == 2


def test_guards_are_listed_with_the_lines_that_made_them(capsys):
    lines = logged(capsys, "guards")
    assert any("args[0]: Tensor(" in line and "test_compile_logs.py:" in line for line in lines)


def test_nothing_is_said_that_is_not_asked_for(capsys):
    assert logged(capsys) == []
    with pytest.raises(dynfix.OptionError, match=r"'guard'.*did you mean 'guards'.*fusion"):
        dynfix.set_logs(guard=True)


def test_the_environment_turns_them_on(tmp_path):
    (tmp_path / "app.py").write_text(SCRIPT)
    env = {**os.environ, "DYNFIX_LOGS": "graph_breaks, nonsense"}
    done = forked.run(
        [sys.executable, "app.py"], cwd=tmp_path, env=env, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "[graph_breaks] fn: " in done.stderr and "app.py:6" in done.stderr
    assert "there is no log 'nonsense'" in done.stderr and ", ".join(NAMES) in done.stderr
