"""DYN106: a Python bool made of tensors."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from ....rewriter.transforms.condition import closeness
from ..call_rule import CallRule
from .host_read import in_test, is_logged

if TYPE_CHECKING:
    from ...analysis.file_context import FileContext
    from ...analysis.findings import Finding


class TruthFunction(CallRule):
    """
    `torch.equal`, `torch.allclose` and `torch.is_nonzero` give a Python bool: the tensors are read
    on the host. `(a == b).all()` and `torch.isclose(a, b).all()` give a tensor, and `torch.where`
    takes it.
    """

    code = "DYN106"
    names = frozenset(["torch.equal", "torch.allclose", "torch.is_nonzero"])
    methods = frozenset(["equal", "allclose", "is_nonzero"])
    before = """
import torch


@torch.compile
def step(x: torch.Tensor, y: torch.Tensor):
    if torch.equal(x, y):
        return x
    return x + y
"""

    def check(self, node: Any, context: FileContext) -> Iterable[Finding]:
        method = isinstance(node.func, ast.Attribute) and node.func.attr in self.methods
        if closeness(node, context) and in_test(node, context):
            return
        if not method or not context.kind(node.func.value).is_tensor:
            yield from super().check(node, context)
        elif not is_logged(node, context):
            yield context.finding(self, node, f"{self.message}: `.{node.func.attr}()`")
