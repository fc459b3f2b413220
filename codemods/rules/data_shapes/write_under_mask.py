"""DYN504: writes under a bool mask."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from ....rewriter.source.spans import Safety
from ....rewriter.transforms.masked_write import chosen
from ..base import Rule
from .masked_rows import added_rows

if TYPE_CHECKING:
    from ...analysis.file_context import FileContext
    from ...analysis.findings import Finding


class MaskedWrite(Rule):
    """
    `y[mask] = x[mask]` gathers as many elements as the mask has, then scatters them: a shape that
    depends on data. `y[...] = torch.where(mask, x, y)` writes the same values into the same tensor,
    where the mask has as many axes as `y`.

    It is safe where `x`, `y` and the mask surely have one shape and the right side is `x[mask]`
    alone. An expression is computed for every element instead of the chosen ones, which is unsafe:
    it may raise, or turn a gradient into NaN. A mask that may have fewer axes than `y` is given the
    missing ones. A tensor with a row for each chosen place (`y[mask] += rows`) is put in its places
    first, by `masked_scatter`, which is unsafe as well.
    """

    code = "DYN504"
    safety = Safety.SAFE
    nodes = (ast.Assign, ast.AugAssign)
    before = """
import torch


@torch.compile
def step(x: torch.Tensor):
    y = torch.relu(x)
    mask = y > 0
    y[mask] = x[mask]
    return y
"""
    after = """
import torch


@torch.compile
def step(x: torch.Tensor):
    y = torch.relu(x)
    mask = y > 0
    y[...] = torch.where(mask, x, y)
    return y
"""

    def check(self, node: Any, context: FileContext) -> Iterable[Finding]:
        rows = added_rows(node, context)
        if rows is not None:
            yield context.finding(self, node, fix=rows)
            return
        built = chosen(node, context)
        if built is None:
            return
        yield context.finding(self, node, fix=built)
