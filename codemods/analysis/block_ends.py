"""How a block of statements ends, and where control goes on."""

import ast
from typing import Any


def leaves(body: list[ast.stmt]) -> bool:
    """Whether control surely leaves at the end of the block."""
    return bool(body) and isinstance(body[-1], (ast.Return, ast.Raise, ast.Continue, ast.Break))


def always_returns(body: list[ast.stmt]) -> bool:
    last = body[-1] if body else None
    if isinstance(last, (ast.Return, ast.Raise)):
        return True
    if isinstance(last, ast.If):
        return always_returns(last.body) and always_returns(last.orelse)
    return isinstance(last, ast.With) and always_returns(last.body)


class ExitEnvironments:
    """Where control may go on from inside the statement at hand: environments at the breaks and
    continues of the loops around it, and between the statements of the `try`s around it."""

    def __init__(self) -> None:
        self.breaks: list[Any] = []
        self.continues: list[Any] = []
        self.watchers: list[Any] = []
