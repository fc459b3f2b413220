"""What is printed: findings in the formats that people and programs expect."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from ... import __version__
from ...rewriter.edits.source_file import SourceError, SourceFile, decode
from ..analysis.findings import ERROR, FAILURE, NOTE, SYNTAX
from ..rules import BY_CODE
from .check import splices
from .notebook import cell_texts
from .result_cache import to_dict

if TYPE_CHECKING:
    from ..analysis.findings import Finding


_Place = tuple[int, int]


class PlainLines:
    """The source lines of files, read once; `known` holds texts that are not on disk."""

    def __init__(self, known: dict[str, str]) -> None:
        self._texts, self._sources = dict(known), {}

    def splices(self, finding: Finding) -> list[tuple[_Place, _Place, str]]:
        """What the finding's fix does, as ((line, column), (end line, end column), text), from 1;
        [] where there is none, or where it is a notebook's."""
        if finding.fix is None or finding.cell is not None:
            return []
        path = finding.path
        if path not in self._sources:
            try:
                self._sources[path] = SourceFile(self._document(path), path)
            except SourceError:
                self._sources[path] = None
        source = self._sources[path]
        edits = splices(source, [finding.fix]) if source is not None else None
        return [(source.place(e.start), source.place(e.end), e.text) for e in edits or ()]

    def of(self, finding: Finding) -> str:
        """The line that a finding begins on."""
        number = finding.line
        lines = self._text(finding.path, finding.cell).splitlines()
        return lines[number - 1] if number <= len(lines) else ""

    def _text(self, path: str, cell: int | None) -> str:
        text = self._document(path)
        return text if cell is None else cell_texts(text)[cell]

    def _document(self, path: str) -> str:
        if path not in self._texts:
            self._texts[path] = _text_of(path)
        return self._texts[path]


def _text_of(path: str) -> str:
    try:
        raw = Path(path).read_bytes()
    except OSError:
        return ""
    try:
        return decode(raw)[0]
    except SourceError:
        return raw.decode("utf-8", errors="replace")


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
    if finding.fix is None and finding.help:
        lines.append(f"help: {finding.help}")
    return lines


def full(found: list[Finding], lines: PlainLines, paint: Callable[..., Any]) -> str:
    """With the source line and a caret."""
    return "".join(_full_one(f, lines, paint) for f in found)


def _full_one(finding: Finding, lines: PlainLines, paint: Callable[..., Any]) -> str:
    if finding.code in (SYNTAX, FAILURE):
        return f"{finding.place}: {paint(finding.message, 'bold')}\n"
    text = lines.of(finding).replace("\t", " ")
    end = finding.end_column if finding.end_line == finding.line else len(text) + 1
    gutter = " " * len(str(finding.line))
    carets = " " * (finding.column - 1) + "^" * max(1, end - finding.column)
    mark = " (note)" if finding.level == NOTE else ""
    head = f"{paint(finding.code, 'bold red')}{mark} {paint(finding.message, 'bold')}\n"
    body = (
        f"{gutter}--> {finding.place}\n{gutter} |\n{finding.line} | {text}\n{gutter} |"
        f" {paint(carets, 'red')}\n"
    )
    return head + body + "".join(f"{gutter} = {line}\n" for line in advice(finding)) + "\n"


def concise(found: Any, lines: Any, paint: Any) -> Any:
    return "".join(f"{f.place}: {paint(f.code, 'bold red')} {_mark(f)}{f.message}\n" for f in found)


def _mark(finding: Any) -> Any:
    if finding.fix is None:
        return ""
    return "[*] " if finding.fix.safety.value == "safe" else "[unsafe fix] "


def grouped(found: Any, lines: Any, paint: Any) -> Any:
    parts, last = [], None
    for finding in found:
        if finding.path != last:
            parts.append(("\n" if last else "") + paint(finding.path, "underline") + ":\n")
            last = finding.path
        parts.append(
            f"  {_in_file(finding)} {paint(finding.code, 'bold red')}"
            f" {_mark(finding)}{finding.message}\n"
        )
    return "".join(parts)


def _in_file(finding: Finding) -> str:
    return finding.place.removeprefix(f"{finding.path}:")


def _region(finding: Finding) -> tuple[int, int, int, int]:
    """(line, column, end line, end column) in the file; of a notebook, whose lines are others', its
    beginning."""
    if finding.cell is not None:
        return 1, 1, 1, 1
    return finding.line, finding.column, finding.end_line, finding.end_column


def record(finding: Finding, lines: PlainLines) -> dict[str, dict[str, int] | str | int | None]:
    """A finding as the JSON formats give it. The edits of its fix are what comes in the place of
    what stands from `location` to `end_location`."""
    fix = to_dict(finding)["fix"]
    if fix is not None:
        fix["edits"] = [_edit(*e) for e in lines.splices(finding)]
    return {
        "code": finding.code,
        "message": finding.message,
        "filename": finding.path,
        "cell": finding.cell,
        "location": {"row": finding.line, "column": finding.column},
        "end_location": {"row": finding.end_line, "column": finding.end_column},
        "level": finding.level,
        "fix": fix,
        "traced": finding.traced,
        "not_fixed_because": finding.kept or None,
        "help": finding.help or None,
    }


def _edit(start: tuple[int, int], end: tuple[int, int], text: str) -> dict[str, Any]:
    first, last = ({"row": row, "column": column} for row, column in (start, end))
    return {"content": text, "location": first, "end_location": last}


def json_(found: list[Finding], lines: PlainLines, paint: Callable[..., Any]) -> str:
    return json.dumps([record(f, lines) for f in found], indent=2) + "\n"


def json_lines(found: Any, lines: Any, paint: Any) -> Any:
    return "".join(json.dumps(record(f, lines)) + "\n" for f in found)


def github(found: list[Finding], lines: PlainLines, paint: Callable[..., Any]) -> str:
    return "".join(_github_one(f) for f in found)


def _github_one(finding: Finding) -> str:
    line, column, end, end_column = _region(finding)
    level = "error" if finding.level == ERROR else "notice"
    path = _escaped(finding.path, ":,")
    where = f"file={path},line={line},col={column},endLine={end},endColumn={end_column}"
    text = _escaped(f"{finding.place}: {finding.code} {finding.message}")
    return f"::{level} title=dynfix ({finding.code}),{where}::{text}\n"


def _escaped(text: str, more: str = "") -> str:
    """As GitHub's workflow commands want it: percent signs first."""
    for char in f"%\r\n{more}":
        text = text.replace(char, f"%{ord(char):02X}")
    return text


def gitlab(found: Any, lines: Any, paint: Any) -> Any:
    issues = [
        {
            "description": f"{f.code} {f.message}",
            "check_name": f.code,
            "severity": "major" if f.level == ERROR else "info",
            "fingerprint": fingerprint(f),
            "location": {"path": f.path, "lines": {"begin": _region(f)[0], "end": _region(f)[2]}},
        }
        for f in found
    ]
    return json.dumps(issues, indent=2) + "\n"


def fingerprint(finding: Any) -> Any:
    """The same for the same finding at the same place of the same file."""
    return _digest(f"{finding.path}:{finding.code}:{_in_file(finding)}")


def _digest(text: str) -> str:
    value = 0xCBF29CE484222325
    for byte in text.encode():
        value = (value ^ byte) * 0x100000001B3 % 2**64
    return f"{value:016x}"


def sarif(found: list[Finding], lines: PlainLines, paint: Callable[..., Any]) -> str:
    codes = sorted({f.code for f in found})
    rules = [_sarif_rule(code) for code in codes]
    results = [_sarif_result(f, lines) for f in found]
    driver = {"name": "dynfix", "version": __version__, "rules": rules}
    log = {
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [{"tool": {"driver": driver}, "results": results}],
    }
    return json.dumps(log, indent=2) + "\n"


def _sarif_rule(code: str) -> dict[str, dict[str, str] | str]:
    rule = BY_CODE.get(code)
    if rule is None:
        return {"id": code, "name": code, "shortDescription": {"text": code}}
    page = rule.document()
    return {
        "id": code,
        "name": rule.name,
        "shortDescription": {"text": rule.message},
        "fullDescription": {"text": " ".join((rule.__doc__ or rule.message).split())},
        "help": {"text": page, "markdown": page},
        "properties": {"tags": ["torch.compile", rule.name]},
    }


def _sarif_result(finding: Finding, lines: PlainLines) -> dict[str, Any]:
    uri = quote(finding.path.replace("\\", "/"))
    place = {"artifactLocation": {"uri": uri}, "region": _sarif_region(*_region(finding))}
    result = {
        "ruleId": finding.code,
        "level": "error" if finding.level == ERROR else "note",
        "message": {"text": "; ".join([_in_cell(finding) + finding.message, *advice(finding)])},
        "locations": [{"physicalLocation": place}],
    }
    made = [
        {"deletedRegion": _sarif_region(*start, *end), "insertedContent": {"text": text}}
        for start, end, text in lines.splices(finding)
    ]
    if made:
        change = {"artifactLocation": {"uri": uri}, "replacements": made}
        title = f"{finding.fix.title} ({finding.fix.safety.value})"
        result["fixes"] = [{"description": {"text": title}, "artifactChanges": [change]}]
    return result


def _sarif_region(line: int, column: int, end_line: int, end_column: int) -> dict[str, int]:
    first = {"startLine": line, "startColumn": column}
    return {**first, "endLine": end_line, "endColumn": end_column}


def _in_cell(finding: Finding) -> str:
    return "" if finding.cell is None else f"{_in_file(finding)}: "


def _quoted(text: str) -> str:
    return f'"{escape(text)}"'


def junit(found: list[Finding], lines: PlainLines, paint: Callable[..., Any]) -> str:
    cases = "".join(
        f"    <testcase name={_quoted(f.code)} classname={_quoted(f.path)}"
        f" line={_quoted(str(f.line))}>\n      <failure"
        f" message={_quoted(f.message)}>{escape(f'{f.place}: {f.code} {f.message}')}</failure>\n   "
        " </testcase>\n"
        for f in found
    )
    head = f'<testsuites name="dynfix" tests="{len(found)}" failures="{len(found)}">\n'
    suite = f'  <testsuite name="dynfix" tests="{len(found)}" failures="{len(found)}">\n'
    return (
        f'<?xml version="1.0" encoding="UTF-8"?>\n{head}{suite}{cases} '
        " </testsuite>\n</testsuites>\n"
    )


def rdjson(found: Any, lines: Any, paint: Any) -> Any:
    diagnostics = [_rdjson_one(f, lines) for f in found]
    return (
        json.dumps(
            {"source": {"name": "dynfix"}, "severity": "ERROR", "diagnostics": diagnostics},
            indent=2,
        )
        + "\n"
    )


def _rdjson_span(line: int, column: int, end: int, end_column: int) -> dict[str, dict[str, int]]:
    first = {"line": line, "column": column}
    return {"start": first, "end": {"line": end, "column": end_column}}


def _rdjson_one(finding: Finding, lines: PlainLines) -> dict[str, Any]:
    made = [
        {"range": _rdjson_span(*start, *end), "text": text}
        for start, end, text in lines.splices(finding)
    ]
    return {
        "message": _in_cell(finding) + finding.message,
        "code": {"value": finding.code},
        "severity": "ERROR" if finding.level == ERROR else "INFO",
        "location": {"path": finding.path, "range": _rdjson_span(*_region(finding))},
        **({"suggestions": made} if made else {}),
    }


def statistics(found: list[Finding]) -> str:
    """One line a rule, the most frequent first."""
    return "".join(
        f"{row['count']:>6}  {row['code']}  {'[*]' if row['fixable'] else '   '}  {row['name']}\n"
        for row in _counts(found)
    )


def _counts(found: list[Finding]) -> list[dict[str, Any]]:
    counts = Counter(f.code for f in found)
    fixable = Counter(f.code for f in found if f.fix is not None)
    return [
        {
            "code": code,
            "name": BY_CODE[code].name if code in BY_CODE else code,
            "count": number,
            "fixable": fixable[code],
        }
        for code, number in sorted(counts.items(), key=lambda row: (-row[1], row[0]))
    ]


FORMATTERS = {
    "full": full,
    "concise": concise,
    "grouped": grouped,
    "json": json_,
    "json-lines": json_lines,
    "github": github,
    "gitlab": gitlab,
    "sarif": sarif,
    "junit": junit,
    "rdjson": rdjson,
}
STATISTICS = {
    **dict.fromkeys(("full", "concise", "grouped"), statistics),
    "json": lambda found: json.dumps(_counts(found), indent=2) + "\n",
    "json-lines": lambda found: "".join(json.dumps(row) + "\n" for row in _counts(found)),
}
FOR_PEOPLE = frozenset(["full", "concise", "grouped"])
