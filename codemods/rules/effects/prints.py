"""DYN301: print in captured code."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from ....rewriter.analysis.output_calls import is_print
from ....rewriter.source.spans import Safety
from ..base import Rule
from .compile_guards import effect_free, guard, logging_statements, run_of, tells, used_call

if TYPE_CHECKING:
    from ...analysis.file_context import FileContext
    from ...analysis.findings import Finding


class Print(Rule):
    """
    `print` cannot be put into a graph: Dynamo breaks around it (and formats every tensor, which
    waits for the device). Under `if not torch.compiler.is_compiling():` eager prints exactly as
    before and the compiled code says nothing; dynfix counts what falls silent. A print whose
    arguments do more than read (a store, an unknown call, an iterator that is used up), that writes
    elsewhere than to the terminal, or whose value something needs, is left alone. `pprint` and
    `sys.stdout.write` count as prints.
    """

    code = "DYN301"
    safety = Safety.SAFE
    nodes = (ast.Expr, ast.Call)
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
        yield from logging_finding(self, node, context, is_print)


def logging_finding(
    rule: Rule, node: Any, context: FileContext, is_one: Callable[..., bool]
) -> Any:
    """The finding for a statement of such calls, or for one of them that stands in an expression;
    `is_one(node, context)` knows them."""
    if isinstance(node, ast.Call):
        if is_one(node, context) and used_call(node, context):
            yield context.finding(rule, node, kept="it stands in an expression, which needs it")
    elif tells(node.value, context) and any(is_one(n, context) for n in ast.walk(node)):
        yield tell(rule, node, context, logging_statements(is_one, context))


def tell(rule: Rule, node: ast.Expr, context: FileContext, accept: Callable[..., Any]) -> Finding:
    """The finding for a statement that tells something; a run of them (and an `if` with nothing
    else in it) is guarded as one."""
    if not effect_free(node, context):
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
