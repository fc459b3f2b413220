"""What a file's analysis is told of the rest of the project."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

Place = tuple[str, str]  # (path, qualified name) of a function or class


@dataclass(frozen=True)
class CallSite:
    """A call of the function `caller`, of the file at `path`: its first line and last column."""

    path: str
    caller: str
    line: int
    column: int


@dataclass(frozen=True)
class FileLinks:
    """`reached`: the functions of the file that run under capture, each with the calls that lead
    there (`model.py:88`). `classes`: whether a class is a module, where the project tells.
    `targets`: where the names that the file uses are defined. `callers`: the calls of each reached
    function. `handled`: the exceptions that callers of a reached function handle, and go on.
    `stamp`: changes with what the file's findings depend on. `path`: of the file."""

    reached: dict[str, tuple[str, ...]] = field(default_factory=dict)
    classes: dict[str, bool] = field(default_factory=dict)
    targets: dict[str, Place] = field(default_factory=dict)
    callers: dict[str, tuple[CallSite, ...]] = field(default_factory=dict)
    handled: dict[str, frozenset[str]] = field(default_factory=dict)
    stamp: str = ""
    path: str = ""

    def key(self) -> str:
        handled = {name: sorted(found) for name, found in self.handled.items()}
        parts = (self.reached, self.classes, self.targets, self.callers, handled, self.stamp)
        return hashlib.sha256(repr(parts).encode()).hexdigest()
