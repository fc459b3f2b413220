"""DYN301: print in captured code."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from ....rewriter.edits.spans import Safety
from ....rewriter.patterns.telling_calls import is_print
from ..base import Rule
from .guarded import guard, quiet, run_of, told_by

if TYPE_CHECKING:
    from ...analysis.file_context import FileContext
    from ...analysis.findings import Finding


class Print(Rule):
    """
    `print` cannot be put into a graph: Dynamo breaks around it (and formats every tensor, which
    waits for the device). Under `if not torch.compiler.is_compiling():` eager prints exactly as
    before and the compiled code says nothing; dynfix counts what falls silent. A print whose
    arguments do more than read (a store, an unknown call) is left alone.
    """

    code = "DYN301"
    safety = Safety.SAFE
    nodes = (ast.Expr, ast.If)
    before = """
import torch


@torch.compile
def step(x: torch.Tensor):
    y = torch.relu(x)
    print("mean:", y.mean())
    print(f"max: {y.max():.3f}")
    return y
"""
    after = """
import torch


@torch.compile
def step(x: torch.Tensor):
    y = torch.relu(x)
    if not torch.compiler.is_compiling():
        print("mean:", y.mean())
        print(f"max: {y.max():.3f}")
    return y
"""

    def check(self, node: Any, context: FileContext) -> Iterable[Finding]:
        if not isinstance(node, ast.Expr):
            return
        if not is_print(node.value, context):
            return
        yield tell(self, node, context, told_by(is_print, context))


def tell(rule: Rule, node: ast.Expr, context: FileContext, accept: Callable[..., Any]) -> Finding:
    """The finding for a statement that tells something; a run of them (and an `if` with nothing
    else in it) is guarded as one."""
    if not quiet(node, context):
        return context.finding(
            rule, node, kept="its arguments do more than read: muting them could change the result"
        )
    top = node
    while isinstance(context.parent(top), ast.If) and accept(context.parent(top)):
        if _is_elif(context.parent(top), context):
            break
        top = context.parent(top)
    if _is_elif(top, context):
        return context.finding(rule, node, kept="the guard would stand in an `elif`")
    built = guard(run_of(top, context, accept), context)
    return context.finding(rule, node, fix=built)


def _is_elif(node: ast.stmt, context: FileContext) -> bool:
    return isinstance(node, ast.If) and context.source.text.startswith(
        "elif", context.source.span(node)[0]
    )
