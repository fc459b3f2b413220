"""What the last runs of the same command learnt, kept in the cache folder: how long they took,
whether the programs that they used are stored, and of each training step and module what it took
in eager and compiled. So a run does at once what paid late in the one before it, and leaves out
what did not. Only when something is done depends on it, never what."""

import contextlib
import dataclasses
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from . import disk_cache

KEPT = 3  # runs; the shortest counts
SAFE = 0.7  # of that length is expected
LONG = 3.0  # seconds: of shorter runs nothing is written, unless there were longer ones
MOST = 64  # steps and modules
FORGOTTEN_AFTER = 8  # runs: then what did not pay is tried again

# What is known of a step or module.
MET, RECORDED, COMPILED, EAGER = "met", "recorded", "compiled", "eager"


@dataclasses.dataclass(frozen=True)
class SiteFacts:
    """Of one step or module in a run: calls; seconds that those in eager took; seconds of one call
    in eager and compiled, where they were timed; and for how many runs that was believed."""

    state: str
    calls: int
    seconds: float
    eager: float = 0.0
    compiled: float = 0.0
    runs: int = 0

    def gain(self, expected: float) -> float:
        """Seconds that compiling gains in such a run. `expected`: the part of eager's time that is
        saved where nothing was timed."""
        if self.state == COMPILED:
            return max(0.0, self.eager - self.compiled) * self.calls
        return 0.0 if self.state == EAGER else expected * self.seconds

    def skipped(self) -> "SiteFacts":
        """One more run believed it."""
        return dataclasses.replace(self, runs=self.runs + 1)


@dataclasses.dataclass
class CommandHistory:
    """What is remembered of a command."""

    seconds: list[float] = dataclasses.field(default_factory=list)
    stored: bool = False
    sites: dict[str, SiteFacts] = dataclasses.field(default_factory=dict)

    def expected(self) -> float:
        """Seconds that a run may be expected to take; 0 where nothing is known."""
        return SAFE * min(self.seconds) if self.seconds else 0.0


class RunHistory:
    """The runs of one command line in one folder, as long as the script's text stays the same."""

    def __init__(self, script: Sequence[str]) -> None:
        folder, text = "", b""
        with contextlib.suppress(OSError):
            folder = os.getcwd()
            text = Path(script[0]).read_bytes()
        self._key = disk_cache.key("runs", folder, *script, text)

    def note(
        self, seconds: float, stored: bool = False, sites: Mapping[str, SiteFacts] | None = None
    ) -> None:
        """The run ends after `seconds`. `stored`: it used programs that later runs will find."""
        known = self.known()
        lengths = known.seconds
        if lengths or seconds >= LONG:
            lengths = [*lengths, float(seconds)][-KEPT:]
        elif not stored and not known.stored:
            return
        most = sorted((sites or {}).items(), key=lambda item: -item[1].gain(1.0))[:MOST]
        data = [lengths, stored, {name: dataclasses.astuple(facts) for name, facts in most}]
        with contextlib.suppress(OSError):
            disk_cache.replace(self._key, disk_cache.RUNS, json.dumps(data).encode())

    def known(self) -> CommandHistory:
        """What is remembered; nothing of a damaged file."""
        try:
            lengths, stored, sites = json.loads(disk_cache.read(self._key, disk_cache.RUNS) or b"")
            found = {name: _facts(fields) for name, fields in sites.items()}
            if isinstance(lengths, list) and all(isinstance(each, float) for each in lengths):
                fresh = {name: facts for name, facts in found.items() if not _is_old(facts)}
                return CommandHistory(lengths, stored is True, fresh)
        except (ValueError, TypeError, AttributeError):
            pass
        return CommandHistory()


def _facts(fields: Sequence[Any]) -> SiteFacts:
    """Raises TypeError, ValueError."""
    state, calls, seconds, eager, compiled, runs = fields
    if state not in (MET, RECORDED, COMPILED, EAGER):
        raise ValueError(state)
    return SiteFacts(state, int(calls), float(seconds), float(eager), float(compiled), int(runs))


def _is_old(facts: SiteFacts) -> bool:
    return facts.state == EAGER and facts.runs >= FORGOTTEN_AFTER
