"""DYN409: an exception of a tensor operator that decides what is done."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from ....rewriter.source.spans import Refusal, Safety
from ..base import Rule

if TYPE_CHECKING:
    from ....rewriter.source.spans import Fix
    from ...analysis.file_context import FileContext
    from ...analysis.findings import Finding


_CAUGHT = frozenset(["RuntimeError", "Exception", "BaseException"])
_OTHERS = frozenset(["IndexError", "torch.linalg.LinAlgError", "torch._C._LinAlgError"])


class ExceptBranch(Rule):
    """
    An exception that a tensor operator raises while tracing is no exception of the traced program:
    Dynamo stops with `TorchRuntimeError` (or the IndexError itself), also where the code would
    catch it, and what a kernel raises later comes out of the graph. Handlers that raise are left
    alone. `view`, and `reshape` where that failed, is what `reshape` does by itself: a view where
    one is possible, else a copy, with the same errors (`grad_fn` may go by another name).
    """

    code = "DYN409"
    safety = Safety.SAFE
    nodes = (ast.Try, ast.With)
    before = """
import torch


@torch.compile
def step(x: torch.Tensor):
    try:
        y = x.view(-1)
    except RuntimeError:
        y = x.reshape(-1)
    return torch.relu(y)
"""
    after = """
import torch


@torch.compile
def step(x: torch.Tensor):
    y = x.reshape(-1)
    return torch.relu(y)
"""

    def check(self, node: Any, context: FileContext) -> Iterable[Finding]:
        if isinstance(node, ast.With):
            caught = [_suppressed(i.context_expr, context) for i in node.items]
            if any(caught) and _fails(node.body, context):
                yield context.finding(self, node.items[0].context_expr)
            return
        handler = next((h for h in node.handlers if _catches(h.type, context)), None)
        if handler is None or _raises(handler.body) or not _fails(node.body, context):
            return
        built = _reshaped(node, handler, context)
        yield context.finding(self, node.body[0], fix=built)


def _names(node: ast.expr, context: FileContext) -> set[str]:
    listed = node.elts if isinstance(node, ast.Tuple) else [node]
    return {context.resolve(n) for n in listed}


def _catches(node: ast.expr, context: FileContext) -> bool:
    """Whether a handler of this type (None: of all) takes what operators raise."""
    return node is None or bool(_names(node, context) & (_CAUGHT | _OTHERS))


def _suppressed(manager: ast.expr, context: FileContext) -> bool:
    named = isinstance(manager, ast.Call) and context.resolve(manager.func) == "contextlib.suppress"
    return named and any(_catches(a, context) for a in manager.args)


def _raises(body: list[ast.stmt]) -> bool:
    return any(isinstance(n, ast.Raise) for s in body for n in ast.walk(s))


def _fails(body: list[ast.stmt], context: FileContext) -> bool:
    """Whether statements do nothing but compute with tensors, and may fail on their shapes."""
    parts = [n for s in body for n in ast.walk(s)]
    plain = all(
        isinstance(s, (ast.Assign, ast.AugAssign, ast.AnnAssign, ast.Return, ast.Expr))
        for s in body
    )
    calls = [n for n in parts if isinstance(n, ast.Call)]
    return (
        plain
        and all(_operator(c, context) for c in calls)
        and any(_may_fail(n, context) for n in parts)
    )


def _operator(call: ast.Call, context: FileContext) -> bool:
    """Whether a call is one of torch's functions that give a tensor, or of a tensor's methods."""
    if isinstance(call.func, ast.Attribute) and context.kind(call.func.value).is_tensor:
        return True
    named = (context.resolve(call.func) or "").startswith("torch.")
    return named and context.kind(call).what in ("tensor", "tensors")


def _may_fail(node: ast.AST, context: FileContext) -> bool:
    """Whether an operator has more than one tensor, or an axis, an index or a size, to fail on."""
    if isinstance(node, ast.Call):
        return _call_may_fail(node, context)
    if isinstance(node, ast.BinOp):
        return all(context.kind(n).is_tensor for n in (node.left, node.right))
    whole = (ast.Slice, ast.Tuple)
    return (
        isinstance(node, ast.Subscript)
        and context.kind(node.value).is_tensor
        and not isinstance(node.slice, whole)
    )


def _call_may_fail(call: ast.Call, context: FileContext) -> bool:
    attribute = isinstance(call.func, ast.Attribute)
    method = attribute and context.kind(call.func.value).is_tensor
    several = len(call.args) + len(call.keywords) + method > 1 or any(
        context.kind(a).what == "tensors" for a in call.args
    )
    return (several and not (method and call.func.attr == "to")) or _inverts(call, context)


def _inverts(call: ast.Call, context: FileContext) -> bool:
    name = call.func.attr if isinstance(call.func, ast.Attribute) else ""
    return (
        name in ("cholesky", "inv", "inverse", "eigh", "svd", "solve", "qr")
        and context.kind(call).what != "unknown"
    )


def _reshaped(node: ast.Try, handler: ast.ExceptHandler, context: FileContext) -> Fix | Refusal:
    """The Fix that calls reshape alone, or the Refusal."""
    first, second = (_single(body) for body in (node.body, handler.body))
    pair = first and second and first[0] == second[0] and _same_call(first[1], second[1])
    only = len(node.handlers) == 1 and not node.orelse and not node.finalbody and not handler.name
    caught = handler.type is None or bool(_names(handler.type, context) & _CAUGHT)
    if not pair or not only or not caught:
        return Refusal(
            "only `view`, and else `reshape` with the same sizes, is known to be one operator"
        )
    if not all(_size(a, context) for a in first[1].args):
        return Refusal("the arguments are not known to be sizes: `view` takes a dtype as well")
    edit = context.replacement(node, context.segment(handler.body[0]))
    return context.fix("use reshape alone", edit)


def _single(body: list[ast.stmt]) -> tuple[str, ast.Call] | None:
    """(where it goes, the call) of a body that only stores or returns a call."""
    statement = body[0] if len(body) == 1 else None
    if isinstance(statement, ast.Return) and isinstance(statement.value, ast.Call):
        return "return", statement.value
    plain = (
        isinstance(statement, ast.Assign)
        and len(statement.targets) == 1
        and isinstance(statement.value, ast.Call)
    )
    named = plain and isinstance(statement.targets[0], ast.Name)
    return (statement.targets[0].id, statement.value) if named else None


def _same_call(first: ast.Call, second: ast.Call) -> bool:
    """`a.b.view(n, m)` and `a.b.reshape(n, m)`."""
    methods = all(isinstance(c.func, ast.Attribute) and not c.keywords for c in (first, second))
    if not methods or (first.func.attr, second.func.attr) != ("view", "reshape"):
        return False
    shown = [[ast.dump(n) for n in (c.func.value, *c.args)] for c in (first, second)]
    root = first.func.value
    while isinstance(root, ast.Attribute):
        root = root.value
    return shown[0] == shown[1] and isinstance(root, ast.Name)


def _size(node: ast.expr, context: FileContext) -> bool:
    """Whether an argument is a size, or a tuple or list of sizes, and evaluating it twice is
    evaluating it once."""
    if isinstance(node, (ast.Tuple, ast.List)):
        return all(_size(e, context) for e in node.elts)
    if isinstance(node, ast.Starred):
        return context.kind(node.value).what == "size"
    calls = (n for n in ast.walk(node) if isinstance(n, ast.Call))
    pure = all(
        isinstance(c.func, ast.Attribute) and c.func.attr in ("size", "numel", "dim") for c in calls
    )
    return pure and context.kind(node).what in ("int", "size") and not context.kind(node).host
