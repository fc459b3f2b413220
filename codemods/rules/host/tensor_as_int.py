"""DYN105: a tensor used as a Python int."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from ....rewriter.analysis.kinds import (
    LIST,
    MODULE,
    MODULES,
    SIZE,
    TENSOR,
    TENSORS,
    TUPLE,
    UNKNOWN,
)
from ...analysis.captured_walk import read_ahead
from ...analysis.implicit_ints import places
from ..base import Rule

if TYPE_CHECKING:
    from ...analysis.file_context import FileContext
    from ...analysis.findings import Finding


_LISTS = frozenset([LIST, MODULES, TENSORS, TUPLE])


class ImplicitInt(Rule):
    """
    `range(t)`, `torch.arange(t)`, `x[:t]` and sizes made of a tensor read its value to get a Python
    int. Where the number is an input of the compiled code, pass it as an int; where it bounds the
    work, compute for the largest size and mask. Where it depends on inputs alone, a traced run
    shows it, and DYN110 reads it ahead.
    """

    code = "DYN105"
    nodes = (ast.Call, ast.Subscript, ast.Compare)
    before = """
import torch


@torch.compile
def step(x: torch.Tensor):
    return torch.arange((x > 0).sum()) + 1
"""

    def check(self, node: Any, context: FileContext) -> Iterable[Finding]:
        if isinstance(node, ast.Call) and _is_own(node.func, context):
            return  # a submodule or a method that is named like a tensor's method
        counted = isinstance(node, ast.Call) and context.resolve(node.func) == "range"
        numbers = node.args if counted else places(context.resolve, node)
        for number in _compared(node, context) if isinstance(node, ast.Compare) else numbers:
            is_ahead = isinstance(number, ast.IfExp) and read_ahead(
                number.test
            )  # an int, but where it is not
            if context.kind(number).is_tensor and not is_ahead:
                yield context.finding(self, number)
        if isinstance(node, ast.Subscript):
            yield from (context.finding(self, part) for part in _picks(node, context))


def _compared(node: ast.Compare, context: FileContext) -> list[ast.expr]:
    """What stands in a list that is compared with another, or with a shape."""
    sides = [node.left, *node.comparators]
    others = [s for s in sides if context.kind(s).what in (LIST, TUPLE) or _is_shape(s, context)]
    rows = [s for s in sides if isinstance(s, (ast.List, ast.Tuple))]
    equal = all(isinstance(op, (ast.Eq, ast.NotEq)) for op in node.ops)
    return [n for row in rows for n in row.elts] if equal and len(others) > 1 else []


def _is_shape(node: ast.expr, context: FileContext) -> bool:
    return context.kind(node).what == SIZE and context.kind(node).cls == "shape"


def _is_own(func: ast.expr, context: FileContext) -> bool:
    if context.kind(func).what in (MODULE, MODULES):
        return True
    of = context.kind(func.value) if isinstance(func, ast.Attribute) else None
    named = context.resolve(func) or ""
    if of is None or named.startswith("torch."):
        return False
    return of.what not in (TENSOR, UNKNOWN) or of.owner is not None


def _picks(node: ast.Subscript, context: FileContext) -> list[ast.expr]:
    """The tensors that pick one item by their value: of a list, or along an axis."""
    base, tokens = context.kind(node.value), context.inference.tokens
    if base.what in _LISTS:
        return [node.slice] if context.kind(node.slice).is_tensor else []
    parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
    known = [(part, context.kind(part)) for part in parts] if base.is_tensor else []
    single = [p for p, k in known if k.is_tensor and k.rank == 0]
    return [p for p in single if tokens.category(context.kind(p).dtype) == "int"]
