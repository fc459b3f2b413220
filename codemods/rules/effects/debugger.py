"""DYN304: a debugger stop in captured code."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from ....rewriter.source.intents import delete_statement
from ....rewriter.source.spans import Safety
from ..base import Rule

if TYPE_CHECKING:
    from ...analysis.file_context import FileContext
    from ...analysis.findings import Finding


_STOPS = frozenset(
    [
        "breakpoint",
        "pdb.set_trace",
        "ipdb.set_trace",
        "pudb.set_trace",
        "torch.distributed.breakpoint",
    ]
)


class Debugger(Rule):
    """
    A stop that was left in breaks the graph, and stops the program. The fix removes it; since eager
    no longer stops there, it is unsafe.
    """

    code = "DYN304"
    safety = Safety.UNSAFE
    nodes = (ast.Expr,)
    before = """
import torch


@torch.compile
def step(x: torch.Tensor):
    breakpoint()
    return torch.relu(x)
"""
    after = """
import torch


@torch.compile
def step(x: torch.Tensor):
    return torch.relu(x)
"""

    def check(self, node: Any, context: FileContext) -> Iterable[Finding]:
        call = node.value
        if isinstance(call, ast.Call) and context.resolve(call.func) in _STOPS:
            edit = delete_statement(context.source, node)
            why = "eager no longer stops here"
            yield context.finding(
                self, node, fix=context.fix("remove it", edit, safety=Safety.UNSAFE, why=why)
            )
