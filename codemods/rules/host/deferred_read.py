"""A number that is read from a tensor and only decides branches, or is shown: read where that is.

    m = y.abs().max().item()        m = y.abs().max().detach()
    if m > 1:                       if m.item() > 1:
        y = y / 2                       y = y / 2
    print(m)                        print(m.item())

The same number, for nobody else has the tensor. The branch, and what is shown, have rules of their
own, which then see a tensor."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from ....rewriter.edits.spans import Edit
from ....rewriter.patterns.condition import condition, host_read
from ....rewriter.patterns.name_scopes import rebindings
from ....rewriter.patterns.proofs import sees_names
from ....rewriter.patterns.value_uses import ValueUses
from ..effects.guarded import is_log, is_print

if TYPE_CHECKING:
    from ....rewriter.edits.spans import Fix
    from ...analysis.file_context import FileContext


_TESTS = (ast.If, ast.IfExp, ast.While, ast.Assert)
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)


def deferred(node: ast.expr, context: FileContext) -> Fix | None:
    """The Fix that reads what `node` (`t.item()`, `bool(t)`, `not t`) reads where it is used; None
    where it is used for more."""
    name, function = _bound(node, context), context.function(node).node
    inner = _tensor(node, context)
    if not name or inner is None or sees_names(function) or not _new(inner, context):
        return None
    loads = [n for n in ast.walk(function) if isinstance(n, ast.Name) and n.id == name]
    loads = [n for n in loads if isinstance(n.ctx, ast.Load)]
    truth = isinstance(node, ast.UnaryOp) or getattr(node.func, "id", "") == "bool"
    edits = [_edit(n, node, truth, context) for n in loads]
    if not loads or None in edits:
        return None
    kept = [e for e in edits if e.text]
    made = _kept(node, inner, truth, context)
    return context.fix("read it where it is used", context.replacement(node, made), *kept)


def _kept(node: ast.expr, inner: ast.expr, truth: bool, context: FileContext) -> str:
    if isinstance(node, ast.UnaryOp):
        test, found = condition(node, context), context.torch(node)
        return f"{found[0]}.logical_not({test.text})" if test.negated else test.text
    text = context.atom(inner)
    boolean = context.kind(inner).dtype == context.inference.tokens.bool
    return context.segment(inner) if truth or boolean else f"{text}.detach()"


def _tensor(node: ast.expr, context: FileContext) -> ast.expr | None:
    """The tensor of one element that is read."""
    if isinstance(node, ast.UnaryOp):
        return node.operand if context.torch(node) and _one(node.operand, context) else None
    inner = host_read(node, context)
    return inner if inner is not None and _one(inner, context) else None


def _one(node: ast.expr, context: FileContext) -> bool:
    return context.kind(node).is_tensor and context.kind(node).rank == 0


def _new(node: ast.expr, context: FileContext) -> bool:
    """Whether nobody else has the tensor."""
    return ValueUses(context, context.function(node).node).new(node)


def _bound(node: ast.expr, context: FileContext) -> str:
    """The one name that is bound to a value, in one place; "" where there is none."""
    statement, target = context.parent(node), None
    if isinstance(statement, ast.Tuple):
        whole = context.parent(statement)
        pair = isinstance(whole, ast.Assign) and len(whole.targets) == 1 and whole.targets[0]
        if isinstance(pair, ast.Tuple) and len(pair.elts) == len(statement.elts):
            target = pair.elts[statement.elts.index(node)]
    elif isinstance(statement, ast.Assign) and len(statement.targets) == 1:
        target = statement.targets[0]
    once = rebindings(context.function(node).node).once
    return target.id if isinstance(target, ast.Name) and target.id in once else ""


def _edit(load: ast.Name, node: ast.expr, truth: bool, context: FileContext) -> Edit | None:
    """What becomes of one use; an empty Edit where it stays as it is; None where there is no
    form."""
    at, shown, tested = load, False, False
    while not isinstance(at, ast.stmt) and at is not None:
        parent = context.parent(at)
        if isinstance(parent, _SCOPES):
            return None
        tested = tested or (isinstance(parent, _TESTS) and parent.test is at)
        shown = shown or is_print(at, context) or is_log(at, context)
        if isinstance(parent, (ast.JoinedStr, ast.FormattedValue)):
            return None  # its place within the text is not known before Python 3.12
        at = parent
    asked = context.parent(load)
    if tested and truth and isinstance(asked, (*_TESTS, ast.BoolOp, ast.UnaryOp)):
        return Edit(0, 0, "")
    if not (tested or shown) or isinstance(node, ast.UnaryOp):
        return None
    start, end = context.source.span(load)
    method = isinstance(node.func, ast.Attribute)
    text = f"{load.id}.item()" if method else f"{node.func.id}({load.id})"
    return Edit(start, end, text)
