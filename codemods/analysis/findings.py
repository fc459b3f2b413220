"""What a rule found: the place, the message, and the fix or the reason why there is none."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from ...rewriter.source.spans import Fix

ERROR, NOTE = "error", "note"
SYNTAX, FAILURE = "syntax-error", "failure"  # codes of what is no rule's finding


class CommandError(Exception):
    """What ends the command; its text, one line, is what the command says."""


@dataclass(frozen=True)
class Finding:
    """`line`, `column`, `end_line`, `end_column` count from 1, the end is exclusive. `help`: what
    to do by hand. `kept`: why there is no fix. A note tells something and fails nothing. `traced`:
    only the traced run justifies it. `cell`: of a notebook, from 1; lines count within it then.
    `reached`: the calls in other files that lead there."""

    code: str
    message: str
    path: str
    line: int
    column: int
    end_line: int
    end_column: int
    fix: Fix | None = None
    help: str = ""
    kept: str = ""
    level: str = ERROR
    traced: bool = False
    cell: int | None = None
    reached: tuple[str, ...] = ()

    @property
    def way(self) -> str:
        """By which calls compiled code gets to what was found, or ""."""
        return " -> ".join([*self.reached, f"{self.path}:{self.line}"]) if self.reached else ""

    @property
    def place(self) -> str:
        return f"{self.path}:{self.in_file}"

    @property
    def in_file(self) -> str:
        cell = "" if self.cell is None else f"cell {self.cell}:"
        return f"{cell}{self.line}:{self.column}"

    def without_fix(self, why: Any) -> Any:
        return replace(self, fix=None, kept=why)

    def sort_key(self) -> tuple[str, int, int, str]:
        return self.path, self.line, self.column, self.code


def failure(path: str, message: str, line: int = 1, column: int = 1, cell: Any = None) -> Finding:
    """Why a file could not be handled, as the formats print findings."""
    code = SYNTAX if message.startswith("SyntaxError") else FAILURE
    return Finding(code, message, path, line, column, line, column + 1, cell=cell)
