"""Names that hold what is only told, or not even that: the statements that bind them go under the
guard together with the prints that show them."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from ....rewriter.analysis.name_scopes import rebindings
from ....rewriter.source.intents import wrap
from ....rewriter.transforms.compiled.compiled_scalars import eager_only
from .compile_guards import count_calls, effect_free, only_logs

if TYPE_CHECKING:
    from ....rewriter.source.spans import Fix
    from ...analysis.file_context import FileContext


def guarded_with_uses(call: ast.AST, context: FileContext) -> Fix | None:
    """The Fix that binds in eager alone what `call` gives, with all that is made of it; None where
    something else needs it. Evaluating `call` must change nothing."""
    statement, found = context.statement(call), context.torch(call)
    run = _together(statement, context)
    if found is None or run is None:
        return None
    head = f"if not {found[0]}.compiler.is_compiling():"
    bare = [s for s in run if not eager_only(s, context)]
    edits = [wrap(context.source, r, head) for r in _runs(bare, context)]
    silent = sum(count_calls(s, context) for s in bare)
    return context.fix("run it in eager only", *edits, imports=found[1], silent=silent)


def only_logged(node: ast.AST, context: FileContext) -> Fix | None:
    """The same for an expression whose statement binds what is shown at last; nothing for what is
    not shown at all, or stands in what is."""
    statement = context.statement(node)
    if not isinstance(statement, ast.Assign):
        return None
    return guarded_with_uses(node, context) if context.once(_shown, statement) else None


def _shown(statement: ast.stmt, context: FileContext) -> bool:
    return any(count_calls(s, context) for s in _together(statement, context) or ())


def _runs(statements: list[ast.stmt], context: FileContext) -> list[list[ast.stmt]]:
    """The statements in runs of adjacent ones."""
    found: list[list[ast.stmt]] = []
    for statement in statements:
        block, index = context.block(statement)
        if found and index and block[index - 1] is found[-1][-1]:
            found[-1].append(statement)
        else:
            found.append([statement])
    return found


def _together(statement: ast.stmt, context: FileContext) -> list[ast.stmt] | None:
    function = context.function(statement).node
    shared = rebindings(function).shared
    names, todo, run = set(), [statement], {}
    while todo:
        at = todo.pop()
        if at in run:
            continue
        run[at] = None
        if only_logs(at, context):
            continue
        target = _target(at, context)
        if not target or target in shared:
            return None
        if target in names:
            continue
        names.add(target)
        for node in ast.walk(function):
            if isinstance(node, ast.Name) and node.id == target:
                todo.append(context.statement(node))
    return sorted(run, key=lambda s: s.lineno)


def _target(statement: ast.stmt, context: FileContext) -> str:
    """The one local name that a statement binds to something that is only computed."""
    if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
        return ""
    target = statement.targets[0]
    if not isinstance(target, ast.Name) or not effect_free(statement.value, context):
        return ""
    return target.id
