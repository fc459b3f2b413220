"""What patterns make of the places where a recording is cut: judged there and then, while the real
values stand in the user's frame.

The recording goes on as it would; at its end the functions with what was found are recorded again
(`rewriter.rerecord`).
"""

import importlib
import os
import types
from collections.abc import Callable, Mapping
from typing import Any

from ....runtime.background_budget import imports
from ...source import live_source
from ...source.source_file import SourceError, SourceFile
from ...source.spans import Edit
from .. import places
from .choices import Choices
from .fake_values import FakeValues
from .function_edits import FunctionEdits
from .user_frames import function_frame

MAX_TRIES_AT_SITE = 64  # looks at one place: a loop of more turns stays a loop
IN_PLACE = frozenset({"DYN504"})  # these write into the tensor that there is


class Rewritings:
    """What patterns found in one recording. `is_rewritten` knows code that the rewriter made;
    `earlier`: functions that run as patterns changed them before."""

    def __init__(
        self,
        is_rewritten: Callable[[types.CodeType], bool],
        earlier: Mapping[types.CodeType, live_source.Source] = types.MappingProxyType({}),
    ) -> None:
        self._is_rewritten, self._earlier = is_rewritten, earlier
        self._found: dict[types.CodeType, FunctionEdits | str] = {}
        self.complete = True
        self.choices = Choices()

    def try_patterns(self, frame: types.FrameType | None, static: bool = True) -> str:
        """A value decides in the code that runs: "" where a pattern makes it a choice in the graph,
        else why none does. `static`: later calls have the same sizes."""
        kept = self._try_patterns(frame, static)
        self.complete = self.complete and not kept
        return kept

    def found(self) -> list[FunctionEdits]:
        """The functions that change."""
        every = [found for found in self._found.values() if isinstance(found, FunctionEdits)]
        return [found for found in every if any(found.edits.values())]

    def _try_patterns(self, frame: types.FrameType | None, static: bool) -> str:
        if f"{os.sep}torch{os.sep}" in places.place_of(frame)[0]:
            return "torch's own code decides"
        frame = function_frame(frame, self._is_rewritten)
        if frame is None or f"{os.sep}torch{os.sep}" in frame.f_code.co_filename:
            return "the branch is not in the user's code"
        found = self._file_of(places.locals_of(frame)["__df"].fn)
        if isinstance(found, str):
            return found
        line = frame.f_lineno
        found.looks[line] = found.looks.get(line, 0) + 1
        if found.looks[line] > MAX_TRIES_AT_SITE:
            found.edits[line] = None
            return "the loop has too many iterations"
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

    def _keep(self, found: FunctionEdits, line: int, edit: tuple[Edit, str]) -> str:
        if found.edits.setdefault(line, edit) != edit:
            found.edits[line] = None
            return "the rewrite would be another one for another call"
        others = [e[0] for at, e in found.edits.items() if e and at != line]
        if any(edit[0].start < other.end and other.start < edit[0].end for other in others):
            found.edits[line] = None
            return "it overlaps another rewrite"
        return ""

    def _file_of(self, function: types.FunctionType) -> "FunctionEdits | str":
        code = function.__code__
        if code not in self._found:
            self._found[code] = _found(function, self._earlier.get(code))
        return self._found[code]


def _found(
    function: types.FunctionType, earlier: live_source.Source | None
) -> "FunctionEdits | str":
    try:
        source = earlier or live_source.find(function)
        file = SourceFile(live_source.padded(source, source.text), source.file)
    except (live_source.NotRewritable, SourceError, RecursionError, MemoryError) as error:
        return str(error)
    return "it stands in a lambda" if source.is_lambda else FunctionEdits(function, source, file)


def _judging() -> types.ModuleType:
    """With the patterns, which most recordings meet no place for."""
    with imports():
        return importlib.import_module(".pattern_driver", __package__)


def _locals(frame: types.FrameType) -> dict[str, Any]:
    return {name: value for name, value in places.locals_of(frame).items() if name != "__df"}
