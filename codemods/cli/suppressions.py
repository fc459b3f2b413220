"""Suppression in the source: `# noqa`, `# noqa: DYN101, DYN2`, `# dynfix: off` … `# dynfix: on`, `#
dynfix: skip-file`."""

from __future__ import annotations

import bisect
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ...rewriter.catalogue import REASONS
from ...rewriter.source.spans import Edit, Fix
from ..analysis.findings import Finding

if TYPE_CHECKING:
    from ...rewriter.source.source_file import SourceFile


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
                self.lines[line] = frozenset(_listed(match)) if match.group("list") else None
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
            named = () if codes is None else [c for c in codes if _ours(c) and code.startswith(c)]
            self.used.update((line, c) for c in named)
            if codes is None or named:
                return True
        return False

    def unused(self, off: list[str]) -> Iterator[Finding]:
        """A finding for each `# noqa: DYN…` of which something suppresses nothing; `off`: codes of
        which nothing could be found."""
        if UNUSED in off:
            return
        for offset, text in self.source.comments() if self.lines else ():
            line, match = self._line_of(offset), _NOQA.search(text)
            codes = _listed(match) if match else []
            ours = [c for c in codes if _ours(c)]
            idle = [c for c in ours if not any(code.startswith(c) for code in off)]
            if any((line, c) in self.used for c in ours):
                continue  # one rule may speak for another
            if idle and UNUSED not in codes:
                rest = [c for c in codes if c not in idle]
                yield self._finding(
                    line, offset + match.start(), idle, self._fix(offset, match, rest)
                )

    def _finding(self, line: int, offset: int, idle: list[str], fix: Fix) -> Finding:
        reason, width = REASONS[UNUSED], len(self.source.line(line)) + 1
        message = f"unused suppression: nothing here is {', '.join(idle)}"
        column = offset - self.source.starts[line - 1] + 1
        path = self.source.path
        return Finding(UNUSED, message, path, line, column, line, width, fix, reason.help)

    def _fix(self, offset: int, match: re.Match[str], rest: list[str]) -> Fix:
        """Removes what is unused: codes, the directive, or the whole comment and what is before
        it."""
        start, end = offset + match.start(), offset + match.end()
        title = "remove the unused suppression"
        if rest:
            start = offset + match.start("list")
            return Fix((Edit(start, end, ", ".join(rest)),), title)
        line = self._line_of(offset)
        text, first = self.source.line(line), self.source.starts[line - 1]
        after = text[end - first :].lstrip()
        if after and not after.startswith("#"):
            return Fix((Edit(start, end, "#" if text[end - first].isspace() else "# "),), title)
        before = text[: start - first]
        if after:
            return Fix((Edit(start, first + len(text) - len(after), ""),), title)
        if before.strip():
            return Fix((Edit(first + len(before.rstrip()), first + len(text), ""),), title)
        following = self.source.starts[line : line + 1] or [first + len(text)]
        return Fix((Edit(first, following[0], ""),), title)


def _ours(code: str) -> bool:
    return code.startswith("DYN")


def _listed(match: re.Match[str]) -> list[str]:
    codes = match.group("list")
    return [] if codes is None else re.split(r"[,\s]+", codes.strip().upper())
