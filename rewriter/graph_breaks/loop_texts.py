"""The text of a loop that is run some turns at a time."""

import ast
import dataclasses
from typing import TypeGuard

from ..analysis.call_effects import CHANGES_CONTAINERS

TURN, TURNS = "_dynfix_turn", "_dynfix_turns"  # a turn's number; pairs of it and what is taken


@dataclasses.dataclass(frozen=True)
class Loop:
    """It takes the variables `given`, binds `target`, and hands the variables `carried` to its next
    turn and to what stands behind it."""

    given: tuple[str, ...]
    carried: tuple[str, ...]
    target: ast.expr


def can_be_stretched(stmt: ast.stmt) -> TypeGuard[ast.For]:
    """Whether the loop can be run some turns at a time: it stands under a header of one line, is
    left at its end alone, and its text changes nothing of what it goes over."""
    if not isinstance(stmt, ast.For) or stmt.orelse or _is_over_turns(stmt):
        return False
    one_line = stmt.lineno == stmt.iter.end_lineno and stmt.body[0].lineno > stmt.lineno
    plain = all(isinstance(node, _TARGETS) for node in ast.walk(stmt.target))
    return one_line and plain and not any(map(_breaks, stmt.body)) and not _changes(stmt)


_TARGETS = (ast.Name, ast.Tuple, ast.List, ast.Starred, ast.expr_context)


def _is_over_turns(loop: ast.For) -> bool:
    return isinstance(loop.iter, ast.Name) and loop.iter.id == TURNS


def _breaks(node: ast.AST) -> bool:
    """Whether a `break` below belongs to the loop around."""
    if isinstance(node, ast.For | ast.While):
        return any(map(_breaks, node.orelse))
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
        return False
    return isinstance(node, ast.Break) or any(map(_breaks, ast.iter_child_nodes(node)))


def _changes(loop: ast.For) -> bool:
    """Whether the body stores into, or calls what changes, an object that the header names."""
    named = {node.id for node in ast.walk(loop.iter) if isinstance(node, ast.Name)}
    for node in (below for stmt in loop.body for below in ast.walk(stmt)):
        item = isinstance(node, ast.Subscript) and not isinstance(node.ctx, ast.Load)
        method = isinstance(node, ast.Attribute) and node.attr in _CHANGE
        if (item or method) and _root(node) in named:
            return True
    return False


_CHANGE = CHANGES_CONTAINERS | {"add_module", "register_module", "_modules"}


def _root(node: ast.AST) -> str | None:
    while isinstance(node, ast.Subscript | ast.Attribute | ast.Call):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else None


def iterable_of(loop: ast.For, line: str) -> str:
    """The text of what the loop goes over; `line` is that of its header."""
    return _cut(line, loop.iter.col_offset, loop.iter.end_col_offset)


def over_turns(loop: ast.For, line: str) -> str:
    """The header that goes over turns in its place."""
    target = _cut(line, loop.target.col_offset, loop.target.end_col_offset)
    start = _cut(line, 0, loop.target.col_offset)
    between = _cut(line, loop.target.end_col_offset, loop.iter.col_offset)
    return f"{start}{TURN}, ({target}){between}{TURNS}{_cut(line, loop.iter.end_col_offset, None)}"


def _cut(line: str, start: int | None, end: int | None) -> str:
    return line.encode()[start:end].decode()
