"""A second process that compiles what was recorded in this one, and stores it: at low priority, so
that a free core does the work and the script's interpreter lock is nobody else's.

It is given graphs through a pipe and answers with their keys; the programs themselves go through
the cache. Where the script ends first, it finishes what it was given, for at most `SECONDS_AFTER`
seconds. It is no child of the script's process, which may wait for all of its children.
"""

import contextlib
import os
import select
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from ...runtime.background_budget import checkpoint, in_background, wait
from ...runtime.cache import disk_cache
from ...runtime.diagnostics import log

SECONDS_AFTER = 60.0  # that it may go on for after the process which it works for
POLL = 0.02  # seconds between two looks at whether this process ends
LENGTH = 8  # bytes of the number before each job
KEY = 64  # characters
STORED, REFUSED = b"+", b"-"
_MAIN = "from dynfix.rewriter.frontend.build_worker import main; main()"
# It forks at once, and its parent ends: so it is nobody's child.
_START = f"""
import os, sys
if os.fork(): os._exit(0)
os.setsid()
sys.path[:] = {{path!r}}
{_MAIN}
"""


class BuildProcess:
    """The process, from this one's side. It is started by the first graph, or by `start`."""

    def __init__(self, is_left_to_finish: bool = True) -> None:
        self._is_left_to_finish = is_left_to_finish
        self._asked: set[str] = set()
        self._answers: dict[str, bool] = {}
        self._unread = b""
        self._owner = os.getpid()
        self._broken = not (hasattr(os, "fork") and hasattr(select, "poll"))
        self._to = self._from = -1
        self._lock = threading.Lock()

    def start(self) -> None:
        """Have it load what it needs."""
        with self._lock:
            if self._to < 0 and not self._broken:
                try:
                    self._start()
                except OSError as error:
                    self._fail(error)

    def _start(self) -> None:
        read, self._to = os.pipe()
        self._from, write = os.pipe()
        os.set_blocking(self._to, False)
        code = _START.format(path=[*_import_path()])
        try:
            with subprocess.Popen(
                [sys.executable, "-c", code, *map(str, (read, write, os.getpid(), SECONDS_AFTER))],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=(read, write),
                env={**os.environ, "DYNFIX_CACHE_DIR": str(disk_cache.root())},
            ) as process:
                process.wait()
        finally:
            os.close(read)
            os.close(write)
        log.debug("a process was started that compiles")

    def ask(self, key: str, to_bytes: Callable[[], bytes]) -> bool:
        """Have it compile the graph that `to_bytes` gives. Whether it was told to."""
        self.start()
        if self._broken or os.getpid() != self._owner:
            return False
        if key not in self._asked:
            try:
                data = to_bytes()
                self._send(key.encode() + data)
            except Exception as error:  # a graph that cannot travel, or nobody reads
                log.debug("a graph is compiled in this process: %r", error)
                if isinstance(error, OSError):
                    self._fail(error)
                return False
            self._asked.add(key)
        return True

    def has_stored(self, key: str) -> bool:
        """Wait for its answer. Whether the program of that key is in the cache now."""
        wait(lambda: self._has_answer(key))
        return self._answers.get(key, False)

    def _has_answer(self, key: str) -> bool:
        if key not in self._answers and not self._broken and _is_ready(self._from, select.POLLIN):
            self._read()
        return key in self._answers or self._broken

    def end(self) -> None:
        """This process ends: the other one finishes what it was asked for, or ends, too."""
        if self._to >= 0 and os.getpid() == self._owner:
            pending = self._asked - self._answers.keys()
            if not self._is_left_to_finish or not pending:
                self._fail(None)
            self._broken = True

    def _send(self, data: bytes) -> None:
        view = memoryview(len(data).to_bytes(LENGTH, "little") + data)
        while view:
            checkpoint()
            if _is_ready(self._to, select.POLLOUT):
                view = view[os.write(self._to, view[: 1 << 15]) :]

    def _read(self) -> None:
        found = b""
        with contextlib.suppress(OSError):
            found = os.read(self._from, 1 << 12)
        if not found:
            self._fail(EOFError("it has ended"))
        self._unread += found
        while len(self._unread) > KEY:
            answer, self._unread = self._unread[: KEY + 1], self._unread[KEY + 1 :]
            self._answers[answer[1:].decode()] = answer[:1] == STORED

    def _fail(self, error: Exception | None) -> None:
        """It is of no use any more."""
        log.debug("nothing is compiled in another process: %r", error)
        self._broken = True
        handles, self._to, self._from = (self._to, self._from), -1, -1
        for handle in handles:
            with contextlib.suppress(OSError):
                os.close(handle)


def _is_ready(handle: int, event: int) -> bool:
    """Wait a little. Whether something can be read or written then, or the other side is gone."""
    poll = select.poll()  # select() takes no large handles
    poll.register(handle, event)
    return bool(poll.poll(1000 * POLL))


def _import_path() -> Sequence[str]:
    """Where packages are found, without the script's own folder."""
    own = str(Path(__file__).parents[3])
    return [*(path for path in sys.path[1:] if path and os.path.isabs(path)), own]


_serving: list[BuildProcess] = []


def serve_builds(process: BuildProcess) -> None:
    """Background work of this process has its graphs compiled there."""
    _serving[:] = [process]


def serving() -> BuildProcess | None:
    """Who compiles for the calling thread, if it is not the thread itself."""
    return _serving[0] if _serving and in_background() else None
