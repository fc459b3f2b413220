"""Processes of the C++ compiler: at low priority where a thread works beside the user's code, which
can end them at once."""

import contextlib
import os
import re
import shlex
import shutil
import signal
import subprocess
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import ParamSpec, TypeVar

from .cache.private_files import DESCRIPTORS
from .diagnostics import log, warn_once
from .errors import BuildError, WorkerStopped
from .options import COMPILER_TIMEOUT

P = ParamSpec("P")
T = TypeVar("T")
PATIENCE = 30.0  # seconds, after which a user who waits is told what for
_PASSED = re.compile(rf"{DESCRIPTORS}/(\d+)/")


class _Thread(threading.local):
    gentle = False
    limit: int | None = None


_thread = _Thread()
_running: set[subprocess.Popen[str]] = set()
# Processes that `end_compilers` ended; not their numbers, which later ones may have again.
_ended: weakref.WeakSet[subprocess.Popen[str]] = weakref.WeakSet()
_used: list[float] = []  # processor seconds of gentle compilers that nobody has asked for yet


@contextlib.contextmanager
def time_limit(seconds: int | None) -> Iterator[None]:
    """Inside, compilers of this thread are given up after so many seconds; None: the default."""
    before, _thread.limit = _thread.limit, seconds
    try:
        yield
    finally:
        _thread.limit = before


def be_gentle() -> None:
    """From now on compilers of this thread run at low priority, and `end_compilers` ends them."""
    _thread.gentle = True


def take_seconds() -> float:
    """Processor seconds of gentle compilers since the last time this was asked."""
    return sum(_used.pop() for _ in range(len(_used)))


def end_compilers() -> None:
    """End the compilers that `be_gentle` threads wait for."""
    for process in list(_running):
        _ended.add(process)
        _end(process)


def _end(process: subprocess.Popen[str]) -> None:
    """A compiler driver and the programs that it started: a session of their own."""
    if process.returncode is None:
        with contextlib.suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)


def by_path(command: Sequence[str]) -> list[str]:
    """The command by the path of its program: `subprocess` would look for that under other filters
    of warnings, after which every place of the program warns once more."""
    return [shutil.which(command[0]) or command[0], *command[1:]]


def run(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Run a compiler to its end; at low priority, and to be ended, on threads that are gentle.
    Raises BuildError where it takes longer than the time limit, Stopped where the process ends."""
    nice = shutil.which("nice") if _thread.gentle else None
    words = [nice, "-n", "19", *command] if nice else by_path(command)
    start, used = time.perf_counter(), _used_by_children()
    with _started(words) as process:
        if nice:
            _running.add(process)
            be_gentle_as_a_group(process.pid)
        try:
            out, error = _waited_for(process, command)
        finally:
            if process.poll() is None:
                _end(process)
            if nice:
                _running.discard(process)
                taken = min(time.perf_counter() - start, _used_by_children() - used)
                _used.append(taken)  # at most: another child may have ended meanwhile
    if process in _ended:
        raise WorkerStopped
    return subprocess.CompletedProcess(words, process.returncode, out, error)


def _started(words: list[str]) -> subprocess.Popen[str]:
    """A session of its own, so that it can be ended with all that it starts. It reads and writes
    files of open folders (`private_files`), which are nobody else's."""
    passed = [int(found[1]) for word in words if (found := _PASSED.match(word))]
    return subprocess.Popen(
        words,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        env={**os.environ, "LC_ALL": "C"},
        start_new_session=True,
        pass_fds=passed,
        umask=0o077,
    )


def _waited_for(process: subprocess.Popen[str], command: Sequence[str]) -> tuple[str, str]:
    limit = COMPILER_TIMEOUT if _thread.limit is None else _thread.limit
    with contextlib.suppress(subprocess.TimeoutExpired):
        return process.communicate(timeout=min(PATIENCE, limit))
    if limit > PATIENCE:
        told = (
            f"still waiting for {command[0]} after {PATIENCE:g} s: {shlex.join(command)}; it is"
            f" given up after {limit} s: set DYNFIX_COMPILER_TIMEOUT to change that"
        )
        if _thread.gentle:  # nobody waits for it
            log.info("%s", told)
        else:
            warn_once("compiler", told, "waiting")
        with contextlib.suppress(subprocess.TimeoutExpired):
            return process.communicate(timeout=limit - PATIENCE)
    raise BuildError(
        f"{shlex.join(command)} was given up after {limit} s: set DYNFIX_COMPILER_TIMEOUT to"
        " change that"
    )


def failure(done: subprocess.CompletedProcess[str]) -> str:
    """Why a compiler failed: its first errors, or how it ended."""
    if done.returncode < 0:
        with contextlib.suppress(ValueError):
            return f"it was ended by {signal.Signals(-done.returncode).name}"
        return f"it was ended by signal {-done.returncode}"
    lines = done.stderr.splitlines()
    wrong = [line for line in lines if "error" in line or "undefined reference" in line]
    return "\n".join((wrong or lines)[:6]) or f"it prints nothing and exits with {done.returncode}"


def be_gentle_as_a_group(session: int) -> None:
    """Linux may share cores among sessions first, whatever the priorities inside of them. This one
    gets a tenth of what the script does; with the least, it would never end on a busy machine."""
    with contextlib.suppress(OSError):
        Path("/proc", str(session), "autogroup").write_text("10")


def _used_by_children() -> float:
    times = os.times()
    return times.children_user + times.children_system


def limited_as_now(call: Callable[P, T]) -> Callable[P, T]:
    """`call`, on another thread, under the time limit of this one."""
    return time_limit(_thread.limit)(call)


def as_gentle_as_now() -> Callable[[], None]:
    """What makes a thread as gentle as this one."""
    return be_gentle if _thread.gentle else lambda: None
