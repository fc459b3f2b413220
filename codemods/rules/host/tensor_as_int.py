"""DYN105: a tensor used as a Python int."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from ....rewriter.analysis.kinds import MODULE, MODULES
from ...analysis.captured_walk import read_ahead
from ...analysis.implicit_ints import places
from ..base import Rule

if TYPE_CHECKING:
    from ...analysis.file_context import FileContext
    from ...analysis.findings import Finding


class ImplicitInt(Rule):
    """
    `range(t)`, `torch.arange(t)`, `x[:t]` and sizes made of a tensor read its value to get a Python
    int. Where the number is an input of the compiled code, pass it as an int; where it bounds the
    work, compute for the largest size and mask. Where it depends on inputs alone, a traced run
    shows it, and DYN110 reads it ahead.
    """

    code = "DYN105"
    nodes = (ast.Call, ast.Subscript)
    takers = frozenset(["range", "torch.arange"])
    before = """
import torch


@torch.compile
def step(x: torch.Tensor):
    return torch.arange((x > 0).sum()) + 1
"""

    def check(self, node: Any, context: FileContext) -> Iterable[Finding]:
        if isinstance(node, ast.Call) and context.kind(node.func).what in (MODULE, MODULES):
            return  # a submodule that is named like a tensor's method
        taken = isinstance(node, ast.Call) and context.resolve(node.func) in self.takers
        for number in node.args if taken else places(context.resolve, node):
            is_ahead = isinstance(number, ast.IfExp) and read_ahead(
                number.test
            )  # an int, but where it is not
            if context.kind(number).is_tensor and not is_ahead:
                yield context.finding(self, number)
