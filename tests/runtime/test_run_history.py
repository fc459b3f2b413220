"""What a run may expect of itself: the shortest of its last runs, what paid in the last one, and
nothing it cannot rely on."""

import types

import pytest
import waiting
from dynfix.rewriter.frontend.background import CALLS, GAIN, Background, SiteUse
from dynfix.rewriter.frontend.switchover import ServingState
from dynfix.runtime.background_budget import Account
from dynfix.runtime.cache import entries
from dynfix.runtime.cache.run_history import (
    COMPILED,
    EAGER,
    FORGOTTEN_AFTER,
    LONG,
    MET,
    MOST,
    RECORDED,
    SAFE,
    RunHistory,
    SiteFacts,
)
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


def second_run(sites, seconds=20.0, stored=False, began=2.0):
    """A run whose script's last run left these facts; torch was just imported, in 1 s."""
    RunHistory(["script.py"]).note(seconds, stored, sites)
    load = waiting.Loading()
    background = Background(load, begun(began))
    background.history = RunHistory(["script.py"])
    background.torch_took(1.0)
    return background, load


def ended(background, load):
    load.end()
    background.worker.stop()


def test_the_shortest_of_the_last_runs_is_expected(folder):
    history = RunHistory(["script.py", "--x"])
    assert history.known().expected() == 0.0
    history.note(LONG / 2)  # too short to be worth a file
    assert history.known().expected() == 0.0 and not list(folder.glob("cache/*/*.runs"))
    for seconds in (30.0, 200.0, 100.0, 300.0):
        history.note(seconds)
    assert RunHistory(["script.py", "--x"]).known().expected() == SAFE * 100.0
    history.note(1.0)
    assert history.known().expected() == SAFE * 1.0
    assert RunHistory(["script.py"]).known().expected() == 0.0


def test_an_edited_script_begins_anew(folder):
    RunHistory(["script.py"]).note(100.0)
    (folder / "script.py").write_text("pass  # edited")
    assert RunHistory(["script.py"]).known().expected() == 0.0


@pytest.mark.parametrize(
    "damage",
    [
        *("", "{}", "[1, 2", '["x"]', "[true]", "3", "[[1], true, {}]"),
        '[[1.0], true, {"a": [1]}]',
        '[[1.0], true, {"a": ["?", 1, 1, 1, 1, 1]}]',
        '[[1.0], true, {"a": ["met", "x", 1, 1, 1, 1]}]',
    ],
)
def test_a_damaged_file_is_no_knowledge(folder, damage):
    history = RunHistory(["script.py"])
    history.note(100.0)
    (file,) = folder.glob("cache/*/*.runs")
    file.write_text(damage)
    assert history.known().expected() == 0.0
    history.note(50.0)
    assert history.known().expected() == SAFE * 50.0


def test_a_run_known_to_be_long_begins_at_once():
    background, load = second_run({}, seconds=500.0, began=1.0)
    account = background.account
    assert account.allows(34) and not account.allows(36)  # before it is known what is gained
    account.settled = True
    assert account.allows(13) and not account.allows(15)
    assert not background.wants("net", calls=20, seconds=0.5)
    assert background._asked
    ended(background, load)


def test_a_short_run_remembers_that_its_programs_are_stored():
    history = RunHistory(["script.py"])
    history.note(1.0, stored=True)
    known = RunHistory(["script.py"]).known()
    assert known.stored and known.expected() == 0.0
    history.note(1.0)
    assert not history.known().stored


@pytest.mark.parametrize("stored", [False, True])
@pytest.mark.parametrize(
    ("facts", "pays"),
    [
        (SiteFacts(COMPILED, 1000, 10.0, 0.010, 0.004), True),
        (SiteFacts(COMPILED, 1000, 10.0, 0.010, 0.0099), False),
        (SiteFacts(MET, 1000, 15.0), True),
        (SiteFacts(RECORDED, 1000, 15.0), True),
        (SiteFacts(MET, 1000, 2.0), False),
        (SiteFacts(EAGER, 1000, 15.0, 0.01, 0.02), False),
    ],
)
def test_what_paid_in_the_last_run_is_compiled_from_its_first_calls_on(facts, pays, stored):
    """Also in a run that is too short for anything that is not known."""
    background, load = second_run({"net": facts}, stored=stored)
    assert background.is_expecting() is pays and background._asked is pays
    assert not background.wants("net", calls=1, seconds=0.01)  # nothing is loaded yet
    load.end()
    waiting.until(lambda: background.loaded or not pays)
    waiting.until(background.nothing_builds)
    assert background.wants("net", calls=1, seconds=0.01) is pays
    assert not background.is_expecting()
    assert not background.wants("other", calls=1, seconds=0.01)
    assert load.asked == ([stored] if pays else [])
    ended(background, load)


@pytest.mark.parametrize("given_up", [False, True])
def test_what_did_not_pay_is_tried_again_some_runs_later(given_up):
    background, load = second_run({"net": SiteFacts(EAGER, 10, 50.0, 0.1, 0.2)}, seconds=1e4)
    assert not background.wants("net", calls=CALLS, seconds=50.0)
    background.uses.append(lambda: [SiteUse("net", 10, 50.0, None, given_up)])
    for runs in range(1, FORGOTTEN_AFTER + 1):
        (facts,) = background.learnt().values()
        assert (facts.state, facts.runs) == (EAGER, runs)
        RunHistory(["script.py"]).note(1e4, False, {"net": facts})
        background.known = RunHistory(["script.py"]).known()
    assert background.known.sites == {}
    ended(background, load)


def tried(state, trials, eager=0.0, compiled=0.0, calls=0):
    return types.SimpleNamespace(
        state=state, trials=trials, eager_seconds=eager, compiled_seconds=compiled,
        compiled_calls=calls,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("switchovers", "given_up", "facts"),
    [
        (None, False, SiteFacts(MET, 10, 2.0)),
        ([tried(ServingState.WAITING, 0)], False, SiteFacts(RECORDED, 10, 2.0)),
        ([], True, SiteFacts(EAGER, 10, 2.0)),
        (
            [tried(ServingState.WAITING, 0), tried(ServingState.COMPILED, 1, 0.2, 0.1, 90)],
            False,
            SiteFacts(COMPILED, 100, 20.0, 0.2, 0.1),
        ),
        ([tried(ServingState.EAGER, 1, 0.2, 0.3)], True, SiteFacts(EAGER, 10, 2.0, 0.2, 0.3)),
        (
            [tried(ServingState.EAGER, 1, 0.2, 0.21)],  # another time it may be the other way
            True,
            SiteFacts(EAGER, 10, 2.0, 0.2, 0.21, FORGOTTEN_AFTER - 1),
        ),
    ],
)
def test_what_a_run_learns(switchovers, given_up, facts):
    background = Background(lambda stored: None, begun(1.0))
    entry = None if switchovers is None else types.SimpleNamespace(switchovers=switchovers)
    background.uses.append(lambda: [SiteUse("net", 10, 2.0, entry, given_up)])
    assert background.learnt() == {"net": facts}
    many = {f"net{n}": facts for n in range(2 * MOST)}
    RunHistory(["script.py"]).note(50.0, True, many)
    known = RunHistory(["script.py"]).known()
    assert known.stored and len(known.sites) == MOST and set(known.sites.values()) == {facts}
    assert facts.gain(GAIN) >= 0.0


TIMED = SiteFacts(COMPILED, 100, 20.0, 0.2, 0.1)


@pytest.mark.parametrize(
    ("before", "use", "after"),
    [
        (TIMED, None, TIMED),  # it was not met: the run ended before
        (TIMED, SiteUse("net", 3, 0.6, None, False), TIMED),
        (SiteFacts(MET, 90, 9.0), SiteUse("net", 3, 0.6, None, False), SiteFacts(MET, 90, 9.0)),
        (SiteFacts(MET, 3, 0.6), SiteUse("net", 90, 9.0, None, False), SiteFacts(MET, 90, 9.0)),
        (
            TIMED,
            SiteUse("net", 9, 2.0, types.SimpleNamespace(switchovers=[]), True),
            SiteFacts(EAGER, 9, 2.0),
        ),
    ],
)
def test_a_run_that_ended_early_forgets_nothing(before, use, after):
    background, load = second_run({"net": before})
    background.uses.append(lambda: [] if use is None else [use])
    assert background.learnt() == {"net": after}
    ended(background, load)


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
