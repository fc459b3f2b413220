"""DYN211: `and`, `or` and `not` of tensors, where the value is kept."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from ....rewriter.source.spans import Refusal, Safety, hidden
from ....rewriter.transforms.condition import Condition, condition, host_read
from ....rewriter.transforms.deferred_read import deferred
from ..base import Rule
from ..host.host_read import is_logged

if TYPE_CHECKING:
    from ...analysis.file_context import FileContext
    from ...analysis.findings import Finding


_WHY = "the value becomes a bool tensor, and every operand is evaluated"
_SEVERAL = "a tensor of no or several elements raised an error, and gives as many bools"
_TESTS = (ast.If, ast.IfExp, ast.While, ast.Assert)


class BoolOperator(Rule):
    """
    `not t`, and `a and b` or `a or b` of a tensor `a`, ask for the truth of a tensor on the host,
    also where no branch follows. `torch.logical_not`, `logical_and` and `logical_or` give a bool
    tensor: unsafe, for `not` gives a Python bool, `and` and `or` one of their operands, and the
    second operand is evaluated in any case, and a tensor of no or several elements raises no error.
    A tensor in the last place alone (`flag and t`) is not asked.
    """

    code = "DYN211"
    safety = Safety.UNSAFE
    nodes = (ast.BoolOp, ast.UnaryOp)
    before = """
import torch


@torch.compile
def step(x: torch.Tensor):
    done = not (x > 0).all()
    return torch.relu(x), done
"""
    after = """
import torch


@torch.compile
def step(x: torch.Tensor):
    done = torch.logical_not((x > 0).all())
    return torch.relu(x), done
"""

    def check(self, node: Any, context: FileContext) -> Iterable[Finding]:
        if not _asks(node, context) or _inside(node, context) or is_logged(node, context):
            return
        later = deferred(node, context) if isinstance(node, ast.UnaryOp) else None
        if later is not None:
            yield context.finding(self, node, fix=later)
            return
        test, found = condition(node, context), context.torch(node)
        commented = context.lost_comments(*context.source.span(node))
        if not isinstance(test, Condition) or found is None or commented:
            other = Refusal("a comment stands in it") if commented else hidden()
            refusal = Refusal(test) if isinstance(test, str) else other
            yield context.finding(self, node, fix=refusal)
            return
        text = f"{found[0]}.logical_not({test.text})" if test.negated else test.text
        why = "; ".join([_WHY, *sorted(_doubts(node, context))])
        edit = context.replacement(node, text)
        fix = context.fix(
            "use the operator on tensors", edit, safety=Safety.UNSAFE, why=why, imports=found[1]
        )
        yield context.finding(self, node, fix=fix)


def _asks(node: ast.expr, context: FileContext) -> bool:
    """Whether the truth of a tensor is needed, and no `.item()` or the like (of which other rules
    speak) gives it."""
    return context.once(_needs_truth, node) and not context.once(_reads, node)


def _needs_truth(node: ast.expr, context: FileContext) -> bool:
    if isinstance(node, ast.UnaryOp):
        return isinstance(node.op, ast.Not) and _truth(node.operand, context)
    return any(_truth(n, context) for n in node.values[:-1])


def _reads(node: ast.AST, context: FileContext) -> bool:
    """Whether a host read stands in an expression."""
    inner = (context.once(_reads, n) for n in ast.iter_child_nodes(node))
    return host_read(node, context) is not None or any(inner)


def _doubts(node: ast.expr, context: FileContext) -> set[Any]:
    """What may differ in the operands that are no `and`, `or` or `not` themselves."""
    if isinstance(node, ast.BoolOp):
        return set().union(*(_doubts(n, context) for n in node.values))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        return _doubts(node.operand, context)
    test = condition(node, context)
    return {_SEVERAL} if isinstance(test, Condition) and test.doubt else set()


def _truth(node: ast.expr, context: FileContext) -> bool:
    kind = context.kind(node)
    if isinstance(node, (ast.BoolOp, ast.UnaryOp)) and not kind.is_tensor:
        return _asks(node, context)
    return kind.is_tensor and not kind.optional


def _inside(node: ast.expr, context: FileContext) -> bool:
    """Whether `node` stands in a test, or in an `and`, `or` or `not` around it, for which that is
    told."""
    while isinstance(node, ast.expr):
        parent = context.parent(node)
        if isinstance(parent, _TESTS) and parent.test is node:
            return True
        if isinstance(parent, ast.comprehension) and node in parent.ifs:
            return True
        outer = isinstance(parent, ast.BoolOp) or (
            isinstance(parent, ast.UnaryOp) and isinstance(parent.op, ast.Not)
        )
        if outer and _asks(parent, context):
            return True
        node = parent
    return False
