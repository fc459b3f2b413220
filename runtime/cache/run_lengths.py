"""How long the last runs of the same command took, and whether the programs that they used are
stored, kept in the cache folder: what a run may expect of itself, so that a second run compiles
early what paid late in the first. Only when something is done depends on it, never what."""

import contextlib
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from . import disk_cache

KEPT = 3  # runs; the shortest counts
SAFE = 0.7  # of that length is expected
LONG = 20.0  # seconds: of shorter runs nothing is written, unless there were longer ones


class CommandHistory(NamedTuple):
    """What is remembered of a command."""

    seconds: list[float]
    stored: bool


class RunLengths:
    """The runs of one command line in one folder, as long as the script's text stays the same."""

    def __init__(self, script: Sequence[str]) -> None:
        folder, text = "", b""
        with contextlib.suppress(OSError):
            folder = os.getcwd()
            text = Path(script[0]).read_bytes()
        self._key = disk_cache.key("runs", folder, *script, text)

    def expected(self) -> float:
        """Seconds that this run may be expected to take; 0 where nothing is known."""
        known = self._known().seconds
        return SAFE * min(known) if known else 0.0

    def stored(self) -> bool:
        """Whether the last run used programs that are stored."""
        return self._known().stored

    def note(self, seconds: float, stored: bool = False) -> None:
        """The run ends after `seconds`. `stored`: it used programs that later runs will find."""
        known = self._known()
        lengths = known.seconds
        if lengths or seconds >= LONG:
            lengths = [*lengths, seconds][-KEPT:]
        elif not stored and not known.stored:
            return
        with contextlib.suppress(OSError):
            disk_cache.replace(
                self._key, disk_cache.RUNS, json.dumps(CommandHistory(lengths, stored)).encode()
            )

    def _known(self) -> CommandHistory:
        try:
            lengths, stored = json.loads(disk_cache.read(self._key, disk_cache.RUNS) or b"")
            if isinstance(lengths, list) and all(isinstance(each, float) for each in lengths):
                return CommandHistory(lengths, stored is True)
        except (ValueError, TypeError):
            pass
        return CommandHistory([], False)
