"""Adds `# noqa: CODE` comments to lines with findings."""

from __future__ import annotations

import io
import re
import tokenize
from typing import TYPE_CHECKING

from ...rewriter.source.spans import Edit, apply
from .notebook import load

if TYPE_CHECKING:
    from ...rewriter.source.source_file import SourceFile
    from ..analysis.findings import Finding


_NOQA = re.compile(r"#\s*noqa\s*:\s*", re.IGNORECASE)


def annotate(raw: bytes, path: str, found: list[Finding]) -> tuple[bytes, int]:
    """(the file's bytes with a noqa comment at every finding that can have one, how many were
    added)."""
    source = load(raw, path)
    ends = _logical_ends(source)
    wanted = {}
    for finding in found:
        first = source.line_of(finding)
        last = first + finding.end_line - finding.line
        line = next((n for n in range(first, last + 1) if n in ends), None)
        if line is not None:
            wanted.setdefault(line, set()).add(finding.code)
    edits = [_edit(source, line, sorted(codes)) for line, codes in wanted.items()]
    return source.with_text(apply(source.text, edits)).to_bytes(), len(edits)


def _logical_ends(source: SourceFile) -> set[int]:
    """Lines at whose end a comment may stand: not inside a string, not continued by a backslash."""
    inside = set()
    for token in tokenize.generate_tokens(io.StringIO(source.text, newline="").readline):
        if token.start[0] != token.end[0] and token.type not in (tokenize.NEWLINE, tokenize.NL):
            inside.update(range(token.start[0], token.end[0]))
    lines = range(1, len(source.starts) + 1)
    return {n for n in lines if n not in inside and not source.line(n).endswith("\\")}


def _edit(source: SourceFile, line: int, codes: list[str]) -> Edit:
    text = source.line(line)
    at = source.starts[line - 1] + len(text)
    match = _NOQA.search(text)
    if match:
        start = source.starts[line - 1] + match.end()
        return Edit(start, start, ", ".join(codes) + ", ")
    return Edit(at, at, f"  # noqa: {', '.join(codes)}")
