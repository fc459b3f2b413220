"""`%load_ext dynfix` and `%%dynrun` in IPython."""

import re

import pytest

pytest.importorskip("IPython")
import torch
from dynfix.runtime import diagnostics
from IPython.core.interactiveshell import InteractiveShell
from torch import nn

CELL = """
class Net(nn.Module):
    def forward(self, x):
        return x.relu() + 1
net = Net()
for _ in range(3):
    y = net(x)
y.sum().item()
"""


@pytest.fixture
def shell(monkeypatch):
    monkeypatch.setattr(diagnostics, "_speak", None)  # which a cell under dynrun changes for good
    shell = InteractiveShell()
    shell.run_cell("%load_ext dynfix")
    shell.user_ns.update(torch=torch, nn=nn, x=torch.ones(2, 3))
    yield shell
    shell.reset()


def _plain(capsys):
    return re.sub(r"\x1b\[[0-9;]*m", "", "".join(capsys.readouterr()))


def test_a_cell_runs_compiled(shell, capsys):
    before = torch.compile, nn.Module._compiled_call_impl
    result = shell.run_cell("%%dynrun --explain --backend eager\n" + CELL)
    assert result.success and shell.user_ns["y"].tolist() == [[2.0] * 3] * 2
    out, err = capsys.readouterr()
    assert "Out[" in out and "12.0" in out
    assert "dynrun: 1 captured" in err and "1 recorded, 1 graphs, 0 breaks" in err
    assert (torch.compile, nn.Module._compiled_call_impl) == before
    again = "%%dynrun --explain --backend eager\nnet(x)"
    assert shell.run_cell(again).success
    assert "dynrun: 0 captured" in capsys.readouterr()[1]  # the first cell's serves it


def test_an_error_fails_the_cell_and_is_shown_once(shell, capsys):
    assert not shell.run_cell("%%dynrun --backend eager\nnet = nn.ReLU()\nnet(x)\n1/0").success
    assert _plain(capsys).count(": division by zero") == 1


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("--nothing", "unrecognized arguments"),
        ("--mode lite", "unknown mode"),
        ("--report out.html", "dynrun: --report is for scripts, not for a cell"),
    ],
)
def test_wrong_options_are_one_message(shell, capsys, line, said):
    assert not shell.run_cell(f"%%dynrun {line}\nprint('ran')").success
    text = "".join(capsys.readouterr())
    assert said in text and "ran\n" not in text and "Traceback" not in text
