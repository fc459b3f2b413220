"""DYN205, DYN210: Python loops over tensors, and loops that accumulate."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from ....rewriter.analysis.kinds import NO_CONST, literal
from ....rewriter.analysis.name_scopes import rebindings
from ....rewriter.analysis.proofs import sees_names
from ....rewriter.source.spans import Safety
from ...analysis.findings import NOTE
from ..base import Rule

if TYPE_CHECKING:
    from ...analysis.file_context import FileContext
    from ...analysis.findings import Finding


class Accumulate(Rule):
    """
    A `for` over a known range that only adds to a tensor is unrolled while tracing: one graph, of
    as many additions. For integer tensors the sum of the range can be added at once, bit for bit
    the same: safe. Floating point rounds at every step, so such a loop is left as it is, with a
    note that it costs no graph break.
    """

    code = "DYN210"
    safety = Safety.SAFE
    nodes = (ast.For,)
    before = """
import torch


@torch.compile
def step(x: torch.Tensor):
    out = x.long()
    for i in range(5):
        out = out + i
    return out
"""
    after = """
import torch


@torch.compile
def step(x: torch.Tensor):
    out = x.long()
    out = out + 10
    return out
"""

    def check(self, node: Any, context: FileContext) -> Iterable[Finding]:
        numbers, target = _range(node, context), _accumulated(node)
        if numbers is None or target is None or not context.kind(target).is_tensor:
            return
        kind, tokens = context.kind(target), context.inference.tokens
        used = _loaded_after(node, context) or sees_names(context.function(node).node)
        exact = tokens.category(kind.dtype) == "int" and sum(numbers) <= 127 and numbers
        if not exact or used or node.orelse:
            kept = (
                "the additions round one by one: a single one would not give the same bits"
                if not exact
                else "the loop's variable is used later"
            )
            yield context.finding(self, node, kept=kept, level=NOTE)
            return
        edit = context.replacement(node, f"{target.id} = {target.id} + {sum(numbers)}")
        yield context.finding(self, node, fix=context.fix("add the sum at once", edit))


def _range(node: ast.For, context: FileContext) -> range | None:
    """The numbers of `range(<literals>)`, at most a thousand of them."""
    call = node.iter
    if not isinstance(call, ast.Call) or context.resolve(call.func) != "range" or call.keywords:
        return None
    values = [literal(a) for a in call.args]
    if (
        NO_CONST in values
        or not all(isinstance(v, int) for v in values)
        or not 1 <= len(values) <= 3
        or values[2:] == [0]
    ):
        return None
    numbers = range(*values)
    return numbers if len(numbers) <= 1000 else None


def _accumulated(node: ast.For) -> ast.Name | None:
    """The name of `name = name + i` where that is all that the loop does."""
    statement = node.body[0] if len(node.body) == 1 else None
    if (
        not isinstance(statement, ast.Assign)
        or not isinstance(node.target, ast.Name)
        or len(statement.targets) != 1
    ):
        return None
    target, value = statement.targets[0], statement.value
    if (
        not isinstance(target, ast.Name)
        or not isinstance(value, ast.BinOp)
        or not isinstance(value.op, ast.Add)
    ):
        return None
    names = [n.id if isinstance(n, ast.Name) else None for n in (value.left, value.right)]
    return (
        target
        if sorted(map(str, names)) == sorted([target.id, node.target.id]) and names[0] == target.id
        else None
    )


def _loaded_after(node: ast.For, context: FileContext) -> bool:
    function = context.function(node).node
    inside = set(ast.walk(node))
    name = node.target.id
    return name in rebindings(function).shared or any(
        isinstance(n, ast.Name) and n.id == name and isinstance(n.ctx, ast.Load) and n not in inside
        for n in ast.walk(function)
    )


class TensorFor(Rule):
    """
    A `for` over a tensor reads nothing on the host, but is unrolled: one copy of its body for every
    element of the first axis, and a new graph for another size. An operator on the whole tensor is
    one step. Reported as a note.
    """

    code = "DYN205"
    nodes = (ast.For,)
    before = """
import torch


@torch.compile
def step(x: torch.Tensor):
    total = torch.zeros(())
    for row in x:
        total = total + row.sum()
    return total
"""

    def check(self, node: Any, context: FileContext) -> Iterable[Finding]:
        if context.kind(node.iter).is_tensor:
            yield context.finding(self, node.iter, level=NOTE)
