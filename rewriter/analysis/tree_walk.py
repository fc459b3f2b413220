"""The nodes of a tree, quickly: functions and classes are gone through once, however many ask."""

import ast
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

# of whole trees: each type's nodes
NodeIndex = dict[type[ast.AST], list[Any]]
# what has a place in the text
Located = ast.expr | ast.stmt | ast.arg | ast.keyword | ast.alias | ast.excepthandler | ast.pattern
FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)
_MARKS = (ast.expr_context, ast.operator, ast.unaryop, ast.cmpop, ast.boolop)
# what fields hold beside nodes, and the marks, of which one object may stand in many places
_LEAVES = frozenset(
    [type(None), type(...), str, bytes, int, float, complex, bool]
    + [mark for kind in _MARKS for mark in kind.__subclasses__()]
)


def span(node: Located) -> tuple[tuple[int, int], tuple[int, int]]:
    """(line, offset in bytes) where a node of parsed text begins and ends."""
    assert node.end_lineno is not None and node.end_col_offset is not None
    return (node.lineno, node.col_offset), (node.end_lineno, node.end_col_offset)


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


def surely_evaluated(node: ast.expr) -> Iterator[ast.expr]:
    """An expression, and those parts of it that are evaluated whatever the others give."""
    yield node
    if isinstance(node, ast.BoolOp):
        parts = node.values[:1]
    elif isinstance(node, ast.Compare):
        parts = [node.left, node.comparators[0]]
    elif isinstance(node, (ast.IfExp, ast.Lambda)):
        parts = []
    else:
        parts = [n for n in ast.iter_child_nodes(node) if isinstance(n, ast.expr)]
    for part in parts:
        yield from surely_evaluated(part)


def _below(node: ast.AST) -> tuple[ast.AST, ...]:
    found = [node]
    for each in found:
        found += children(each)
    return tuple(found)


_below_scope = lru_cache(maxsize=512)(_below)


def only_store(name: str, function: ast.AST, apart: Any = ()) -> ast.Name | None:
    """The one place of a function that binds a name; None where there are others, be it as a
    parameter, an import or a definition. `apart`: nodes that do not count."""
    stores, others = _bound_in(function)
    if name in others:
        return None
    found = [node for node in stores.get(name, ()) if node not in apart]
    return found[0] if len(found) == 1 else None


@lru_cache(maxsize=512)
def _bound_in(function: ast.AST) -> tuple[dict[str, list[ast.Name]], set[str | None]]:
    """({name: the names that store or delete it}, what is bound in other ways) in a function."""
    stores: dict[str, list[ast.Name]] = {}
    others: set[str | None] = set()
    for node in below(function):
        if isinstance(node, ast.Name):
            if not isinstance(node.ctx, ast.Load):
                stores.setdefault(node.id, []).append(node)
        elif node is not function and not isinstance(node, ast.keyword):
            others |= {getattr(node, "arg", None), getattr(node, "name", None)}
            others.add(node.asname if isinstance(node, ast.alias) else None)
    return stores, others


def only_value(name: ast.Name, context: Any, function: Any = None, apart: Any = ()) -> Any:
    """The expression that a name stands for, where the function around it (or the one that is
    named) binds it once, by a plain assignment; None elsewhere."""
    around = context.function(name)
    function = function or (around.node if around else None)
    store = only_store(name.id, function, apart) if function else None
    statement = context.parent(store) if store is not None else None
    if not isinstance(statement, ast.Assign) or statement.targets != [store]:
        return None
    return statement.value
