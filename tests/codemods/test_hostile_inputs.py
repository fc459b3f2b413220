"""Names and bytes of a checkout are data: nothing of it is run, nothing outside is written, and
every healthy file beside is looked at."""

import os
import signal
import threading

import pytest

from . import hostile_inputs, support

_FEW, _MANY = 40, 2000
_CPU, _WAIT = 10, 120  # seconds, for one input, of work, and of waiting for something


class _Held(BaseException):
    """The input holds the command up."""


def _stop(number, frame):
    raise _Held


def _outcome(case, monkeypatch):
    """What the command does wrong with a case."""
    monkeypatch.chdir(case.folder)
    monkeypatch.delenv("DYNFIX_CODEMOD_CACHE", raising=False)
    for timer, seconds in ((signal.ITIMER_PROF, _CPU), (signal.ITIMER_REAL, _WAIT)):
        signal.setitimer(timer, seconds)
    try:
        code, out, err = support.command(*case.argv)
    except _Held:
        return ["held up"]
    except Exception as error:
        return [f"{type(error).__name__}: {error}"]
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)
    return hostile_inputs.wrong(case, code, out, err)


def _run(seeds, folder, monkeypatch):
    if not hasattr(os, "mkfifo") or threading.current_thread() is not threading.main_thread():
        pytest.skip("needs named pipes and signals")
    signals = (signal.SIGPROF, signal.SIGALRM)
    before = [signal.signal(number, _stop) for number in signals]
    try:
        for seed in seeds:
            case = hostile_inputs.made(seed, folder / str(seed))
            found = _outcome(case, monkeypatch)
            assert not found, f"seed {seed}: {found}: {case.argv}"
    finally:
        for number, handler in zip(signals, before, strict=True):
            signal.signal(number, handler)


def test_hostile_inputs(tmp_path, monkeypatch):
    _run(range(_FEW), tmp_path, monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("start", range(_FEW, _MANY, 160))
def test_more_hostile_inputs(tmp_path, monkeypatch, start):
    _run(range(start, start + 160), tmp_path, monkeypatch)
