"""What a name or an attribute holds from before the captured call: the expressions that bound
it."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .definitions import Class, FileProgram
    from .file_context import FileContext


def prior_values(node: ast.expr, context: FileContext) -> tuple[ast.expr, ...]:
    """The expressions that the module's top level binds the name `node` to, or that `__init__`
    alone stores in the attribute `self.x`; () where something else may be there."""
    if isinstance(node, ast.Name):
        return () if node.id in context.local_names(node) else _of_module(node.id, context)
    owner = context.kind(node.value) if isinstance(node, ast.Attribute) else None
    cls = (
        context.program.classes.get(owner.cls)
        if owner is not None and owner.what == "self"
        else None
    )
    return _of_instance(node.attr, cls, context.program) if cls else ()


def _of_module(name: str, context: FileContext) -> Any:
    tree = context.source.tree
    if any(
        isinstance(n, ast.Global) and name in n.names for n in context.index.get(ast.Global, ())
    ):
        return ()
    return _values((s for s in tree.body), lambda t: isinstance(t, ast.Name) and t.id == name)


def _of_instance(attr: str, cls: Class, program: FileProgram) -> tuple[ast.expr, ...]:
    """Of the class and those above it in this file."""
    owners, found = [cls], []
    for owner in owners:
        above = (program.classes[b] for b in owner.bases if b in program.classes)
        owners += [c for c in above if c not in owners]
        for name, method in owner.methods.items():
            stores = _values(
                program.nodes(method.node),
                lambda t: isinstance(t, ast.Attribute) and t.attr == attr,
            )
            if stores and name != "__init__":
                return ()
            found += stores
    return tuple(found)


def _values(statements: Iterator[Any], is_target: Callable[..., Any]) -> tuple[ast.expr, ...]:
    """The values of assignments to a target; (None,) in the place of one that is not plain."""
    found = []
    for statement in statements:
        if isinstance(statement, ast.Assign):
            found += [statement.value for t in statement.targets if is_target(t)]
            nested = [n for t in statement.targets if not is_target(t) for n in ast.walk(t)]
            found += [None for n in nested if is_target(n) and isinstance(n.ctx, ast.Store)]
        elif (
            isinstance(statement, ast.AnnAssign)
            and statement.value is not None
            and is_target(statement.target)
        ):
            found.append(statement.value)
        elif isinstance(statement, ast.AugAssign) and is_target(statement.target):
            found.append(None)
    return tuple(found)
