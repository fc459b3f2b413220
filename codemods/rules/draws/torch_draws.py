"""The fix of DYN701 where a number that is drawn decides a branch, or goes into arithmetic: torch
draws it."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Any

from ....rewriter.edits.spans import Safety
from ....rewriter.patterns.condition import DECIDES
from ..host.host_read import kept_as_tensor

if TYPE_CHECKING:
    from ....rewriter.edits.spans import Fix
    from ...analysis.file_context import FileContext


_WHY = (
    "torch's generator draws, and the other one does not move: eager gives other numbers, too, and"
    " they are tensors"
)
# What torch draws in place of a call, by the number of its arguments.
_FORMS = {
    ("random.random", 0): "{t}.rand(())",
    ("numpy.random.rand", 0): "{t}.rand(())",
    ("numpy.random.random", 0): "{t}.rand(())",
    ("numpy.random.randn", 0): "{t}.randn(())",
    ("random.uniform", 2): "{t}.empty(()).uniform_({0}, {1})",
    ("numpy.random.uniform", 0): "{t}.rand(())",
    ("numpy.random.uniform", 2): "{t}.empty(()).uniform_({0}, {1})",
    ("numpy.random.normal", 2): "{t}.empty(()).normal_({0}, {1})",
    ("random.gauss", 2): "{t}.empty(()).normal_({0}, {1})",
    ("numpy.random.beta", 2): "{t}.distributions.Beta({0}, {1}).sample()",
    ("random.betavariate", 2): "{t}.distributions.Beta({0}, {1}).sample()",
}


def drawn_by_torch(call: ast.Call, context: FileContext) -> Fix | None:
    """The Fix, or None where a tensor cannot stand for the number."""
    form = _FORMS.get((context.resolve(call.func) or "", len(call.args)))
    found = context.torch(call)
    plain = not call.keywords and not any(isinstance(a, ast.Starred) for a in call.args)
    if form is None or found is None or not plain or not _fits(call, context):
        return None
    text = form.format(*map(context.segment, call.args), t=found[0])
    edit = context.replacement(call, text)
    return context.fix("draw with torch", edit, safety=Safety.UNSAFE, why=_WHY, imports=found[1])


def _fits(call: ast.Call, context: FileContext) -> bool:
    parent = context.parent(call)
    if isinstance(parent, ast.Compare) and len(parent.ops) == 1:
        return type(parent.ops[0]) in DECIDES and _decides(parent, context)
    return not kept_as_tensor(call, context)


def _decides(node: Any, context: FileContext) -> bool:
    parent = context.parent(node)
    while isinstance(parent, (ast.BoolOp, ast.UnaryOp)):
        node, parent = parent, context.parent(parent)
    return isinstance(parent, (ast.If, ast.IfExp)) and parent.test is node
