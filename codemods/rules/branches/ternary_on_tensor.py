"""DYN202: a tensor in the test of a conditional expression."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from ....rewriter.analysis.kinds import literal
from ....rewriter.source.spans import Fix, Safety
from ....rewriter.transforms.compiled import when_compiled
from ....rewriter.transforms.compiled.compiled_scalars import made_of_numbers
from ....rewriter.transforms.tensor_ternary import chosen
from ..base import Rule

if TYPE_CHECKING:
    from ...analysis.file_context import FileContext
    from ...analysis.findings import Finding


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

    def check(self, node: Any, context: FileContext) -> Iterable[Finding]:
        built = chosen(node, context)
        if built is None:
            return
        if not isinstance(built, Fix) or built.safety is not Safety.SAFE or context.supposes:
            numbers = all(isinstance(literal(n), (int, float)) for n in (node.body, node.orelse))
            make = made_of_numbers if numbers else when_compiled.made_of_expression
            compiled = make(node, context)
            if not numbers and not isinstance(compiled, Fix):
                compiled = make(node, context, loose=True)
            built = compiled if isinstance(compiled, Fix) else built
        yield context.finding(self, node.test, fix=built)
