"""Line tables without columns: the rewritten text has other columns than the user's, and carets at
them would mislead.
"""

import ast
import sys
from types import CodeType

_NO_COLUMNS, _NO_LINE = 13, 15  # location kinds of CPython's Objects/locations.md
_LONGEST = 8  # code units per entry


def without_columns(code: CodeType) -> bytes:
    """The line table of `code` with the same lines and no columns."""
    return code.co_linetable if sys.version_info < (3, 11) else _encoded(code)


def _encoded(code: CodeType) -> bytes:
    table = bytearray()
    previous = code.co_firstlineno
    for start, end, line in code.co_lines():
        units = (end - start) // 2
        while units > 0:
            length = min(units, _LONGEST)
            units -= length
            kind = _NO_LINE if line is None else _NO_COLUMNS
            table.append(0x80 | kind << 3 | length - 1)
            if line is not None:
                table += _signed(line - previous)
                previous = line
    return bytes(table)


def _signed(value: int) -> bytes:
    """A signed variable-length integer: six bits a byte, the lowest bit is the sign."""
    rest = (-value << 1 | 1) if value < 0 else value << 1
    out = bytearray()
    while rest >= 64:
        out.append(rest & 63 | 64)
        rest >>= 6
    out.append(rest)
    return bytes(out)


def at_attributes(tree: ast.Module) -> ast.Module:
    """Python places the load of an attribute, and a method call, on the line of the attribute's
    name: so do their operators."""
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Call)
            and node.lineno != node.end_lineno
            and isinstance(node.func, ast.Attribute)
        ):
            loaded = node.args[0] if node.func.attr == "call" and _is_operator(node) else node
            if isinstance(loaded, ast.Call) and _is_operator(loaded) and loaded.func.attr == "attr":  # type: ignore[attr-defined]
                node.lineno = node.func.lineno = node.func.end_lineno = loaded.args[1].lineno
                node.col_offset = node.func.col_offset = node.func.end_col_offset = 0
    return tree


def _is_operator(node: ast.Call) -> bool:
    return (
        isinstance(node.func, ast.Attribute)
        and isinstance(node.func.value, ast.Name)
        and node.func.value.id == "__df"
    )


def at_lines(tree: ast.Module, first: int, lines: tuple[int, ...]) -> ast.Module:
    """Each line of a changed text, which begins at line `first`, is one of the user's file."""
    for node in ast.walk(tree):
        for name in ("lineno", "end_lineno"):
            at = getattr(node, name, None)
            if at is not None and first <= at < first + len(lines):
                setattr(node, name, lines[at - first])
        start, end = getattr(node, "lineno", 0), getattr(node, "end_lineno", None)
        if end is not None and end < start:
            node.end_lineno = start  # type: ignore[attr-defined]
    return tree
