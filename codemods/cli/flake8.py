"""A flake8 plugin: the findings as flake8 reports them. flake8 finds it by the entry point, and is
not imported here."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

from ... import __version__
from ...rewriter.source.source_file import SourceFile
from ..analysis.findings import ERROR, Finding
from . import check, deep_stack
from .settings import load
from .terminal import seen

_FAILED = "DYN999"  # no rule's
_load = lru_cache(maxsize=None)(load)


class Plugin:
    """What flake8 makes for each file: `lines` are its text. The settings are those of `dynfix` for
    that file."""

    name, version = "dynfix", __version__

    def __init__(self, tree: Any, filename: Any, lines: Any) -> None:
        self.path, self.text = filename, "".join(lines)

    def run(self) -> Iterator[Any]:
        """(line from 1, column from 0, text, type) of each finding; notes, which fail nothing, are
        left out. What cannot be looked at is one of its own."""
        try:
            found = deep_stack.called(self._findings)
        except Exception as error:
            why = seen(deep_stack.reason(error))
            yield 1, 0, f"{_FAILED} the file is not checked: {why}", type(self)
            return
        for finding in found:
            if finding.level == ERROR:
                yield (
                    finding.line,
                    finding.column - 1,
                    f"{finding.code} {seen(finding.message)}",
                    type(self),
                )

    def _findings(self) -> list[Finding]:
        folder = Path(os.path.dirname(self.path) or ".").resolve()
        return check.findings(SourceFile(self.text, self.path), _load(folder))
