"""DYN309: memory and devices are tidied in captured code."""

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


_DEVICE = (
    "empty_cache synchronize ipc_collect reset_peak_memory_stats reset_max_memory_allocated"
).split()
_CALLS = frozenset(
    ["gc.collect", "gc.enable", "gc.disable", "gc.freeze"]
    + [f"torch.{device}.{name}" for device in ("cuda", "xpu", "mps") for name in _DEVICE]
    + ["torch.accelerator.synchronize", "torch.accelerator.empty_cache"]
)


class Housekeeping(Rule):
    """
    A call that tidies memory, or waits for the device, breaks the graph; between the kernels of one
    graph there is nothing to tidy. The fix keeps it for eager: nothing there changes.
    """

    code = "DYN309"
    safety = Safety.SAFE
    nodes = (ast.Expr,)
    before = """
import gc

import torch


@torch.compile
def step(x: torch.Tensor):
    y = torch.relu(x)
    gc.collect()
    torch.cuda.empty_cache()
    return y * 2
"""
    after = """
import gc

import torch


@torch.compile
def step(x: torch.Tensor):
    y = torch.relu(x)
    if not torch.compiler.is_compiling():
        gc.collect()
        torch.cuda.empty_cache()
    return y * 2
"""

    def check(self, node: Any, context: FileContext) -> Iterable[Finding]:
        def tidies(statement: ast.stmt) -> bool:
            return _tidies(statement, context)

        if tidies(node):
            yield context.finding(self, node, fix=guard(run_of(node, context, tidies), context, 0))


def _tidies(statement: ast.stmt, context: FileContext) -> bool:
    call = statement.value if isinstance(statement, ast.Expr) else None
    if not isinstance(call, ast.Call) or context.resolve(call.func) not in _CALLS:
        return False
    return all(effect_free(given, context) for given in [*call.args, *call.keywords])
