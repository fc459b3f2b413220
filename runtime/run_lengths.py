"""How long the last runs of the same command took, kept in the cache folder: what a run may expect
of itself, so that a second run compiles early what paid late in the first."""

import contextlib
import json
import os
from collections.abc import Sequence
from pathlib import Path

from . import cache

KEPT = 3  # runs; the shortest counts
SAFE = 0.7  # of that length is expected
LONG = 20.0  # seconds: of shorter runs nothing is written, unless there were longer ones


class RunLengths:
    """The runs of one command line in one folder, as long as the script's text stays the same."""

    def __init__(self, script: Sequence[str]) -> None:
        folder, text = "", b""
        with contextlib.suppress(OSError):
            folder = os.getcwd()
            text = Path(script[0]).read_bytes()
        self._key = cache.key("runs", folder, *script, text)

    def expected(self) -> float:
        """Seconds that this run may be expected to take; 0 where nothing is known."""
        known = self._known()
        return SAFE * min(known) if known else 0.0

    def note(self, seconds: float) -> None:
        """The run ends after `seconds`."""
        known = self._known()
        if not known and seconds < LONG:
            return
        with contextlib.suppress(OSError):
            path = cache.path_for(self._key, ".runs")
            path.parent.mkdir(mode=0o700, exist_ok=True)
            fresh = path.with_suffix(f".{os.getpid()}")
            fresh.write_text(json.dumps([*known, seconds][-KEPT:]))
            fresh.replace(path)

    def _known(self) -> list[float]:
        try:
            known = json.loads(cache.path_for(self._key, ".runs").read_text())
        except (OSError, ValueError):
            return []
        right = isinstance(known, list) and all(isinstance(each, float) for each in known)
        return known if right else []
