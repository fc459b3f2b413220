"""The nodes of a tree, quickly: functions and classes are gone through once, however many ask."""

import ast
from functools import lru_cache
from typing import Any

_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)
_MARKS = (ast.expr_context, ast.operator, ast.unaryop, ast.cmpop, ast.boolop)
# what fields hold beside nodes, and the marks, of which one object may stand in many places
_LEAVES = frozenset(
    [type(None), type(...), str, bytes, int, float, complex, bool]
    + [mark for kind in _MARKS for mark in kind.__subclasses__()]
)


def below(node: ast.AST) -> tuple[ast.AST, ...]:
    """`node` and all that it holds, in the order of `ast.walk`; contexts and operators are left
    out. The tree must not be changed afterwards."""
    return _below_scope(node) if isinstance(node, _SCOPES) else _below(node)


def children(node: ast.AST) -> list[ast.AST]:
    """What `node` itself holds; contexts and operators are left out."""
    found: list[ast.AST] = []
    fields = node.__dict__
    for name in node._fields:
        value: Any = fields.get(name)
        if value.__class__ is list:
            found += [v for v in value if v.__class__ not in _LEAVES]
        elif value.__class__ not in _LEAVES:
            found.append(value)
    return found


def parents(root: ast.AST) -> dict[ast.AST, ast.AST]:
    """{node: the one that holds it} of all that `root` holds."""
    found, todo = {}, [root]
    for node in todo:
        held = children(node)
        found.update(dict.fromkeys(held, node))
        todo += held
    return found


def _below(node: ast.AST) -> tuple[ast.AST, ...]:
    found = [node]
    for each in found:
        found += children(each)
    return tuple(found)


_below_scope = lru_cache(maxsize=512)(_below)
