"""DYN502: a branch on a size. DYN501 and DYN503 to DYN505: shapes that depend on data."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from ....rewriter.source.spans import Safety
from ..base import Rule

if TYPE_CHECKING:
    from ....rewriter.source.spans import Fix
    from ...analysis.file_context import FileContext
    from ...analysis.findings import Finding


class ShapeBranch(Rule):
    """
    A branch on a size is decided while tracing: no break, but the size becomes a guard, and every
    new size on the other side is a new graph. Mark the dimension dynamic and keep the branch
    (`torch._dynamo.mark_dynamic(x, 1)`, `torch.compile(dynamic=True)`), or choose between two
    modules when they are built. Where both sides are the same code, the branch itself can go:
    unsafe, for its test may raise.
    """

    code = "DYN502"
    whole_since = "2.13"
    safety = Safety.UNSAFE
    nodes = (ast.If,)
    before = """
import torch


@torch.compile
def step(x: torch.Tensor):
    if x.shape[1] == 16:
        return torch.relu(x)
    else:
        return torch.relu(x)
"""
    after = """
import torch


@torch.compile
def step(x: torch.Tensor):
    return torch.relu(x)
"""

    def check(self, node: Any, context: FileContext) -> Iterable[Finding]:
        test = node.test
        equal = (
            isinstance(test, ast.Compare)
            and len(test.ops) == 1
            and isinstance(test.ops[0], (ast.Eq, ast.NotEq))
        )
        if (
            not equal
            or context.kind(test).cls != "size"
            or _only_checks(node.body)
            or not node.orelse
        ):
            return
        sides = [context.kind(test.left), context.kind(test.comparators[0])]
        if all(s.what == "size" for s in sides) or any(s.cls == "shape" for s in sides):
            return
        fix = self._collapse(node, context)
        yield context.finding(self, test, fix=fix, kept="" if fix else "the sides differ")

    def _collapse(self, node: ast.If, context: FileContext) -> Fix | None:
        same = [ast.dump(s) for s in node.body] == [ast.dump(s) for s in node.orelse]
        if not same or len(node.body) != 1 or context.source.indent_of(node) is None:
            return None
        why = "the test no longer runs, and a tensor of fewer dimensions no longer raises there"
        edit = context.replacement(node, context.segment(node.body[0]))
        return context.fix("keep the one side", edit, safety=Safety.UNSAFE, why=why)


def _only_checks(body: list[ast.stmt]) -> bool:
    return all(isinstance(s, (ast.Raise, ast.Pass)) for s in body)
