"""`dynrun --fix`: what the compiler rewrote to make its graphs, written into the files that ran."""

from __future__ import annotations

import ast
import io
import os
import shlex
import sys
import sysconfig
import tokenize
from collections import Counter
from pathlib import Path
from typing import Any

from . import file_writes, trace_verify
from .formats import show_diff
from .runner import FileResult
from .settings import Settings
from .terminal import say


def fix_after_run(script: list[str], changes: list[Any]) -> None:
    """Show `changes` (each with `file`, `line`, `before`, `after`) as a diff on stderr, run the
    script with them, and write the files in which it does what it did."""
    results = [_result(path, own) for path, own in sorted(_by_file(changes).items())]
    results = [result for result in results if result.after is not None]
    if not results:
        say("--fix: nothing was rewritten", "dynrun")
        return
    for result in results:
        show_diff(result, sys.stderr)
    sys.stderr.flush()
    kept, _ = trace_verify.verified([shlex.join(script)], results, Settings())
    for result in kept:
        if result.raw is not None:
            _write(result)


def _write(result: FileResult) -> None:
    try:
        file_writes.write(result.path, result.raw, result.read)
        say(f"--fix: {result.path} was written", "dynrun")
    except OSError as error:
        say(f"--fix: {result.path} is not written: {error.strerror}", "dynrun")


def _by_file(changes: list[Any]) -> dict[str, list[Any]]:
    """The changes of the user's own files. A place that two recordings changed differently stays
    as it is."""
    found: dict[str, list[Any]] = {}
    for change in dict.fromkeys(changes):
        if not is_library(change.file):
            found.setdefault(os.path.relpath(change.file), []).append(change)
    places = Counter((c.file, c.line) for own in found.values() for c in own)
    return {
        path: once
        for path, own in found.items()
        if (once := [c for c in own if places[c.file, c.line] == 1])
    }


def is_library(path: str) -> bool:
    """Whether a file is none, or installed with Python or in an environment."""
    libraries = {sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")}
    real = os.path.realpath(path)
    installed = not {"site-packages", "dist-packages"}.isdisjoint(real.split(os.sep))
    return (
        not os.path.isfile(real)
        or installed
        or any(real.startswith(os.path.realpath(folder) + os.sep) for folder in libraries if folder)
    )


def _result(path: str, changes: list[Any]) -> FileResult:
    """The file with the changes made, those furthest down first; without `after` where none can
    be."""
    try:
        read = Path(path).read_bytes()
        encoding, _ = tokenize.detect_encoding(io.BytesIO(read).readline)
        text = read.decode(encoding)
    except (OSError, SyntaxError, UnicodeDecodeError):
        return FileResult(path)
    after = text
    for change in sorted(changes, key=lambda c: -c.line):
        made = changed(after, change.line, change.before, change.after)
        if made is None:
            where = f"{path}:{change.line}"
            say(f"--fix: {where} is not what ran: left as it is", "dynrun")
        else:
            after = made
    if after == text:
        return FileResult(path)
    return FileResult(path, before=text, after=after, read=read, raw=after.encode(encoding))


def changed(text: str, line: int, before: str, after: str) -> str | None:
    """`text` with `after` in the place of `before`, which begins at `line` (1-based); the function
    that they stand in may have been moved to the margin. None where it is not there."""
    lines = text.splitlines(keepends=True)
    if not 0 < line <= len(lines):
        return None
    start = sum(map(len, lines[: line - 1]))
    indent = lines[line - 1][: len(lines[line - 1]) - len(lines[line - 1].lstrip())]
    newline = "\r\n" if lines[line - 1].endswith("\r\n") else "\n"
    for more in [indent[:n] for n in range(len(indent) + 1)]:
        old, new = (part.replace("\n", newline + more) for part in (before, after))
        at = text.find(old, start, start + len(lines[line - 1]) + len(old))
        if at >= 0:
            made = text[:at] + new + text[at + len(old) :]
            return made if _parses(made) else None
    return None


def _parses(text: str) -> bool:
    try:
        ast.parse(text)
    except SyntaxError:
        return False
    return True
