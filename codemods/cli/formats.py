"""What is printed: findings in the formats that people and programs expect."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from html import escape
from typing import TYPE_CHECKING, Any

from ..analysis.findings import ERROR, NOTE
from ..rules import BY_CODE
from .notebook import cell_texts
from .result_cache import to_dict

if TYPE_CHECKING:
    from ..analysis.findings import Finding


_VERSION = "0.1.0"
_URI = "docs/rules.md#{}"


class PlainLines:
    """The source lines of files, read once; `known` holds texts that are not on disk."""

    def __init__(self, known: dict[str, str]) -> None:
        self._texts = dict(known)

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
            try:
                with open(path, encoding="utf-8", errors="replace") as stream:
                    self._texts[path] = stream.read()
            except OSError:
                self._texts[path] = ""
        return self._texts[path]


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


def record(finding: Finding) -> dict[str, dict[str, int] | str | int | None]:
    """A finding as the JSON formats give it."""
    fix = to_dict(finding)["fix"]
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


def json_(found: list[Finding], lines: PlainLines, paint: Callable[..., Any]) -> str:
    return json.dumps([record(f) for f in found], indent=2) + "\n"


def json_lines(found: Any, lines: Any, paint: Any) -> Any:
    return "".join(json.dumps(record(f)) + "\n" for f in found)


def github(found: list[Finding], lines: PlainLines, paint: Callable[..., Any]) -> str:
    return "".join(_github_one(f) for f in found)


def _github_one(finding: Finding) -> str:
    line, column, end, end_column = _region(finding)
    level = "error" if finding.level == ERROR else "notice"
    where = f"file={finding.path},line={line},col={column},endLine={end},endColumn={end_column}"
    return (
        f"::{level} title=dynfix ({finding.code}),{where}::{finding.place}: {finding.code}"
        f" {finding.message}\n"
    )


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
    results = [_sarif_result(f) for f in found]
    driver = {"name": "dynfix", "version": _VERSION, "rules": rules}
    log = {
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [{"tool": {"driver": driver}, "results": results}],
    }
    return json.dumps(log, indent=2) + "\n"


def _sarif_rule(code: str) -> dict[str, dict[str, str] | str]:
    rule = BY_CODE.get(code)
    text = rule.message if rule else code
    return {"id": code, "name": rule.name if rule else code, "shortDescription": {"text": text}}


def _sarif_result(
    finding: Finding,
) -> dict[str, dict[str, str] | list[dict[str, dict[Any, Any]]] | str]:
    region = dict(
        zip(("startLine", "startColumn", "endLine", "endColumn"), _region(finding), strict=True)
    )
    place = {"artifactLocation": {"uri": finding.path.replace("\\", "/")}, "region": region}
    return {
        "ruleId": finding.code,
        "level": "error" if finding.level == ERROR else "note",
        "message": {"text": "; ".join([_in_cell(finding) + finding.message, *advice(finding)])},
        "locations": [{"physicalLocation": place}],
    }


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
    diagnostics = [_rdjson_one(f) for f in found]
    return (
        json.dumps(
            {"source": {"name": "dynfix"}, "severity": "ERROR", "diagnostics": diagnostics},
            indent=2,
        )
        + "\n"
    )


def _rdjson_one(finding: Any) -> Any:
    line, column, end, end_column = _region(finding)
    span = {"start": {"line": line, "column": column}, "end": {"line": end, "column": end_column}}
    return {
        "message": _in_cell(finding) + finding.message,
        "code": {"value": finding.code},
        "severity": "ERROR" if finding.level == ERROR else "INFO",
        "location": {"path": finding.path, "range": span},
    }


def statistics(found: list[Finding]) -> str:
    """One line a rule, the most frequent first."""
    counts = Counter(
        (f.code, BY_CODE[f.code].name if f.code in BY_CODE else "unused-noqa") for f in found
    )
    fixable = Counter(f.code for f in found if f.fix is not None)
    rows = sorted(counts.items(), key=lambda row: (-row[1], row[0]))
    return "".join(
        f"{n:>6}  {code}  {'[*]' if fixable[code] else '   '}  {name}\n" for (code, name), n in rows
    )


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
FOR_PEOPLE = frozenset(["full", "concise", "grouped"])
