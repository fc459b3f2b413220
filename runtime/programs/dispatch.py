"""From a call to the program that stands for it: the first entry whose guards match runs, or the
miss is handed to who can record."""

import threading
from collections.abc import Callable
from typing import Any, Protocol

from ..guards.guard import GuardFailure, GuardSet

MISS: Any = type("Miss", (), {"__repr__": lambda self: "MISS"})()
"""What `Entry.run` gives when it finds that it does not stand for the call after all. Nothing was
done to the outside then."""


PATIENCE, LONGEST_REST = 8, 256  # calls


class DispatchEntry(Protocol):
    """One recording that can stand for a call."""

    general: bool
    """Whether it is slower than one that stands for fewer calls: then it is asked last."""

    @property
    def guards(self) -> GuardSet:
        """What must hold."""
        ...

    def run(self, inputs: list[Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run the program on what the guards fetched; MISS if only running it showed that another
        is needed."""
        ...


class Dispatcher:
    """The entries of one function, most recent hit first.

    Calls read an immutable tuple and take no lock, so threads may call at once; a change makes a
    new tuple. on_miss(args, kwargs): its result is the call's. limit: entries kept; one more takes
    the place of the one that was not hit for longest. resting: so many calls are better made
    without asking, since entries ran for nothing in all of the last ones.
    """

    def __init__(
        self, on_miss: Callable[[tuple[Any, ...], dict[str, Any]], Any], limit: int
    ) -> None:
        if limit < 1:
            raise ValueError(f"a dispatcher keeps at least one entry, not {limit}")
        self._on_miss = on_miss
        self._limit = limit
        self._entries: tuple[DispatchEntry, ...] = ()
        self._lock = threading.Lock()
        self._vain = self.resting = 0

    def __call__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        entries = self._entries
        ran = False
        for entry in entries:
            inputs = entry.guards.match(args, kwargs)
            if inputs is not None:
                result = entry.run(inputs, args, kwargs)
                if result is not MISS:
                    if entry is not entries[0] and not entry.general:
                        self._promote(entry)
                    self._vain = 0
                    return result
                ran = True
        if ran and len(entries) >= self._limit:
            self._rest()
        return self._on_miss(args, kwargs)

    def _rest(self) -> None:
        """Entries ran for nothing, and no more can be added: where it happens again and again, they
        are asked ever more rarely."""
        self._vain += 1
        if self._vain > PATIENCE:
            self.resting = min(2 ** (self._vain - PATIENCE), LONGEST_REST)

    @property
    def entries(self) -> tuple[DispatchEntry, ...]:
        """The entries, most recent hit first."""
        return self._entries

    def add(self, entry: DispatchEntry) -> None:
        """Put `entry` first, or last if it is general; one that is there already is moved."""
        with self._lock:
            others = tuple(other for other in self._entries if other is not entry)
            self._entries = (
                (*others[: self._limit - 1], entry)
                if entry.general
                else (entry, *others)[: self._limit]
            )

    def replace(self, old: DispatchEntry, new: DispatchEntry) -> None:
        """Put `new` where `old` is; nothing if it is there no more."""
        with self._lock:
            self._entries = tuple(new if each is old else each for each in self._entries)

    def clear(self) -> None:
        """Drop every entry. Calls that are under way finish with theirs."""
        with self._lock:
            self._entries = ()
        self._vain = self.resting = 0

    def explain_miss(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[GuardFailure]:
        """Why each entry does not stand for this call, in the order of `entries`; an entry that
        does is left out."""
        failures = (entry.guards.explain(args, kwargs) for entry in self._entries)
        return [failure for failure in failures if failure is not None]

    def _promote(self, entry: DispatchEntry) -> None:
        with self._lock:
            if any(other is entry for other in self._entries):  # it may have been cleared meanwhile
                self._entries = (entry, *(other for other in self._entries if other is not entry))
