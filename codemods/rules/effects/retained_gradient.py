"""DYN310: the gradient of an intermediate tensor is kept with `retain_grad()`."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from ....rewriter.source.spans import Safety
from ..base import Rule
from .compile_guards import effect_free, guard, run_of

if TYPE_CHECKING:
    from ...analysis.file_context import FileContext
    from ...analysis.findings import Finding


class RetainedGradient(Rule):
    """
    `.retain_grad()` asks autograd to fill `.grad` of an intermediate tensor. AOTAutograd makes one
    node of the whole graph, in which that tensor does not exist, so the graph breaks. The fix keeps
    the call for eager. Compiled code then leaves `.grad` empty: unsafe.
    """

    code = "DYN310"
    safety = Safety.UNSAFE
    nodes = (ast.Expr,)
    before = """
import torch


@torch.compile
def step(x: torch.Tensor):
    y = torch.relu(x)
    y.retain_grad()
    return y * 2
"""
    after = """
import torch


@torch.compile
def step(x: torch.Tensor):
    y = torch.relu(x)
    if not torch.compiler.is_compiling():
        y.retain_grad()
    return y * 2
"""

    def check(self, node: Any, context: FileContext) -> Iterable[Finding]:
        def retains(statement: ast.stmt) -> bool:
            return _retains(statement, context)

        if retains(node):
            why = "compiled code leaves `.grad` empty"
            fix = guard(run_of(node, context, retains), context, 0, why)
            yield context.finding(self, node, fix=fix)


def _retains(statement: ast.stmt, context: FileContext) -> bool:
    call = statement.value if isinstance(statement, ast.Expr) else None
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
        return False
    owner = call.func.value
    kept = call.func.attr == "retain_grad" and context.kind(owner).is_tensor
    return kept and effect_free(owner, context)
