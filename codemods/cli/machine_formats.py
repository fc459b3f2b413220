"""The formats that programs read: JSON, GitHub's and GitLab's annotations, SARIF, JUnit, rdjson."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from html import escape
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from ... import __version__
from ...rewriter.catalogue import REASONS
from ..analysis.findings import ERROR
from ..rules import BY_CODE
from ..rules.measured import measured
from .formats import advice
from .result_cache import to_dict
from .terminal import seen, unicode

if TYPE_CHECKING:
    from ..analysis.findings import Finding
    from .formats import PlainLines


def _region(finding: Finding) -> tuple[int, int, int, int]:
    """(line, column, end line, end column) in the file; of a notebook, whose lines are others', its
    beginning."""
    if finding.cell is not None:
        return 1, 1, 1, 1
    return finding.line, finding.column, finding.end_line, finding.end_column


def record(finding: Finding, lines: PlainLines) -> dict[str, Any]:
    """A finding as the JSON formats give it. The edits of its fix are what comes in the place of
    what stands from `location` to `end_location`. `chain`: the calls that lead to it, itself last;
    `reason`: why the graph breaks there; `proof`: what the fix rests on, and the graph breaks that
    the rule's example was measured to have."""
    fix = to_dict(finding)["fix"]
    if fix is not None:
        fix["edits"] = [_edit(*e) for e in lines.splices(finding)]
        fix["diff"] = lines.diff(finding) or None
    return {
        "code": finding.code,
        "message": finding.message,
        "filename": unicode(finding.path),
        "cell": finding.cell,
        "location": {"row": finding.line, "column": finding.column},
        "end_location": {"row": finding.end_line, "column": finding.end_column},
        "level": finding.level,
        "fix": fix,
        "traced": finding.traced,
        "not_fixed_because": finding.kept or None,
        "help": finding.help or None,
        "reached": finding.way or None,
        "chain": [*finding.reached, f"{unicode(finding.path)}:{finding.line}"],
        "reason": _reason(finding.code),
        "proof": _proof(finding),
    }


def _reason(code: str) -> dict[str, Any] | None:
    reason = REASONS.get(code)
    if reason is None:
        return None
    return {"name": reason.name, "message": reason.message, "dynamo": list(reason.dynamo)}


def _proof(finding: Finding) -> dict[str, Any] | None:
    if finding.fix is None:
        return None
    basis = "a traced run" if finding.traced else "the text alone"
    return {"basis": basis, "graph_breaks": measured(finding.code)}


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
    path = _escaped(unicode(finding.path), ":,")
    where = f"file={path},line={line},col={column},endLine={end},endColumn={end_column}"
    text = _escaped(f"{finding.place}: {finding.code} {finding.message}")
    return f"::{level} title=dynfix ({finding.code}),{where}::{text}\n"


def _escaped(text: str, more: str = "") -> str:
    """As GitHub's workflow commands want it: percent signs first."""
    for char in f"%\r\n{more}":
        text = text.replace(char, f"%{ord(char):02X}")
    return seen(text)  # the log is shown as it is


def gitlab(found: Any, lines: Any, paint: Any) -> Any:
    issues = [
        {
            "description": f"{f.code} {f.message}",
            "check_name": f.code,
            "severity": "major" if f.level == ERROR else "info",
            "fingerprint": fingerprint(f),
            "location": {
                "path": unicode(f.path),
                "lines": {"begin": _region(f)[0], "end": _region(f)[2]},
            },
        }
        for f in found
    ]
    return json.dumps(issues, indent=2) + "\n"


def fingerprint(finding: Any) -> Any:
    """The same for the same finding at the same place of the same file."""
    return _digest(f"{finding.path}:{finding.code}:{finding.in_file}")


def _digest(text: str) -> str:
    value = 0xCBF29CE484222325
    for byte in text.encode(errors="surrogateescape"):
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
    uri = quote(os.fsencode(finding.path.replace(os.sep, "/")))
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
    properties = {"reason": _reason(finding.code), "proof": _proof(finding)}
    result["properties"] = {name: value for name, value in properties.items() if value is not None}
    if finding.reached:
        steps = [{"location": _sarif_step(step)} for step in finding.reached]
        steps.append({"location": {"physicalLocation": place}})
        result["codeFlows"] = [{"threadFlows": [{"locations": steps}]}]
    if made:
        change = {"artifactLocation": {"uri": uri}, "replacements": made}
        title = f"{finding.fix.title} ({finding.fix.safety.value})"
        result["fixes"] = [{"description": {"text": title}, "artifactChanges": [change]}]
    return result


def _sarif_step(step: str) -> dict[str, Any]:
    """A call on the way, of which the text is `path:line`."""
    path, _, line = step.rpartition(":")
    place: dict[str, Any] = {"artifactLocation": {"uri": quote(os.fsencode(path))}}
    if line.isdecimal():
        place["region"] = {"startLine": int(line)}
    return {"physicalLocation": place, "message": {"text": step}}


def _sarif_region(line: int, column: int, end_line: int, end_column: int) -> dict[str, int]:
    first = {"startLine": line, "startColumn": column}
    return {**first, "endLine": end_line, "endColumn": end_column}


def _in_cell(finding: Finding) -> str:
    return "" if finding.cell is None else f"{finding.in_file}: "


def _quoted(text: str) -> str:
    return f'"{escape(seen(text))}"'


def junit(found: list[Finding], lines: PlainLines, paint: Callable[..., Any]) -> str:
    cases = "".join(
        f"    <testcase name={_quoted(f.code)} classname={_quoted(f.path)}"
        f" line={_quoted(str(f.line))}>\n      <failure"
        f" message={_quoted(f.message)}>"
        f"{escape(seen(f'{f.place}: {f.code} {f.message}'))}</failure>\n    </testcase>\n"
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
        "location": {"path": unicode(finding.path), "range": _rdjson_span(*_region(finding))},
        **({"suggestions": made} if made else {}),
    }


FORMATTERS = {
    "json": json_,
    "json-lines": json_lines,
    "github": github,
    "gitlab": gitlab,
    "sarif": sarif,
    "junit": junit,
    "rdjson": rdjson,
}
STATISTICS = {
    "json": lambda rows: json.dumps(rows, indent=2) + "\n",
    "json-lines": lambda rows: "".join(json.dumps(row) + "\n" for row in rows),
}
