"""DYN201: a tensor in the test of an `if` statement."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ....rewriter.source.spans import Fix, Refusal, Safety
from ....rewriter.transforms.compiled import when_compiled
from ....rewriter.transforms.condition import condition
from ....rewriter.transforms.if_conversion import Predicated
from ....rewriter.transforms.predication.predicated_function import is_path, predicated
from ....rewriter.transforms.tensor_if import chosen, is_elif
from ..base import Rule
from ..effects.compile_guards import only_logging, raised
from .early_exit import left_early
from .exception_flow import decides_flow
from .kept_state import kept_in_eager

if TYPE_CHECKING:
    from ...analysis.definitions import Function
    from ...analysis.file_context import FileContext
    from ...analysis.findings import Finding


_MOST = 64
_LONG = Refusal(f"its chain has more than {_MOST} branches")


class TensorIf(Rule):
    """
    A compiler that traces cannot follow a branch on a value that it does not know yet, so the graph
    breaks in front of the `if`. `torch.where` computes both sides and selects: the fix is safe
    where both sides are plain (they cannot raise, draw random numbers or write, agree in dtype,
    shape and the tensors that get gradients). Calls that both sides make are made once, before.
    Other sides need `torch.cond`, which runs one of them but asks for equal shapes and dtypes:
    unsafe.
    """

    code = "DYN201"
    safety = Safety.SAFE
    nodes = (ast.If,)
    before = """
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.h = nn.Linear(8, 8)

    def forward(self, x):
        if torch.rand(1) > 0.5:
            return self.h(x) + 1
        else:
            return self.h(x) - 1
"""
    after = """
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.h = nn.Linear(8, 8)

    def forward(self, x):
        condition = torch.rand(1) > 0.5
        h = self.h(x)
        return torch.where(condition.to(h.device), h + 1, h - 1)
"""

    def check(self, node: Any, context: FileContext) -> Iterable[Finding]:
        undecided = condition(node.test, context) is None
        if undecided or raised(node.body, context) or only_logging(node.body, context):
            return
        if _is_long(node, context):
            yield context.finding(self, node.test, fix=_LONG)
            return
        built = chosen(node, context)
        if not isinstance(built, Fix) or built.safety is not Safety.SAFE or context.supposes:
            compiled = _compiled(_head(node, context), context)
            built = compiled if isinstance(compiled, Fix) else built
        if isinstance(built, Refusal):
            other = Predicated(node, context).fix() or left_early(node, context)
            built = other or kept_in_eager(node, context) or built
        yield context.finding(self, node.test, fix=built)

    def conclude(self, context: FileContext, found: list[Finding]) -> list[Finding]:
        """In functions where choices by tensors have neither a safe form nor one that stands beside
        the statement, all of them get one path for compiled code."""
        for function in context.program.functions:
            inside = [f for f in found if _decides_in(f, function, context)]
            if any(is_path(s) for s in function.node.body):  # its numbers are what eager returns
                kept = {id(f) for f in inside if f.fix and f.fix.title == _LAST[-1]}
                found = [f.without_fix(_NUMBER) if id(f) in kept else f for f in found]
                continue
            if not any(_open(f) for f in inside) or any(_is_safe(f) for f in inside):
                continue
            fix = _predicated(function.node, context)
            if isinstance(fix, Fix):
                better = {id(f) for f in inside if not (f.fix and f.fix.asked)}
                found = [replace(f, fix=fix, kept="") if id(f) in better else f for f in found]
        return found


_CHOICES = frozenset("DYN201 DYN202 DYN203 DYN204 DYN206 DYN208 DYN209 DYN211".split())
_LAST = (  # fixes that write in eager, change a type there, or let a loop go on
    "write under the condition",
    "return behind the loop",
    "leave the loop in eager only",
    "keep the tensor",
)
_NUMBER = "eager has a number there"
_READS = frozenset("DYN101 DYN102 DYN103 DYN105 DYN501 DYN504 DYN701".split())


def _decides_in(finding: Finding, function: Function, context: FileContext) -> bool:
    """Whether a finding is about a choice of the function itself."""
    node = function.node
    if finding.code not in _CHOICES | _READS or not node.lineno <= finding.line <= node.end_lineno:
        return False
    inner = [f.node for f in context.program.functions if f.outer is function]
    return not any(n.lineno <= finding.line <= n.end_lineno for n in inner)


def _open(finding: Finding) -> bool:
    """Whether there is no fix, or one that changes more than a path for compiled code does."""
    return finding.fix is None or finding.fix.needs_next or finding.fix.title in _LAST


def _is_safe(finding: Finding) -> bool:
    return finding.fix is not None and finding.fix.safety is Safety.SAFE


def _is_long(node: ast.If, context: FileContext) -> bool:
    """Whether more branches stand around it than one expression should choose from: each of them
    looks at all that follow."""
    number, top = 0, node
    while number < _MOST and is_elif(top, context.source):
        top, number = context.parent(top), number + 1
    while number < _MOST and len(node.orelse) == 1 and isinstance(node.orelse[0], ast.If):
        node, number = node.orelse[0], number + 1
    return number == _MOST


def _compiled(node: ast.If, context: FileContext) -> Fix | Refusal | None:
    """The form for compiled code; not yet where an `elif` can be fixed for good."""
    inner = node
    while len(inner.orelse) == 1 and isinstance(inner.orelse[0], ast.If):
        inner = inner.orelse[0]
        built = chosen(inner, context)
        if isinstance(built, Fix) and built.safety is Safety.SAFE and not context.supposes:
            return None
    made = when_compiled.made(node, context)
    return made if isinstance(made, Fix) else when_compiled.made(node, context, loose=True)


def _head(node: ast.If, context: FileContext) -> ast.If:
    """The `if` that an `elif` belongs to."""
    while is_elif(node, context.source):
        node = context.parent(node)
    return node


def _predicated(function: Any, context: FileContext) -> Fix | Refusal:
    """The Fix of predicates, unless the function branches by an exception that is handled."""
    tests = (n for n in ast.walk(function) if isinstance(n, ast.If))
    raising = (n for n in tests if isinstance(n.body[-1], ast.Raise))
    if any(condition(n.test, context) is not None and decides_flow(n, context) for n in raising):
        return Refusal("an exception that it raises is handled, and the program goes on")
    return predicated(function, context)
