"""What a run may expect of itself: the shortest of its last runs, and nothing it cannot rely on."""

import pytest
import waiting
from dynfix.rewriter.frontend.background import Background
from dynfix.runtime.background_budget import Account
from dynfix.runtime.cache import entries, run_lengths
from dynfix.runtime.cache.run_lengths import SAFE, RunLengths
from simulated import Simulated


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("DYNFIX_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "script.py").write_text("pass")
    return tmp_path


def begun(seconds):
    """The account of a run that began so long ago, on cores that are free."""
    machine = Simulated()
    return Account(started=machine.now() - seconds, machine=machine)


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


@pytest.mark.parametrize("damage", ["", "{}", "[1, 2", '["x"]', "[true]", "3", "[[1], true]"])
def test_a_damaged_file_is_no_knowledge(folder, damage):
    lengths = RunLengths(["script.py"])
    lengths.note(100.0)
    (file,) = folder.glob("cache/*/*.runs")
    file.write_text(damage)
    assert lengths.expected() == 0.0
    lengths.note(50.0)
    assert lengths.expected() == SAFE * 50.0


def test_a_run_known_to_be_long_begins_at_once(monkeypatch):
    monkeypatch.setattr(run_lengths.RunLengths, "expected", lambda self: 500.0)
    account = begun(1)
    load = waiting.Loading()
    background = Background(load, account)
    assert not background.wants(calls=20, seconds=0.5)
    assert not background._asked
    background.lengths = RunLengths(["script.py"])
    background.torch_took(1.0)
    assert account.allows(19) and not account.allows(21)
    assert not background.wants(calls=20, seconds=0.5)
    assert background._asked
    load.end()
    background.worker.stop()


def test_a_short_run_remembers_that_its_programs_are_stored(folder):
    lengths = RunLengths(["script.py"])
    lengths.note(5.0, stored=True)
    assert RunLengths(["script.py"]).stored() and lengths.expected() == 0.0
    lengths.note(5.0)
    assert not lengths.stored()


@pytest.mark.parametrize("stored", [False, True])
def test_where_programs_are_stored_little_is_loaded_and_sooner(stored):
    RunLengths(["script.py"]).note(5.0, stored)
    load = waiting.Loading()
    background = Background(load, begun(20))
    background.lengths = RunLengths(["script.py"])
    background.torch_took(1.0)
    assert not background.wants(calls=1, seconds=0.1)
    load.end()
    waiting.until(lambda: background.loaded or not stored)
    assert (background.cost() < 0.5) == stored
    assert load.asked == ([True] if stored else [])
    background.worker.stop()


def test_what_a_process_finds_or_writes_is_noted(monkeypatch):
    monkeypatch.setattr(entries, "used", set())
    assert entries.read("ab" * 32) is None and not entries.used
    entries.write("ab" * 32, {"programs": {}})
    assert entries.used
    entries.used.clear()
    entries.read("ab" * 32)
    assert entries.used
    entries.forget("ab" * 32)
    assert not entries.used
