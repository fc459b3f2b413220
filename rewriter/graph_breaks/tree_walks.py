"""What is below a node of a syntax tree, several times as fast as `ast` finds it: texts are looked
at while a script starts."""

import ast
from collections.abc import Iterator

SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)
_LEAVES = frozenset({ast.Name, ast.Constant, ast.alias, ast.Pass, ast.Break, ast.Continue})


def children(node: ast.AST) -> list[ast.AST]:
    """As `ast.iter_child_nodes`, but for what says nothing here: contexts (`Load`) and operators
    (`Add`)."""
    found: list[ast.AST] = []
    if type(node) in _LEAVES:
        return found
    has = node.__dict__
    for name in node._fields:
        value = has.get(name)
        for each in value if type(value) is list else (value,):
            if isinstance(each, ast.AST) and (each._fields or isinstance(each, ast.stmt)):
                found.append(each)
    return found


def all_nodes(node: ast.AST) -> Iterator[ast.AST]:
    """`node` and everything below it, in the order of the text."""
    waiting = [node]
    while waiting:
        node = waiting.pop()
        yield node
        waiting += reversed(children(node))


def own_nodes(node: ast.AST) -> Iterator[ast.AST]:
    """As `all_nodes`, but for the bodies of functions and classes made there."""
    waiting = [node]
    while waiting:
        node = waiting.pop()
        yield node
        if not isinstance(node, SCOPES):
            waiting += reversed(children(node))
