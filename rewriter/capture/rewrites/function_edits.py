"""What the patterns change in one function while its call is recorded."""

import types
from dataclasses import dataclass, field

from ...source import live_source
from ...source.source_file import SourceFile
from ...source.spans import Edit, apply


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


@dataclass
class FunctionEdits:
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
