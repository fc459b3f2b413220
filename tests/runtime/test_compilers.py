"""Compilers that hang, are killed, or say nothing."""

import os
import signal
import subprocess
import sys
import time
import warnings

import dynfix
import pytest
from dynfix.runtime import build, compilers, diagnostics, options
from dynfix.runtime.background_budget import Account, Worker
from dynfix.runtime.cache import disk_cache
from dynfix.runtime.errors import BuildError, OptionError, WorkerStopped


@pytest.fixture
def compiler(tmp_path, monkeypatch):
    """Makes a compiler of a line of shell."""
    diagnostics.reset()
    monkeypatch.setenv("DYNFIX_CACHE_DIR", str(tmp_path / "cache"))
    probed = build.Probed((), False, frozenset(), ())
    monkeypatch.setattr(build, "probe_flags", lambda: probed)

    def make(line):
        file = tmp_path / "slow++"
        file.write_text(f'#!/bin/sh\n[ "$1" = --version ] && echo slow 1 && exit\n{line}\n')
        file.chmod(0o755)
        monkeypatch.setenv("CXX", str(file))

    return make


def gone(pid):
    for _ in range(200):
        if subprocess.run(["ps", "-o", "stat=", "-p", pid], capture_output=True).stdout[:1] in (
            b"",
            b"Z",
        ):
            return True
        time.sleep(0.02)
    return False


def test_one_that_hangs_is_reported_and_given_up_with_all_that_it_started(
    compiler, tmp_path, monkeypatch
):
    compiler(f"sleep 100 & echo $! > {tmp_path}/child; wait")
    monkeypatch.setattr(compilers, "PATIENCE", 0.2)
    with (
        warnings.catch_warnings(record=True) as said,
        compilers.time_limit(1),
        pytest.raises(
            BuildError, match=r"slow.* was given up after 1 s: set DYNFIX_COMPILER_TIMEO"
        ),
    ):
        warnings.simplefilter("always")
        build.build_shared("", name="k")
    (message,) = [str(each.message) for each in said]
    assert "still waiting for" in message and "slow++ after 0.2 s" in message
    assert "set DYNFIX_COMPILER_TIMEOUT" in message
    assert gone((tmp_path / "child").read_text().strip())


def test_the_pool_has_the_time_limit_of_its_caller(compiler):
    compiler("exec sleep 100")
    with compilers.time_limit(1):
        waiting = build.build_shared_later("", name="k")
    with pytest.raises(BuildError, match="given up after 1 s"):
        waiting.result(timeout=60)


def test_one_beside_the_program_says_nothing(compiler, monkeypatch):
    monkeypatch.setattr(compilers, "PATIENCE", 0.1)
    monkeypatch.setattr(compilers._thread, "gentle", True)
    with compilers.time_limit(1), warnings.catch_warnings(), pytest.raises(BuildError):
        warnings.simplefilter("error")
        compilers.run(["sleep", "100"])


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("kill -SEGV $$", "it was ended by SIGSEGV"),
        ("kill -KILL $$", "it was ended by SIGKILL"),
        ("exit 3", "it prints nothing and exits with 3"),
        ("echo k.cpp:1: error: bad >&2; exit 1", "k.cpp:1: error: bad"),
        ("printf '\\377 error' >&2; exit 1", "error"),
        ("exit 0", "k could not be built: FileNotFoundError"),
    ],
)
def test_what_is_said_of_one_that_fails(compiler, line, says):
    compiler(line)
    with pytest.raises(BuildError) as raised:
        build.build_shared("", name="k")
    assert says in str(raised.value)
    assert not list(disk_cache.root().glob("work/*/*made*"))


def test_one_that_is_ended_with_the_process_is_no_failure(compiler):
    compiler("exec sleep 100")
    worker, seen = Worker(Account(share=100)), []

    def job():
        try:
            build.build_shared("", name="k")
        except BaseException as error:
            seen.append(error)
            raise

    worker.submit(job)
    while not compilers._running:
        time.sleep(0.01)
    worker.stop()
    assert [type(error) for error in seen] == [WorkerStopped]


def test_what_a_program_waits_for_ends_with_it(compiler, monkeypatch):
    """An interrupt, which no longer reaches the compiler's own session."""

    def interrupted(process, command):
        raise KeyboardInterrupt

    monkeypatch.setattr(compilers, "_waited_for", interrupted)
    begun = []
    monkeypatch.setattr(compilers, "_started", lambda words: begun.append(real(words)) or begun[0])
    real = _real_started
    with pytest.raises(KeyboardInterrupt):
        compilers.run(["sleep", "100"])
    assert begun[0].returncode == -signal.SIGKILL


_real_started = compilers._started


@pytest.mark.parametrize(("text", "seconds"), [("60", 60), ("", 900), ("x", 900), ("0", 900)])
def test_the_environment_gives_the_default(text, seconds):
    code = "from dynfix.runtime.options import Options; print(Options().compiler_timeout)"
    environment = {**os.environ, "DYNFIX_COMPILER_TIMEOUT": text}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout == f"{seconds}\n"
    assert ("is no number of seconds" in done.stderr) == (text in ("x", "0"))


def test_it_is_an_option():
    assert options.Options().compiler_timeout == options.COMPILER_TIMEOUT
    assert "compiler_timeout" in options.list_options()
    with dynfix.config.patch(compiler_timeout=5):
        assert dynfix.config.options().compiler_timeout == 5
    for wrong in (0, 1.5, "10"):
        with pytest.raises(OptionError):
            options.Options(compiler_timeout=wrong)


def test_one_with_the_number_of_an_ended_one_is_not_ended(monkeypatch):
    """Systems give the numbers of processes again."""

    class Process(subprocess.Popen):
        def communicate(self, *args, **kwargs):
            found = super().communicate(*args, **kwargs)
            self.pid = 2**30
            made.append(self)
            return found

    made = []
    monkeypatch.setattr(subprocess, "Popen", Process)
    compilers.run(["true"])
    monkeypatch.setattr(compilers, "_running", set(made))
    compilers.end_compilers()  # too late for it
    assert compilers.run(["true"]).returncode == 0
