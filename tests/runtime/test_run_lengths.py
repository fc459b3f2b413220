"""What a run may expect of itself: the shortest of its last runs, and nothing it cannot rely on."""

import time

import pytest
from dynfix.rewriter.background import Background
from dynfix.runtime import pacing, run_lengths
from dynfix.runtime.pacing import Account
from dynfix.runtime.run_lengths import SAFE, RunLengths


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("DYNFIX_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "script.py").write_text("pass")
    return tmp_path


def test_the_shortest_of_the_last_runs_is_expected(folder):
    lengths = RunLengths(["script.py", "--x"])
    assert lengths.expected() == 0.0
    lengths.note(5.0)  # too short to be worth a file
    assert lengths.expected() == 0.0 and not list(folder.glob("cache/*/*.runs"))
    for seconds in (30.0, 200.0, 100.0, 300.0):
        lengths.note(seconds)
    assert RunLengths(["script.py", "--x"]).expected() == SAFE * 100.0
    lengths.note(1.0)
    assert lengths.expected() == SAFE * 1.0
    assert RunLengths(["script.py"]).expected() == 0.0


def test_an_edited_script_begins_anew(folder):
    RunLengths(["script.py"]).note(100.0)
    (folder / "script.py").write_text("pass  # edited")
    assert RunLengths(["script.py"]).expected() == 0.0


@pytest.mark.parametrize("damage", ["", "{}", "[1, 2", '["x"]', "[true]"])
def test_a_damaged_file_is_no_knowledge(folder, damage):
    lengths = RunLengths(["script.py"])
    lengths.note(100.0)
    (file,) = folder.glob("cache/*/*.runs")
    file.write_text(damage)
    assert lengths.expected() == 0.0
    lengths.note(50.0)
    assert lengths.expected() == SAFE * 50.0


def test_a_run_known_to_be_long_begins_at_once(monkeypatch):
    monkeypatch.setattr(pacing, "is_crowded", lambda: False)
    monkeypatch.setattr(run_lengths.RunLengths, "expected", lambda self: 500.0)
    account = Account(started=time.perf_counter() - 1)
    background = Background(lambda: None, account)
    assert not background.wants(calls=20, seconds=0.5)
    assert not background._asked
    background.lengths = RunLengths(["script.py"])
    background.torch_took(1.0)
    assert account.allows(19) and not account.allows(21)
    assert not background.wants(calls=20, seconds=0.5)
    assert background._asked
    background.worker.stop()
