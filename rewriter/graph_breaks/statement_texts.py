"""Small questions about functions and statements, and about the lines that they stand on."""

import ast
from collections.abc import Iterable, Sequence

from .bound_names import Names

_FRAMES = frozenset(
    "_getframe currentframe extract_stack format_stack print_stack walk_stack".split()
)
_READERS = _FRAMES | {"locals", "eval", "exec", "globals"}
_OF_NOTHING = ("vars", "dir")  # they look around where they are given nothing
_BUILTINS = ("builtins", "__builtins__")


def look_around(nodes: Iterable[ast.AST]) -> bool:
    """Whether some of the nodes read variables or frames that they do not name; a method that is
    called `eval`, or a function `stack` of another module than `inspect`, does not."""
    every = list(nodes)
    called = {id(node.func): node for node in every if isinstance(node, ast.Call)}
    return any(_looks(node, called.get(id(node))) for node in every)


def _looks(node: ast.AST, call: ast.Call | None) -> bool:
    if isinstance(node, ast.Name):
        if node.id in _OF_NOTHING:
            return call is None or not call.args
        return node.id in _READERS or (node.id == "stack" and call is not None)
    if not isinstance(node, ast.Attribute):
        return False
    base = node.value.id if isinstance(node.value, ast.Name) else ""
    return (
        node.attr in _FRAMES
        or (node.attr == "stack" and base == "inspect")
        or (node.attr in _READERS and base in _BUILTINS)
    )


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
    decorators: Sequence[ast.expr] = getattr(stmt, "decorator_list", ())
    return min([stmt.lineno, *(node.lineno for node in decorators)])


def last_line(stmt: ast.stmt) -> int:
    """The line where a statement ends."""
    return stmt.end_lineno or stmt.lineno
