"""Small questions about functions and statements, and about the lines that they stand on."""

import ast

from .bound_names import Names

LOOKS_AROUND = frozenset("locals vars dir eval exec globals _getframe currentframe stack".split())


def parameters_of(node: ast.FunctionDef | ast.AsyncFunctionDef) -> Names:
    """Names of all parameters of a function."""
    args = node.args
    several = (args.vararg, args.kwarg)
    every = [*args.posonlyargs, *args.args, *args.kwonlyargs, *(arg for arg in several if arg)]
    return frozenset(arg.arg for arg in every)


def insert(lines: list[str], line: int | None, column: int | None, first: int, text: str) -> None:
    """Put text into one of `lines`, of which the first has the number `first`."""
    at = (line or first) - first
    raw = lines[at].encode()
    lines[at] = (raw[:column] + text.encode() + raw[column:]).decode()


def first_line(stmt: ast.stmt) -> int:
    """The line where a statement begins, its decorators included."""
    decorators = getattr(stmt, "decorator_list", ())
    return min([stmt.lineno, *(node.lineno for node in decorators)])


def last_line(stmt: ast.stmt) -> int:
    """The line where a statement ends."""
    return stmt.end_lineno or stmt.lineno
