"""Entries that are compiled when a call first asks for them."""

import threading
from collections.abc import Callable
from typing import Any

from ...runtime.programs.dispatch import Dispatcher
from ...runtime.programs.entry import CacheEntry
from ..capture.recording import Recording


def guards_already_stale(
    recording: Recording, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> bool:
    """Whether the recorded call changed what its recording relies on, so that the next one is
    another: an optimizer's first step makes its state, a counter counts."""
    changes = bool(recording.effects) or any(segment.writes for segment in recording.segments)
    return changes and recording.symbols is None and not recording.guards_hold(args, kwargs)


class Deferred:
    """An entry of `recording`, which `build` makes when it is needed, in place of this one; None
    where that fails, and eager serves."""

    general = stays_eager = False
    hits = 0

    def __init__(
        self,
        recording: Recording,
        build: Callable[[Recording], CacheEntry | None],
        dispatcher: Dispatcher,
        eager: Callable[..., Any],
    ) -> None:
        self.recording, self.build = recording, build
        self.dispatcher, self.eager = dispatcher, eager
        self._lock = threading.Lock()
        self._failed = False

    @property
    def guards(self) -> Any:
        return self.recording.guard_set

    def run(self, inputs: list[Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """As `Entry.run`."""
        if self._failed or not self._lock.acquire(blocking=False):
            return self.eager(*args, **kwargs)
        try:
            entry = self.build(self.recording)
            self._failed = entry is None
            if entry is None:
                return self.eager(*args, **kwargs)
            self.dispatcher.replace(self, entry)
        finally:
            self._lock.release()
        return entry.run(inputs, args, kwargs)
