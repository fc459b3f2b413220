"""DYN202: a tensor in the test of a conditional expression."""

import ast

from ....rewriter.edits.spans import Safety
from ....rewriter.patterns.condition import condition
from ....rewriter.patterns.two_sides import Chooser
from ..base import Rule


class TensorTernary(Rule):
    """
    `a if t else b` asks for the truth of `t` on the host. `torch.where` selects on the device; it
    is safe where both sides are plain, as for DYN201. Sides that are not plain become `torch.cond`:
    unsafe.
    """

    code = "DYN202"
    safety = Safety.SAFE
    nodes = (ast.IfExp,)
    before = """
import torch


@torch.compile
def step(x: torch.Tensor):
    y = torch.sigmoid(x)
    return y * 2 if y.mean() > 0.25 else y
"""
    after = """
import torch


@torch.compile
def step(x: torch.Tensor):
    y = torch.sigmoid(x)
    return torch.where(y.mean() > 0.25, y * 2, y)
"""

    def check(self, node, context):
        test = condition(node.test, context)
        if test is None:
            return
        built = test if isinstance(test, str) else self._fix(node, context, test)
        fix, kept = (None, built) if isinstance(built, str) else (built, "")
        yield context.finding(self, node.test, fix=fix, kept=kept)

    def _fix(self, node, context, test):
        choice = Chooser(context, node).choose(
            test, node.body, node.orelse, statement=False, targets=_targets(node, context)
        )
        if isinstance(choice, str):
            return choice
        edit = context.replacement(node, choice.text)
        return context.fix(
            f"use torch.{choice.form}",
            edit,
            safety=choice.safety,
            why=choice.why,
            imports=choice.imports,
        )


def _targets(node, context):
    """The names that are bound to the very value of a conditional expression."""
    parent = context.parent(node)
    targets = parent.targets if isinstance(parent, ast.Assign) else []
    return {t.id for t in targets if isinstance(t, ast.Name)}
