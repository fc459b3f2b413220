"""While nobody looks at the calls of a short run, torch has no hook of `dynrun`'s."""

import sys
import threading

import forked
import pytest
import waiting
from dynfix.rewriter.dynrun import hook_backoff
from dynfix.rewriter.dynrun.hook_backoff import Doze

MAIN = "import sys; from dynfix.rewriter.dynrun.main import main; sys.exit(main())"
SCRIPT = """
import os, threading, torch
net, x = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU()), torch.ones(1, 2)
net(x)
print(vars(torch.nn.Module)["_compiled_call_impl"], threading.active_count())
child = os.fork()
if child == 0:
    net(x)
    os._exit(5)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), net(x).shape)
"""


def test_a_short_run_has_no_hook(tmp_path):
    pytest.importorskip("torch")
    (tmp_path / "script.py").write_text(SCRIPT)
    runs = [
        forked.run(
            [sys.executable, *options, "script.py"], cwd=tmp_path, capture_output=True, text=True
        )
        for options in ([], ["-c", MAIN])
    ]
    assert runs[0].stdout == runs[1].stdout and runs[1].stdout.startswith("None 1\n5 ")
    assert runs[1].returncode == 0, runs[1].stderr


@pytest.fixture
def doze():
    told = []
    made = Doze(lambda: told.append("taken"), lambda: told.append("put"), lambda: None)
    made.told = told
    yield made
    made.end()


@pytest.fixture
def alone(monkeypatch):
    """As if no test before had left a thread."""
    monkeypatch.setattr(sys, "_current_frames", lambda: {threading.get_ident(): None})


def wait_for(doze, told):
    waiting.until(lambda: doze.told == told)


def test_the_hook_comes_back(doze, alone):
    doze.rest(0.05)
    assert doze.told[0] == "taken"
    wait_for(doze, ["taken", "put"])
    waiting.until(lambda: not doze._resting)
    doze.rest(0.05)
    wait_for(doze, ["taken", "put"] * 2)


def test_the_end_of_a_rest_is_not_waited_for(doze, alone, monkeypatch):
    monkeypatch.setattr(hook_backoff, "LONGEST", 2 * waiting.HANGS)
    doze.rest(hook_backoff.LONGEST)
    doze.rest(hook_backoff.LONGEST)
    doze.end()
    wait_for(doze, ["taken", "put"])
    doze.rest(hook_backoff.LONGEST)
    assert doze.told == ["taken", "put"]


def test_the_hook_stays_beside_other_threads(doze):
    done = threading.Event()
    thread = threading.Thread(target=done.wait)
    thread.start()
    try:
        doze.rest(0.05)
        assert doze.told == []
    finally:
        done.set()
        thread.join()
