"""The fix of DYN701 where a number that is drawn decides a branch, or goes into arithmetic: torch
draws it."""

from __future__ import annotations

import ast
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ....rewriter.source.spans import Fix, Safety
from ....rewriter.transforms.compiled.compiled_scalars import made_of_drawn_test, made_of_draws
from ....rewriter.transforms.condition import DECIDES
from ....rewriter.transforms.torch_draw import torch_draw
from ..host.host_read import kept_as_tensor

if TYPE_CHECKING:
    from ...analysis.file_context import FileContext


_WHY = (
    "torch's generator draws, and the other one does not move: eager gives other numbers, too, and"
    " they are tensors"
)
# Dynamo draws these outside the graph, and hands the number in.
_NUMBERS_OF_DYNAMO = ("random.random", "random.uniform")


def drawn_by_torch(call: ast.Call, context: FileContext) -> Fix | None:
    """The Fix, or None where a tensor cannot stand for the number."""
    text, found = torch_draw(call, context), context.torch(call)
    if not text or found is None or not _fits(call, context):
        return None
    edit = context.replacement(call, text)
    fix = context.fix("draw with torch", edit, safety=Safety.UNSAFE, why=_WHY, imports=found[1])
    decides = isinstance(context.parent(call), ast.Compare)
    return replace(fix, needs_next=decides) if isinstance(fix, Fix) else fix


def drawn_when_compiled(call: ast.Call, context: FileContext) -> Fix | None:
    """The Fix that has torch draw in compiled code alone, or None."""

    def drawn(node: ast.Call) -> str:
        return torch_draw(node, context)

    if not drawn(call):
        return None
    decided = _decided(call, context)
    if decided is not None:
        made = made_of_drawn_test(decided, drawn, context)
    elif context.resolve(call.func) in _NUMBERS_OF_DYNAMO:
        return None
    else:
        made = made_of_draws(call, drawn, context)
    return made if isinstance(made, Fix) else None


def _decided(call: ast.Call, context: FileContext) -> ast.If | ast.IfExp | None:
    """The branch that a draw decides."""
    node, parent = call, context.parent(call)
    while isinstance(parent, (ast.Compare, ast.BoolOp, ast.UnaryOp)):
        node, parent = parent, context.parent(parent)
    decides = isinstance(parent, (ast.If, ast.IfExp)) and parent.test is node
    return parent if decides else None


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
