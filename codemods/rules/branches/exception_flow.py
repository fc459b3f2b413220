"""What a check in compiled code loses beside the exception of its own type: who handles that, and
what its message does."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Any

from ...analysis.grad_modes import swallows_nothing
from ..effects.compile_guards import effect_free

if TYPE_CHECKING:
    from ...analysis.file_context import FileContext

_DEEPEST = 3
_HANDLED = "the exception is handled in this file, the RuntimeError of compiled code is not"
_ACTS = "what the message does beside reading is not done"


def losses(node: ast.If | ast.Assert | ast.Expr, context: FileContext) -> list[str]:
    """What compiled code loses where the check at `node` becomes one on the device."""
    if isinstance(node, ast.Assert):
        parts: list[Any] = [node.msg]
    elif isinstance(node, ast.Expr):
        parts = _texts(node.value)
    else:
        parts = _parts(node.body[-1])
    acts = not all(effect_free(p, context) for p in parts if p is not None)
    handled = _handled(node, context)
    return [why for why, lost in ((_HANDLED, handled), (_ACTS, acts)) if lost]


def _texts(call: Any) -> list[ast.AST]:
    """What a call that checks evaluates for its text: the body of a function made there."""
    given = [*call.args[1:], *(k.value for k in call.keywords)]
    return [n.body if isinstance(n, ast.Lambda) else n for n in given]


def _parts(raised: Any) -> list[ast.AST]:
    """What a `raise` evaluates beside the call of the exception's class."""
    call = raised.exc
    given = [*call.args, *call.keywords] if isinstance(call, ast.Call) else [call]
    return [*given, raised.cause]


def _handled(node: ast.AST, context: FileContext) -> bool:
    """Whether an exception raised at `node` may be caught in this file."""
    raising, seen = [node], set[ast.AST]()
    for _ in range(_DEEPEST + 1):
        left = [_left_by(each, context) for each in raising]
        if None in left:
            return True
        new = (each for each in left if each not in seen and isinstance(each, _FUNCTIONS))
        functions = list(dict.fromkeys(new))
        seen.update(functions)
        raising = [call for function in functions for _, call in context.callers(function)]
    return False


def _left_by(node: ast.AST, context: FileContext) -> ast.AST | None:
    """The function, or the file, that an exception raised at `node` leaves; None where something on
    the way may catch it."""
    parents = context.whole_parents()
    child, parent = node, parents.get(node)
    while parent is not None and not isinstance(child, _FUNCTIONS):
        if isinstance(parent, ast.Try) and child in parent.body and parent.handlers:
            return None
        if isinstance(parent, (ast.With, ast.AsyncWith)) and child in parent.body:
            entered = (i.context_expr for i in parent.items)
            if not all(swallows_nothing(e, context.names) for e in entered):
                return None
        child, parent = parent, parents.get(parent)
    return child


_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
