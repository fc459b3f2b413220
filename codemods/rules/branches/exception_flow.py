"""What a check in compiled code loses beside the exception of its own type: who handles that, and
what its message does."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ...analysis.definitions import last_name
from ...analysis.grad_modes import swallows_nothing
from ..effects.compile_guards import effect_free

if TYPE_CHECKING:
    from ...analysis.file_context import FileContext

_DEEPEST = 3
_HANDLED = "the exception is handled, the RuntimeError of compiled code is not"
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
    caught = handled(node, context) or _handled_by_callers(node, context)
    return [why for why, lost in ((_HANDLED, caught), (_ACTS, acts)) if lost]


def _texts(call: Any) -> list[ast.AST]:
    """What a call that checks evaluates for its text: the body of a function made there."""
    given = [*call.args[1:], *(k.value for k in call.keywords)]
    return [n.body if isinstance(n, ast.Lambda) else n for n in given]


def _parts(raised: Any) -> list[ast.AST]:
    """What a `raise` evaluates beside the call of the exception's class."""
    call = raised.exc
    given = [*call.args, *call.keywords] if isinstance(call, ast.Call) else [call]
    return [*given, raised.cause]


def decides_flow(node: ast.If, context: FileContext) -> bool:
    """Whether a handler names the exception that is raised at `node`, and goes on: the exception is
    how the program branches, not how it fails."""
    called = _raised(node)
    if called is not None and last_name(called) in _of_callers(node, context):
        return True
    wanted = called is not None and ast.unparse(called)
    catching = [*_catching(node, context), *_calling(node, context)]
    handlers = (h for each in catching for h in getattr(each, "handlers", ()))
    return bool(wanted) and any(_goes_on(h, wanted, context) for h in handlers)


def _raised(node: Any) -> ast.expr | None:
    """The class of the exception that a check raises; None where it is not known."""
    raised = node.body[-1] if isinstance(node, ast.If) else None
    exc = raised.exc if isinstance(raised, ast.Raise) else None
    return exc.func if isinstance(exc, ast.Call) else exc


def _of_callers(node: ast.AST, context: FileContext) -> frozenset[str]:
    """The exceptions that callers of the function around `node`, in all files, handle."""
    function = context.function(node)
    handled = context.program.links.handled
    return handled.get(function.qualified, frozenset()) if function else frozenset()


def _handled_by_callers(node: ast.AST, context: FileContext) -> bool:
    raised = _raised(node)
    name = "AssertionError" if isinstance(node, ast.Assert) else last_name(raised)
    return any(_may_catch(caught, name) for caught in _of_callers(node, context))


def _may_catch(caught: str, raised: str) -> bool:
    """Whether a handler of a class may catch an exception of another, as their names tell."""
    known = getattr(builtins, caught or "BaseException", None)
    exception = getattr(builtins, raised, None)
    if isinstance(known, type) and isinstance(exception, type):
        return issubclass(exception, known)
    return known in (Exception, BaseException) or exception is None


def _calling(node: ast.AST, context: FileContext) -> Iterator[ast.Try]:
    """What calls something of the name of the function around `node`: of which class is not asked,
    for a call of a method of an attribute may not be resolved."""
    function: Any = context.function(node)
    for each in context.index.get(ast.Try, ()) if function else ():
        calls = (n.func for s in each.body for n in ast.walk(s) if isinstance(n, ast.Call))
        if function.node.name in {getattr(f, "attr", getattr(f, "id", "")) for f in calls}:
            yield each


def _goes_on(handler: ast.ExceptHandler, wanted: str, context: FileContext) -> bool:
    """Whether a handler of the class `wanted` does not raise at its end."""
    named = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    names = {ast.unparse(n) for n in named if n is not None}
    return wanted in names and not isinstance(handler.body[-1], ast.Raise)


def handled(node: ast.AST, context: FileContext) -> bool:
    """Whether an exception raised at `node` may be caught in this file."""
    return next(_catching(node, context), None) is not None


def _catching(node: ast.AST, context: FileContext) -> Iterator[ast.AST]:
    """What may catch an exception raised at `node`, in its function and in what calls that."""
    raising, seen = [node], set[ast.AST]()
    for _ in range(_DEEPEST + 1):
        left = []
        for each in raising:
            caught, function = _left_by(each, context)
            yield from caught
            left.append(function)
        new = (each for each in left if each not in seen and isinstance(each, _FUNCTIONS))
        functions = list(dict.fromkeys(new))
        seen.update(functions)
        raising = [call for function in functions for _, call in context.callers(function)]


def _left_by(node: ast.AST, context: FileContext) -> tuple[list[ast.AST], ast.AST]:
    """(what on the way may catch an exception raised at `node`, the function or the file that it
    leaves otherwise)."""
    found: list[ast.AST] = []
    parents = context.whole_parents()
    child, parent = node, parents.get(node)
    while parent is not None and not isinstance(child, _FUNCTIONS):
        if isinstance(parent, ast.Try) and child in parent.body and parent.handlers:
            found.append(parent)
        if isinstance(parent, (ast.With, ast.AsyncWith)) and child in parent.body:
            entered = (i.context_expr for i in parent.items)
            if not all(swallows_nothing(e, context.names) for e in entered):
                found.append(parent)
        child, parent = parent, parents.get(parent)
    return found, child


_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
