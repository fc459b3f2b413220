"""DYN507: a tensor is rolled by a number that Python's `random` draws."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from ....rewriter.analysis.tree_walk import only_value
from ....rewriter.source.intents import insert_before
from ....rewriter.source.spans import Refusal, Safety, hidden
from ..base import Rule

if TYPE_CHECKING:
    from ...analysis.file_context import FileContext
    from ...analysis.findings import Finding


_DRAWS = ("random.randint", "random.randrange")


class DrawnRoll(Rule):
    """
    Dynamo draws from Python's `random` at every call, outside the graph, and hands the number in;
    `torch.roll` asks for a plain int, though, and the graph breaks. Positions counted from the
    number, `(arange(n) - shift) % n`, pick the same elements in the graph. Eager rolls as before
    (whose result may lie in memory in another order). Safe where it is surely a tensor that has the
    axis: `index_select` copies the same values, and their gradients go back to the same places.
    """

    code = "DYN507"
    safety = Safety.SAFE
    nodes = (ast.Call,)
    before = """
import random

import torch


@torch.compile
def jitter(x: torch.Tensor):
    shift = random.randint(-2, 2)
    return torch.roll(x, shifts=shift, dims=2)
"""
    after = """
import random

import torch


@torch.compile
def jitter(x: torch.Tensor):
    shift = random.randint(-2, 2)
    return (
        x.index_select(2, (torch.arange(x.size(2), device=x.device) - shift) % x.size(2))
        if torch.compiler.is_compiling()
        else torch.roll(x, shifts=shift, dims=2)
    )
"""

    def check(self, node: Any, context: FileContext) -> Iterable[Finding]:
        roll = _Roll.of(node, context)
        if roll is None or not any(_drawn(s, context) for s in roll.shifts):
            return
        built = roll.fix()
        yield context.finding(self, node, fix=built)


def _drawn(node: ast.expr, context: FileContext) -> bool:
    """Whether a shift is made of a number that Python's generator draws: here, or where its name is
    bound, once."""
    for part in ast.walk(node):
        if isinstance(part, ast.Call) and context.resolve(part.func) in _DRAWS:
            return True
        value = only_value(part, context) if isinstance(part, ast.Name) else None
        if isinstance(value, ast.Call) and context.resolve(value.func) in _DRAWS:
            return True
    return False


class _Roll:
    """`torch.roll(base, shifts, axes)`, with as many shifts as axes."""

    def __init__(
        self,
        node: ast.Call,
        context: FileContext,
        base: ast.expr,
        shifts: list[ast.expr],
        axes: list[ast.expr],
    ) -> None:
        self.node, self.context = node, context
        self.base, self.shifts, self.axes = base, shifts, axes

    @classmethod
    def of(cls, node: ast.Call, context: FileContext) -> _Roll | None:
        """The roll that a call is; None for other calls, and for those without axes."""
        method = isinstance(node.func, ast.Attribute) and node.func.attr == "roll"
        function = context.resolve(node.func) == "torch.roll"
        if not function and not (method and context.kind(node.func.value).is_tensor):
            return None
        given = dict(
            zip(
                ("input", "shifts", "dims"),
                [*([] if function else [node.func.value]), *node.args],
                strict=False,
            )
        )
        given.update({k.arg: k.value for k in node.keywords})
        if set(given) != {"input", "shifts", "dims"}:
            return None
        shifts, axes = _listed(given["shifts"]), _listed(given["dims"])
        plain = all(isinstance(getattr(a, "operand", a), ast.Constant) for a in axes)
        return (
            cls(node, context, given["input"], shifts, axes)
            if plain and len(shifts) == len(axes)
            else None
        )

    def fix(self) -> Any:
        """The Fix, or the Refusal."""
        context, found = self.context, self.context.torch(self.node)
        if found is None:
            return hidden()
        if len(self.shifts) > 1 and not all(
            isinstance(s, (ast.Name, ast.Constant)) for s in self.shifts
        ):
            return Refusal("its shifts are computed in the call")
        if not isinstance(self.base, ast.Name):
            return self._named()
        why = self._doubt()
        safety = Safety.UNSAFE if why else Safety.SAFE
        edit = context.replacement(self.node, self._text(found[0]))
        return context.fix("pick the positions", edit, safety=safety, why=why, imports=found[1])

    def _named(self) -> Any:
        """The tensor gets a name first, in a statement of its own."""
        context, statement = self.context, self.context.statement(self.node)
        indent = context.source.indent_of(statement)
        whole = isinstance(statement, (ast.Return, ast.Assign)) and statement.value is self.node
        if not whole or indent is None:
            return Refusal("the tensor has no name, and the call is a part of a larger expression")
        name = context.fresh_name(self.node, "rolled", "turned")
        named = f"{name} = {context.segment(self.base)}"
        edits = (
            insert_before(context.source, statement, named),
            context.replacement(self.base, name),
        )
        why = self._doubt()
        return context.fix(
            "name the tensor", *edits, safety=Safety.UNSAFE if why else Safety.SAFE, why=why
        )

    def _doubt(self) -> str:
        kind = self.context.kind(self.base)
        if not kind.is_tensor or kind.optional:
            return (
                f"`{' '.join(self.context.segment(self.base).split())}` is not known to be a tensor"
            )
        ends = any(self.context.segment(a) in ("0", "-1") for a in self.axes)
        return (
            "a tensor without axes would be rolled, and has no positions"
            if ends and not kind.least_rank()
            else ""
        )

    def _text(self, torch: str) -> str:
        base, text = self.base.id, self.base.id
        for shift, axis in zip(self.shifts, self.axes, strict=True):
            shown, at = self.context.operand(shift), self.context.segment(axis)
            positions = f"{torch}.arange({base}.size({at}), device={base}.device) - {shown}"
            text = f"{text}.index_select({at}, ({positions}) % {base}.size({at}))"
        rolled = self.context.segment(self.node)
        parts = [text, f"if {torch}.compiler.is_compiling()", f"else {rolled}"]
        source = self.context.source
        indent = source.indent_of(self.context.statement(self.node))
        if indent is None or source.newline in rolled:
            return f"({' '.join(parts)})"
        newline = f"{source.newline}{indent}"
        inner = "".join(f"{newline}{source.indent_unit()}{p}" for p in parts)
        return f"({inner}{newline})"


def _listed(node: ast.expr) -> list[ast.expr]:
    return node.elts if isinstance(node, (ast.Tuple, ast.List)) else [node]
