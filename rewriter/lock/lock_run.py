"""The lock of this process: what is compiled in it is noted, and written or compared at the end.

    DYNFIX_LOCK=compile.lock python serve.py     # write it
    DYNFIX_LOCK_CHECK=compile.lock python serve.py   # compare with it

`dynfix.lock.begin()`, before anything is compiled, and `dynfix.lock.write(path)` do the same.
"""

import atexit
import contextlib
import dataclasses
import math
import os
import platform
import re
import resource
import sys
from collections.abc import Iterator
from typing import Any

import torch

from ... import __version__
from ...lowering import stored_graphs
from ...runtime import diagnostics
from ..dynrun.summary import ranked
from ..frontend import compiled_function, segment_programs
from . import lock_file
from .compiled_facts import CompiledFacts, Watched
from .lock_changes import MEASURED, Changes, compared
from .lock_file import LockError, LockFact

_ASKED = WRITE, CHECK = "DYNFIX_LOCK", "DYNFIX_LOCK_CHECK"
FAILED, BROKEN = 1, 2  # exit statuses: something changed; there is no lock to compare with
SHOWN = 40  # lines of what changed
HEAD = (
    "What dynfix compiled in a run. Commit this file, and compare later runs with it:",
    f"`dynrun --lock-check FILE script.py`, or {CHECK}=FILE with dynfix.compile.",
)
_RANGE = re.compile(r"([\d.]+ \w+) to ([\d.]+ \w+)$")


@dataclasses.dataclass(frozen=True)
class RangeUnit:
    """Of measured numbers, which are written as ranges that noise does not leave. `names`: of its
    powers, the largest first; `width`: the upper end of a range by the lower one; `slack`: what a
    number may be off a range that was written before."""

    names: tuple[tuple[str, float], ...]
    width: float
    slack: float

    def range(self, value: float, expected: float, before: str = "") -> str:
        """The range that was written before, if it still holds; else one of those that have
        `expected`, which is the same in every run, in their middle or a multiple of their width
        off."""
        found = _RANGE.search(before)
        if found is not None:
            low, high = (self._number(text) for text in found.groups())
            if low / self.slack <= value <= high * self.slack:
                return before
        middle = expected * self.width ** round(math.log(value / expected, self.width))
        half = math.sqrt(self.width)
        return f"{self._text(middle / half)} to {self._text(middle * half)}"

    def _text(self, value: float) -> str:
        name, size = next((n for n in self.names if value >= n[1]), self.names[-1])
        return f"{value / size:.2g} {name}" if value < 100 * size else f"{value / size:.0f} {name}"

    def _number(self, text: str) -> float:
        number, _, name = text.partition(" ")
        return float(number) * dict(self.names)[name]


SECONDS = RangeUnit((("s", 1.0), ("ms", 1e-3), ("us", 1e-6)), 100.0, 3.0)
BYTES = RangeUnit((("GiB", 2.0**30), ("MiB", 2.0**20)), 4.0, 1.3)
PLAIN_PROCESS = 4e8  # bytes that torch and this package take


class Lock:
    """What this process compiles, from `begin` on: nothing is loaded from the cache that would hide
    a kernel, and nothing that earlier processes learnt changes what is compiled."""

    def __init__(self) -> None:
        self._facts: CompiledFacts | None = None
        self._functions: list[Watched] = []

    def begin(self, root: str = "") -> None:
        """Note what is compiled from now on. `root`: the folder that files are named from; by
        default the current one."""
        if self._facts is None:
            self._facts = CompiledFacts(root or os.getcwd())
            stored_graphs.watchers.append(self._facts.kernels)
            segment_programs.observers.append(self._facts.graph)
            compiled_function.watchers.append(self._watch)

    def end(self) -> None:
        """Note nothing more, and forget what was noted."""
        if self._facts is not None:
            stored_graphs.watchers.remove(self._facts.kernels)
            segment_programs.observers.remove(self._facts.graph)
            compiled_function.watchers.remove(self._watch)
        self._facts, self._functions = None, []

    def _watch(self, entry: Any) -> None:
        frame: Any = sys._getframe(1)
        while frame is not None and not self._is_users(frame.f_code.co_filename):
            frame = frame.f_back
        at = f"{frame.f_code.co_filename}:{frame.f_lineno}" if frame is not None else ""
        self._functions.append(Watched(entry, at))

    def _is_users(self, file: str) -> bool:
        return self._facts is not None and self._facts.text.is_users(file)

    def write(self, path: str) -> None:
        """Write what was compiled so far. Ranges that a file there has, and that still hold, stay.
        Raises LockError where `begin` was not called, OSError."""
        before: list[LockFact] = []
        with contextlib.suppress(LockError):
            before = lock_file.read(path)
        lock_file.write(path, lock_file.written(self.facts(before), HEAD))

    def check(self, path: str) -> Changes:
        """How what was compiled so far differs from the lock. Raises LockError for what is none."""
        before = lock_file.read(path)
        return compared(before, self.facts(before))

    def facts(self, before: list[LockFact]) -> list[LockFact]:
        """What was compiled so far; ranges are those of `before` where they hold."""
        if self._facts is None:
            raise LockError("nothing was noted: call dynfix.lock.begin() before dynfix.compile")
        facts = self._facts
        return [*_versions(), *self._ranges(facts, before), *facts.all(self._functions)]

    def _ranges(self, facts: CompiledFacts, before: list[LockFact]) -> Iterator[LockFact]:
        known = {(f.kind, f.text.partition(": ")[0]): f.text for f in before}

        def fact(kind: str, name: str, unit: RangeUnit, value: float, expected: float) -> LockFact:
            was = known.get((kind, name), "").partition(": ")[2]
            return LockFact(kind, f"{name}: {unit.range(value, expected, was)}")

        yield fact("memory", "peak", BYTES, _peak(), PLAIN_PROCESS)
        timed: dict[str, list[Watched]] = {}
        for each in self._functions:
            if each.fastest:
                timed.setdefault(each.name, []).append(each)
        for name in sorted(timed):
            expected = max(facts.expected_seconds(each.entry) for each in timed[name])
            fastest = min(each.fastest for each in timed[name])
            yield fact("time", name, SECONDS, fastest, expected)


def _versions() -> list[LockFact]:
    gpu = torch.cuda.is_available()
    device = torch.cuda.get_device_name() if gpu else platform.machine()
    python = ".".join(platform.python_version_tuple()[:2])
    return [
        LockFact("dynfix", __version__),
        LockFact("python", python),
        LockFact("torch", torch.__version__.partition("+")[0]),
        LockFact("device", device),
    ]


def _peak() -> float:
    """Bytes: of the GPU, else of the process."""
    if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return float(torch.cuda.max_memory_allocated())
    unit = 1 if sys.platform == "darwin" else 1 << 10
    return float(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit)


lock = Lock()


def end_lock(write: str, check: str, say: Any) -> int:
    """At the end of a run: write and compare as asked, and say what changed. The exit status."""
    try:
        changes = lock.check(check) if check else None
        if write:
            lock.write(write)
            say(f"--lock: {os.path.basename(write)}")
    except (LockError, OSError) as error:
        say(f"--lock: {error}")
        return BROKEN
    except Exception as error:  # ours: the script has ended well
        diagnostics.log.debug("a lock fails", exc_info=error)
        say(f"--lock: not written: {type(error).__name__}: {error}")
        return BROKEN
    if changes is None:
        return 0
    lines = [*changes.lines(os.path.basename(check), "this run", MEASURED)]
    for line in lines[:SHOWN]:
        say(line)
    if len(lines) > SHOWN:
        more = "`dynrun --lock NEW`, then `dynfix lock diff OLD NEW` shows all"
        say(f"and {len(lines) - SHOWN} more lines: {more}")
    return FAILED if changes.failing else 0


def begin_lock() -> None:
    """Do what DYNFIX_LOCK and DYNFIX_LOCK_CHECK ask for, at the end of the process."""
    write, check = (os.path.abspath(path) if path else "" for path in map(os.environ.get, _ASKED))
    lock.begin()

    def end() -> None:
        if getattr(sys, "last_value", None) is not None:
            _say("--lock: neither written nor compared: the script failed")
            return
        status = end_lock(ranked(write), ranked(check), _say)
        if status:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)

    atexit.register(end)


def _say(line: str) -> None:
    print(f"dynfix: {line}", file=sys.stderr)
