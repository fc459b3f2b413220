"""What runs showed is kept: several runs are joined, and used again until the file changes."""

import json

import pytest
from dynfix.codemods.trace import saved_facts, traced_program

from . import support

pytest.importorskip("torch")
MODEL = """import torch
from torch import nn


class Image(nn.Module):
    def forward(self, img, axis):
        img = self.scaled(img)
        return img.sum(axis)

    def scaled(self, img):
        if img.max() > 1.0:
            img = img / 255.0
        return img


class Doubled(nn.Module):
    def forward(self, t, make):
        t = make(t)
        if t.sum() > 0:
            t = t * 2
        return t
"""
TEST = "import torch\nfrom model import Image\n\ndef test_image():\n    Image()(torch.ones(2), 0)\n"
SCRIPT = "import torch\nfrom model import Doubled\nDoubled()(torch.ones(2), torch.sigmoid)\n"


@pytest.fixture
def project(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")
    monkeypatch.setenv("DYNFIX_CODEMOD_CACHE", str(tmp_path / ".cache"))
    for name, text in (("model", MODEL), ("test_image", TEST), ("script", SCRIPT)):
        (tmp_path / f"{name}.py").write_text(text)
    return tmp_path


def _fixable():
    _, out, _ = support.command("check", "--output-format", "json", "model.py")
    return [f["location"]["row"] for f in json.loads(out) if f["fix"] and f["traced"]]


def test_runs_are_joined_and_kept_until_the_file_changes(project):
    assert _fixable() == []
    runs = ["--trace", "pytest -q test_image.py", "--trace", "script.py"]
    support.command("--diff", "--no-verify", *runs, "model.py")
    assert _fixable() == [11, 19]
    (project / "model.py").write_text(MODEL + "# changed\n")
    assert _fixable() == []
    (project / "model.py").write_text(MODEL)
    assert _fixable() == [11, 19]


def test_kinds_of_two_runs_are_joined():
    fact, other = ["f", "x", ["tensor", 1, "float32"]], ["f", "x", ["tensor", 2, "float32"]]
    runs = [
        {"m.py": {"facts": [f], "captured": ["f"], "reads": [], "roots": {}}} for f in (fact, other)
    ]
    assert saved_facts.joined(runs)["m.py"]["facts"] == [fact, other]


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("python -m pytest tests", ["-m", "pytest", "tests"]),
        ("pytest 'a b'", ["-m", "pytest", "a b"]),
        ("python script.py -x", ["script.py", "-x"]),
    ],
)
def test_scripts_and_modules(project, command, words):
    assert traced_program.words_of(command) == words


def test_what_is_neither(project):
    with pytest.raises(traced_program.TraceError, match="no such script"):
        traced_program.words_of("missing.py")
