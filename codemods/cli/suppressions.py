"""Suppression in the source: `# noqa`, `# noqa: DYN101, DYN2`, `# dynfix: off` … `# dynfix: on`, `#
dynfix: skip-file`."""

from __future__ import annotations

import bisect
import re
from typing import TYPE_CHECKING, Any

from ..analysis.findings import Finding

if TYPE_CHECKING:
    from ...rewriter.edits.source_file import SourceFile
    from .settings import Settings


_NOQA = re.compile(
    r"#\s*noqa(?P<codes>\s*:\s*(?P<list>[A-Za-z]+[0-9]*(?:[,\s]+[A-Za-z]+[0-9]+)*))?", re.IGNORECASE
)
_SWITCH = re.compile(r"#\s*dynfix:\s*(off|on|skip-file)\b", re.IGNORECASE)
UNUSED = "DYN900"


class Suppressions:
    """The suppressions of one file, and which of them were used."""

    def __init__(self, source: SourceFile) -> None:
        self.source = source
        self.lines, self.ranges, self.whole = {}, [], False
        if "noqa" in source.text.lower() or "dynfix:" in source.text:
            self._read()
        self.used = set()

    def _read(self) -> None:
        off = None
        for offset, text in self.source.comments():
            line = self._line_of(offset)
            switch = _SWITCH.search(text)
            if switch:
                off = self._switch(switch.group(1).lower(), line, off)
            match = _NOQA.search(text)
            if match:
                codes = match.group("list")
                self.lines[line] = (
                    None if codes is None else frozenset(re.split(r"[,\s]+", codes.strip().upper()))
                )
        if off is not None:
            self.ranges.append((off, len(self.source.starts)))

    def _switch(self, word: str, line: int, off: int | None) -> int | None:
        if word == "skip-file":
            self.whole = True
        if word == "off":
            return line if off is None else off
        if word == "on" and off is not None:
            self.ranges.append((off, line))
            return None
        return off

    def _line_of(self, offset: int) -> int:
        return bisect.bisect_right(self.source.starts, offset)

    def covers(self, code: str, first: int, last: Any) -> bool:
        """Whether a finding of `code` on the lines first..last is suppressed."""
        if self.whole or any(a <= first <= b for a, b in self.ranges):
            return True
        for line in range(first, last + 1):
            codes = self.lines.get(line, ())
            if codes is None or any(code.startswith(c) for c in codes if c.startswith("DYN")):
                self.used.add(line)
                return True
        return False

    def unused(self, found: list[Finding], settings: Settings) -> list[Finding]:
        """A finding for each `# noqa: DYN…` that suppresses nothing."""
        if not settings.selects(UNUSED, self.source.path):
            return []
        named = [
            (n, c)
            for n, c in self.lines.items()
            if c and any(x.startswith("DYN") for x in c) and n not in self.used
        ]
        return [self._finding(line, codes) for line, codes in named]

    def _finding(self, line: int, codes: frozenset[str]) -> Finding:
        text = self.source.line(line)
        column = text.lower().rindex("noqa") + 1
        listed = ", ".join(sorted(c for c in codes if c.startswith("DYN")))
        message = f"unused suppression: nothing here is {listed}"
        return Finding(
            UNUSED,
            message,
            self.source.path,
            line,
            column,
            line,
            len(text) + 1,
            help="remove the comment",
        )
