"""The findings under the real flake8."""

import subprocess
import sys

import pytest
from dynfix.codemods.cli import flake8 as plugin

from . import support

TEXT = """import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x: torch.Tensor):
        print(x)
        if x.sum() > 0:
            x = x * 2
        if x.min() > 0:  # noqa: DYN201
            x = x * 3
        return x


def helper(x: torch.Tensor):
    return x.item()
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    plugin._load.cache_clear()
    (tmp_path / "model.py").write_text(TEXT)
    (tmp_path / "plain.py").write_text("x = 1\n")
    return tmp_path


def flake8(*arguments):
    """What flake8 reports of our codes, as (place, code)."""
    pytest.importorskip("flake8")
    run = [sys.executable, "-m", "flake8", "--isolated", "--select", "DYN", "-j", "1", *arguments]
    done = subprocess.run(run, capture_output=True, text=True)
    assert not done.stderr
    return [tuple(line.split(" ")[:2]) for line in done.stdout.splitlines()]


def test_under_flake8(folder):
    assert flake8(".") == [("./model.py:7:9:", "DYN301"), ("./model.py:8:12:", "DYN201")]


def test_the_settings_of_dynfix_count(folder):
    (folder / "dynfix.toml").write_text('ignore = ["DYN3"]\nscope = "all"\n')
    assert flake8("model.py") == [("model.py:8:12:", "DYN201"), ("model.py:16:12:", "DYN101")]


def test_standard_input(folder):
    pytest.importorskip("flake8")
    run = [
        sys.executable,
        "-m",
        "flake8",
        "--isolated",
        "--select",
        "DYN",
        "--stdin-display-name",
        "m.py",
        "-",
    ]
    assert (
        "m.py:8:12: DYN201 the branch depends"
        in subprocess.run(run, input=TEXT, capture_output=True, text=True).stdout
    )


def test_the_same_as_the_command(folder):
    """Without flake8: the plugin reports what `dynfix --check` does."""
    reported = [*plugin.Plugin(None, "model.py", TEXT.splitlines(keepends=True)).run()]
    _, out, _ = support.command("--check", "--output-format", "concise", "--no-cache", "model.py")
    assert [
        f"model.py:{line}:{column + 1}: {text.split()[0]}" for line, column, text, _ in reported
    ] == [" ".join(line.split(" ")[:2]) for line in out.splitlines()]


def test_bytes_that_flake8_does_not_hand_over(folder):
    """A byte order mark and Windows' line ends."""
    (folder / "model.py").write_bytes(b"\xef\xbb\xbf" + TEXT.replace("\n", "\r\n").encode())
    assert flake8("model.py") == [("model.py:7:9:", "DYN301"), ("model.py:8:12:", "DYN201")]
