"""What patterns make of the places where a recording is cut: judged there and then, while the real
values stand in the user's frame.

The recording goes on as it would; at its end the functions with what was found are recorded again
(`rewriter.rerecord`).
"""

import importlib
import os
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ....runtime.background_budget import imports
from ...source import live_source
from ...source.source_file import SourceError, SourceFile
from ...source.spans import Edit, apply
from .. import places
from .choices import Choices
from .fake_values import FakeValues
from .user_frames import function_frame

MAX_TRIES_AT_SITE = 64  # looks at one place: a loop of more turns stays a loop
IN_PLACE = frozenset({"DYN504"})  # these write into the tensor that there is


@dataclass(frozen=True)
class Applied:
    """One change: the rule's code, the place, what stood there and what stands there now."""

    code: str
    file: str
    line: int
    before: str
    after: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.code} {self.before!r} -> {self.after!r}"


@dataclass
class Found:
    """The changes of one function. `file`: its text, with each line under its number, where no
    earlier change moved it. `edits` by the line that asked, with the number of looks; None: it
    stays as it is."""

    function: types.FunctionType
    source: live_source.Source
    file: SourceFile
    edits: dict[int, tuple[Edit, str] | None] = field(default_factory=dict)
    looks: dict[int, int] = field(default_factory=dict)

    def lines(self, line: int) -> list[int]:
        """Where a line of the user's file stands in the text."""
        first, moved = self.source.first_line, self.source.lines
        return [first + i for i, at in enumerate(moved) if at == line] if moved else [line]

    def replaced(self, edit: Edit) -> set[int]:
        """The lines of the user's file that an edit of the text replaces."""
        first, moved, text = self.source.first_line, self.source.lines, self.file.text
        lines = range(text.count("\n", 0, edit.start) + 1, text.count("\n", 0, edit.end) + 2)
        return {moved[min(n - first, len(moved) - 1)] for n in lines} if moved else set(lines)

    def applied(self) -> list[Applied]:
        """The changes, first come first."""
        found = [(line, *entry) for line, entry in sorted(self.edits.items()) if entry]
        return [
            Applied(code, self.source.file, line, self.file.text[e.start : e.end], e.text)
            for line, e, code in found
        ]

    def rewritten(self) -> live_source.Source | None:
        """The function's source with the changes made; None where there are none."""
        edits = [entry[0] for entry in self.edits.values() if entry]
        if not edits:
            return None
        start, end = len(self.file.text) - len(self.source.text), len(self.file.text)
        inner = [Edit(e.start - start, e.end - start, e.text) for e in edits]
        if any(e.start < 0 or e.end > end - start for e in inner):
            return None
        return self.source.changed(apply(self.source.text, inner), _lines(self.source, inner))


def _lines(source: live_source.Source, edits: list[Edit]) -> tuple[int, ...]:
    """For each line of the changed text, its line in the user's file: what is new stands where the
    change begins."""
    lines: list[int] = []
    at, number = 0, source.first_line
    for edit in sorted(edits, key=lambda e: e.start):
        kept = source.text[at : edit.start].count("\n")
        lines += range(number, number + kept)
        number += kept
        lines += [number] * (edit.text.count("\n") + 1)
        number += source.text[edit.start : edit.end].count("\n") + 1
        at = edit.end + 1
    rest = source.text[at:].count("\n") + 1 if at <= len(source.text) else 0
    lines += range(number, number + rest)
    moved, first = source.lines, source.first_line
    return tuple(moved[min(n - first, len(moved) - 1)] for n in lines) if moved else tuple(lines)


class Rewritings:
    """What patterns found in one recording. `is_rewritten` knows code that the rewriter made;
    `earlier`: functions that run as patterns changed them before."""

    def __init__(
        self,
        is_rewritten: Callable[[types.CodeType], bool],
        earlier: Mapping[types.CodeType, live_source.Source] = types.MappingProxyType({}),
    ) -> None:
        self._is_rewritten, self._earlier = is_rewritten, earlier
        self._found: dict[types.CodeType, Found | str] = {}
        self.complete = True
        self.choices = Choices()

    def try_patterns(self, frame: types.FrameType | None, static: bool = True) -> str:
        """A value decides in the code that runs: "" where a pattern makes it a choice in the graph,
        else why none does. `static`: later calls have the same sizes."""
        kept = self._try_patterns(frame, static)
        self.complete = self.complete and not kept
        return kept

    def found(self) -> list[Found]:
        """The functions that change."""
        every = [found for found in self._found.values() if isinstance(found, Found)]
        return [found for found in every if any(found.edits.values())]

    def _try_patterns(self, frame: types.FrameType | None, static: bool) -> str:
        if f"{os.sep}torch{os.sep}" in places.place_of(frame)[0]:
            return "torch's own code decides"
        frame = function_frame(frame, self._is_rewritten)
        if frame is None or f"{os.sep}torch{os.sep}" in frame.f_code.co_filename:
            return "no function of the user's decides"
        found = self._file_of(places.locals_of(frame)["__df"].fn)
        if isinstance(found, str):
            return found
        line = frame.f_lineno
        found.looks[line] = found.looks.get(line, 0) + 1
        if found.looks[line] > MAX_TRIES_AT_SITE:
            found.edits[line] = None
            return "too many turns of a loop"
        values = FakeValues(_locals(frame), found.function.__globals__, static)
        try:
            edit = _judging().judged(found, line, values)
        except Exception as error:
            edit = f"{type(error).__name__}: {error}"
        if isinstance(edit, str):
            found.edits[line] = None
            return edit
        if edit[1] not in IN_PLACE:
            self.choices.keep(values)
            self.choices.replace(places.shown(found.source.file), found.replaced(edit[0]))
        return self._keep(found, line, edit)

    def _keep(self, found: Found, line: int, edit: tuple[Edit, str]) -> str:
        if found.edits.setdefault(line, edit) != edit:
            found.edits[line] = None
            return "it would be written otherwise at another time"
        others = [e[0] for at, e in found.edits.items() if e and at != line]
        if any(edit[0].start < other.end and other.start < edit[0].end for other in others):
            found.edits[line] = None
            return "another change stands in the way"
        return ""

    def _file_of(self, function: types.FunctionType) -> "Found | str":
        code = function.__code__
        if code not in self._found:
            self._found[code] = _found(function, self._earlier.get(code))
        return self._found[code]


def _found(function: types.FunctionType, earlier: live_source.Source | None) -> "Found | str":
    try:
        source = earlier or live_source.find(function)
        file = SourceFile(live_source.padded(source, source.text), source.file)
    except (live_source.NotRewritable, SourceError, RecursionError, MemoryError) as error:
        return str(error)
    return "it stands in a lambda" if source.is_lambda else Found(function, source, file)


def _judging() -> types.ModuleType:
    """With the patterns, which most recordings meet no place for."""
    with imports():
        return importlib.import_module(".pattern_driver", __package__)


def _locals(frame: types.FrameType) -> dict[str, Any]:
    return {name: value for name, value in places.locals_of(frame).items() if name != "__df"}
