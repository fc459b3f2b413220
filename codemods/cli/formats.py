"""What is printed: findings in the formats that people read."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ...rewriter.catalogue import REASONS
from ...rewriter.source.regular_files import read
from ...rewriter.source.source_file import SourceError, SourceFile, decode, lines_of
from ..analysis.findings import FAILURE, NOTE, SYNTAX
from .on_demand import OnDemand
from .terminal import seen

if TYPE_CHECKING:
    from ..analysis.findings import Finding
    from . import check, deep_stack, notebook
    from .runner import FileResult
else:
    check, notebook = OnDemand(".check"), OnDemand(".notebook")
    deep_stack = OnDemand(".deep_stack")


_Place = tuple[int, int]
_LONGEST, _AROUND = 1000, 100  # characters of a line that are shown, and before what was found


class PlainLines:
    """The source lines of files, read once; `known` holds texts that are not on disk."""

    def __init__(self, known: dict[str, str]) -> None:
        self._texts, self._sources, self._lines = dict(known), {}, {}

    def splices(self, finding: Finding) -> list[tuple[_Place, _Place, str]]:
        """What the finding's fix does, as ((line, column), (end line, end column), text), from 1;
        [] where there is none, or where it is a notebook's."""
        if finding.fix is None or finding.cell is not None:
            return []
        try:
            return deep_stack.called(self._spliced, finding)
        except (SourceError, LookupError, RecursionError, MemoryError):
            return []  # the file is another by now, or what is kept of it is not its own

    def _spliced(self, finding: Finding) -> list[tuple[_Place, _Place, str]]:
        path = finding.path
        if path not in self._sources:
            self._sources[path] = SourceFile(self._document(path), path)
        source = self._sources[path]
        edits = check.splices(source, [finding.fix])
        return [(source.place(e.start), source.place(e.end), e.text) for e in edits or ()]

    def diff(self, finding: Finding) -> str:
        """What the finding's fix does, as a unified diff; "" where there is none."""
        if not self.splices(finding):
            return ""
        changed = deep_stack.called(check.apply_fixes, self._sources[finding.path], [finding.fix])
        path = finding.path
        return "" if changed is None else unified(self._sources[path].text, changed.text, path)

    def of(self, finding: Finding) -> str:
        """The line that a finding begins on."""
        place, number = (finding.path, finding.cell), finding.line
        if place not in self._lines:
            self._lines[place] = lines_of(self._text(*place))
        known = self._lines[place]
        return known[number - 1] if number <= len(known) else ""

    def text(self, path: str) -> str:
        """The whole text of a file."""
        return self._document(path)

    def _text(self, path: str, cell: int | None) -> str:
        text = self._document(path)
        try:
            return text if cell is None else notebook.cell_texts(text).get(cell, "")
        except SourceError:  # it was changed since
            return ""

    def _document(self, path: str) -> str:
        if path not in self._texts:
            self._texts[path] = _text_of(path)
        return self._texts[path]


def _text_of(path: str) -> str:
    try:
        raw = read(path)
    except OSError:
        return ""
    try:
        return decode(raw)[0]
    except SourceError:
        return raw.decode("utf-8", errors="replace")


def unified(before: str, after: str, path: str) -> str:
    """A unified diff of two texts, to the byte."""
    import difflib  # only where a diff is asked for

    first, second = (re.findall(r"[^\n]*\n|[^\n]+", text) for text in (before, after))
    lines = difflib.unified_diff(first, second, seen(path), seen(path))
    return "".join(
        line if line.endswith("\n") else line + "\n\\ No newline at end of file\n" for line in lines
    )


def show_diff(result: FileResult, stream: Any) -> None:
    """To a terminal with its control characters escaped, to a file or a pipe to the byte, as
    `patch` needs it."""
    text = _diff(result)
    if stream.isatty():
        text = "\n".join(seen(line.removesuffix("\r"), "\t") for line in text.split("\n"))
    stream.write(text)


def _diff(result: FileResult) -> str:
    if result.after is None:
        return ""
    if not result.path.endswith(notebook.SUFFIX):
        return unified(result.before, result.after, result.path)
    before, after = notebook.cell_texts(result.before), notebook.cell_texts(result.after)
    return "".join(unified(before[n], after[n], f"{result.path}:cell {n}") for n in before)


def advice(finding: Finding) -> list[str]:
    """Lines on what can be done: the fix, why it was not made, what to do by hand."""
    lines = []
    if finding.fix is not None:
        lines.append(f"fix ({finding.fix.safety.value}): {finding.fix.title}")
        if finding.fix.why:
            lines.append(f"unsafe: {finding.fix.why}")
        if finding.traced:
            lines.append("justified by what the traced run showed, not by the text alone")
    if finding.kept:
        lines.append(f"no fix: {finding.kept}")
    if finding.way:
        lines.append(f"reached: {finding.way}")
    if finding.fix is None and finding.help:
        lines.append(f"help: {finding.help}")
    return lines


def full(found: list[Finding], lines: PlainLines, paint: Callable[..., Any]) -> str:
    """With the source line and a caret."""
    return "".join(_full_one(f, lines, paint) for f in found)


def _full_one(finding: Finding, lines: PlainLines, paint: Callable[..., Any]) -> str:
    place = seen(finding.place)
    if finding.code in (SYNTAX, FAILURE):
        return f"{place}: {paint(seen(finding.message), 'bold')}\n"
    gutter = " " * len(str(finding.line))
    mark = " (note)" if finding.level == NOTE else ""
    text, carets = _marked(finding, lines.of(finding).replace("\t", " "))
    head = f"{paint(finding.code, 'bold red')}{mark} {paint(seen(finding.message), 'bold')}\n"
    body = (
        f"{gutter}--> {place}\n{gutter} |\n{finding.line} | {text}\n{gutter} |"
        f" {paint(carets, 'red')}\n"
    )
    return head + body + "".join(f"{gutter} = {seen(line)}\n" for line in advice(finding)) + "\n"


def _marked(finding: Finding, text: str) -> tuple[str, str]:
    """A finding's line as a terminal may show it, and carets under what was found; of a very long
    one what is around."""
    end = finding.end_column if finding.end_line == finding.line else len(text) + 1
    start, end = (min(n, len(text) + 1) - 1 for n in (finding.column, end))
    cut = max(0, start - _AROUND) if len(text) > _LONGEST else 0
    last = min(len(text), cut + _LONGEST)
    before, inside = seen(text[cut:start]), seen(text[start : min(end, last)])
    shown = before + inside + seen(text[max(start, min(end, last)) : last])
    carets = " " * len(before) + "^" * max(1, len(inside))
    if cut:
        shown, carets = f"…{shown}", f" {carets}"
    return f"{shown}…" if last < len(text) else shown, carets


def concise(found: Any, lines: Any, paint: Any) -> Any:
    return "".join(
        f"{seen(f.place)}: {paint(f.code, 'bold red')} {_mark(f)}{seen(f.message)}\n" for f in found
    )


def _mark(finding: Any) -> Any:
    if finding.fix is None:
        return ""
    return "[*] " if finding.fix.safety.value == "safe" else "[unsafe fix] "


def grouped(found: Any, lines: Any, paint: Any) -> Any:
    parts, last = [], None
    for finding in found:
        if finding.path != last:
            parts.append(("\n" if last else "") + paint(seen(finding.path), "underline") + ":\n")
            last = finding.path
        parts.append(
            f"  {finding.in_file} {paint(finding.code, 'bold red')}"
            f" {_mark(finding)}{seen(finding.message)}\n"
        )
    return "".join(parts)


def statistics(rows: list[dict[str, Any]]) -> str:
    """One line a rule, the most frequent first. As ruff marks them: `[*]` where a fix would be made
    for all that was found, `[-]` for some of it."""
    return "".join(
        f"{row['count']:>6}  {row['code']}  {_share(row)}  {row['name']}\n" for row in rows
    )


def _share(row: dict[str, Any]) -> str:
    if not row["fixable"]:
        return "[ ]"
    return "[*]" if row["fixable"] == row["count"] else "[-]"


def counts(found: list[Finding], wanted: Callable[[Finding], bool]) -> list[dict[str, Any]]:
    """How often each code was found, the most frequent first; `wanted`: whether a finding's fix
    would be made."""
    numbers = Counter(f.code for f in found)
    fixable = Counter(f.code for f in found if wanted(f))
    return [
        {
            "code": code,
            "name": REASONS[code].name if code in REASONS else code,
            "count": number,
            "fixable": fixable[code],
        }
        for code, number in sorted(numbers.items(), key=lambda row: (-row[1], row[0]))
    ]


FORMATTERS = {"full": full, "concise": concise, "grouped": grouped}
