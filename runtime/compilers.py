"""Processes of the C++ compiler: at low priority where a thread works beside the user's code, which
can end them at once."""

import contextlib
import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path


class _Gentle(threading.local):
    on = False


_gentle = _Gentle()
_running: set[subprocess.Popen[str]] = set()
_used: list[float] = []  # processor seconds of gentle compilers that nobody has asked for yet


def be_gentle() -> None:
    """From now on compilers of this thread run at low priority, and `end_compilers` ends them."""
    _gentle.on = True


def take_seconds() -> float:
    """Processor seconds of gentle compilers since the last time this was asked."""
    return sum(_used.pop() for _ in range(len(_used)))


def end_compilers() -> None:
    """End the compilers that `be_gentle` threads wait for."""
    for process in list(_running):
        _end(process)


def _end(process: subprocess.Popen[str]) -> None:
    """A compiler driver and the programs that it started: a session of their own."""
    with contextlib.suppress(OSError):
        os.killpg(process.pid, signal.SIGKILL)


def by_path(command: Sequence[str]) -> list[str]:
    """The command by the path of its program: `subprocess` would look for that under other filters
    of warnings, after which every place of the program warns once more."""
    return [shutil.which(command[0]) or command[0], *command[1:]]


def run(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Run a compiler to its end; at low priority, and to be ended, on threads that are gentle."""
    environment = {**os.environ, "LC_ALL": "C"}
    if _gentle.on and (nice := shutil.which("nice")):
        return _run_gently([nice, "-n", "19", *command], environment)
    return subprocess.run(
        by_path(command), capture_output=True, text=True, env=environment, timeout=900, check=False
    )


def _run_gently(
    command: list[str], environment: dict[str, str]
) -> subprocess.CompletedProcess[str]:
    piped = subprocess.PIPE
    start, used = time.perf_counter(), _used_by_children()
    with subprocess.Popen(
        command, stdout=piped, stderr=piped, text=True, env=environment, start_new_session=True
    ) as process:
        _running.add(process)
        _be_gentle_as_a_group(process.pid)
        try:
            out, error = process.communicate(timeout=900)
        finally:
            _running.discard(process)
            taken = min(time.perf_counter() - start, _used_by_children() - used)
            _used.append(taken)  # at most: another child may have ended meanwhile
            if process.poll() is None:
                _end(process)
    return subprocess.CompletedProcess(command, process.returncode, out, error)


def _be_gentle_as_a_group(session: int) -> None:
    """Linux may share cores among sessions first, whatever the priorities inside of them. This one
    gets a tenth of what the script does; with the least, it would never end on a busy machine."""
    with contextlib.suppress(OSError):
        Path("/proc", str(session), "autogroup").write_text("10")


def _used_by_children() -> float:
    times = os.times()
    return times.children_user + times.children_system


def as_gentle_as_now() -> Callable[[], None]:
    """What makes a thread as gentle as this one."""
    return be_gentle if _gentle.on else lambda: None
