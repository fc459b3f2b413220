"""docs/walkthrough.md: its files are made, and its commands are run again, in order."""

import functools
import importlib
import runpy
import sys

import pytest

from . import support, walk


@pytest.fixture
def project(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    walk.write_files(tmp_path)
    return tmp_path


def test_the_commands_print_what_the_page_says(project):
    shown = [(command, output) for command, output in walk.steps() if command.startswith("dynfix ")]
    assert len(shown) == 5
    for command, output in shown:
        _, out, err = support.command(*command.split()[1:])
        assert (out + err).rstrip() == output, command


def test_the_blocked_commit_names_what_the_check_finds(project):
    code, out, err = support.command("--check", ".")
    blocked = next(output for command, output in walk.steps() if "git commit" in command)
    assert code == 1
    assert (out + err).rstrip() in blocked


def test_one_graph_with_the_same_losses(project, monkeypatch, capsys):
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="aot_eager"))
    monkeypatch.syspath_prepend(project)
    train = functools.partial(run, monkeypatch, capsys)
    before = train()
    with pytest.raises(torch._dynamo.exc.Unsupported, match="Failed to trace builtin operator"):
        train("--compile")
    assert "Failed to trace builtin operator" in walk.output_of(
        "python train.py --compile 2>&1 | grep"
    )
    assert support.command("--unsafe-fixes", ".")[0] == 0
    assert train() == before
    compiled = train("--compile")
    assert "hidden" not in compiled
    assert losses(compiled) == pytest.approx(losses(before), abs=1e-5)
    assert losses(before) == pytest.approx(losses(walk.output_of("python train.py\n")), abs=1e-4)


def run(monkeypatch, capsys, *arguments):
    """What the page's script prints."""
    monkeypatch.setattr(sys, "argv", ["train.py", *arguments])
    sys.modules.pop("model", None)
    importlib.invalidate_caches()
    capsys.readouterr()
    try:
        runpy.run_path("train.py", run_name="__main__")
        return capsys.readouterr().out
    finally:
        sys.modules.pop("model", None)


def losses(text):
    return [float(line.rpartition(" ")[2]) for line in text.splitlines() if line.startswith("step")]
