"""DYN204: a `while` on a tensor."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from ....rewriter.analysis.call_effects import MAY_DRAW, tensor_work
from ....rewriter.source.spans import Refusal, Safety, hidden
from ....rewriter.transforms.condition import Condition, condition, host_read
from ..base import Rule

if TYPE_CHECKING:
    from ...analysis.file_context import FileContext
    from ...analysis.findings import Finding


_PURE = (ast.Assign, ast.Pass)


class TensorWhile(Rule):
    """
    The number of turns depends on data: the graph breaks at every test. `torch.while_loop` keeps
    the loop in the graph: a test and a turn, as functions of the tensors that the turns change,
    which must keep their shape and dtype. Loops whose turns only assign tensors to names are
    rewritten: unsafe, for a changing shape or dtype raises there.
    """

    code = "DYN204"
    safety = Safety.UNSAFE
    nodes = (ast.While,)
    before = """
import torch


@torch.compile
def step(x: torch.Tensor):
    while x.sum() > 1:
        x = x / 2
    return x
"""
    after = """
import torch


@torch.compile
def step(x: torch.Tensor):
    def goes_on(x):
        return x.sum() > 1

    def turn(x):
        x = x / 2
        return (x,)

    (x,) = torch.while_loop(goes_on, turn, (x,))
    return x
"""

    def check(self, node: Any, context: FileContext) -> Iterable[Finding]:
        test = condition(node.test, context)
        if test is None:
            return
        built = Refusal(test) if isinstance(test, str) else self._fix(node, test, context)
        yield context.finding(self, node.test, fix=built)

    def _fix(self, node: ast.While, test: Condition, context: FileContext) -> Any:
        found, indent = context.torch(node), context.source.indent_of(node)
        if found is None:
            return hidden()
        if indent is None or node.orelse:
            return Refusal("the loop has an else, or shares its line with others")
        carried = _carried(node, context)
        if isinstance(carried, Refusal):
            return carried
        assert isinstance(test, Condition)
        text = self._text(node, test, carried, found[0], indent, context)
        if text is None:
            return Refusal(
                "a string over several lines, or a shared line, stands in the way of indenting"
            )
        why = "a turn that changes a tensor's shape or dtype raises in torch.while_loop"
        if test.doubt:
            why = f"{test.doubt}; {why}"
        return context.fix(
            "use torch.while_loop",
            context.replacement(node, text),
            safety=Safety.UNSAFE,
            why=why,
            imports=found[1],
        )

    def _text(
        self,
        node: ast.While,
        test: Condition,
        carried: Any,
        torch: str,
        indent: str,
        context: FileContext,
    ) -> str | None:
        source, unit = context.source, context.source.indent_unit()
        start, end = source.starts[node.body[0].lineno - 1], source.span(node)[1]
        inner = source.indent_of(node.body[0])
        rest = source.line(node.end_lineno)[
            source.column(node.end_lineno, node.end_col_offset) - 1 :
        ]
        if inner != indent + unit or source.has_long_string(start, end) or rest.strip():
            return None
        names = ", ".join(carried)
        group = f"({names},)" if len(carried) == 1 else f"({names})"
        bound = f"({names},)" if len(carried) == 1 else names
        goes_on = context.fresh_name(node, "goes_on", "still_true")
        turn = context.fresh_name(node, "turn", "one_turn")
        shown = f"{torch}.logical_not({test.text})" if test.negated else test.text
        newline = source.newline
        body = source.text[start:end].rstrip("\r\n")
        lines = [
            f"def {goes_on}({names}):",
            f"{indent}{unit}return {shown}",
            "",
            f"{indent}def {turn}({names}):",
            body,
            f"{inner}return {group}",
            "",
            f"{indent}{bound} = {torch}.while_loop({goes_on}, {turn}, {group})",
        ]
        return newline.join(lines)


def _carried(node: ast.While, context: FileContext) -> Any:
    """The names that the loop's turns change, in order; or the Refusal."""
    if not all(isinstance(s, _PURE) for s in node.body):
        return Refusal("its turns do more than assign")
    if any(
        isinstance(n, (ast.Await, ast.Yield, ast.YieldFrom, ast.NamedExpr, ast.Lambda))
        for n in ast.walk(node)
    ):
        return Refusal("its turns do more than assign")
    stored = {}
    for statement in node.body:
        for target in getattr(statement, "targets", ()):
            if not isinstance(target, ast.Name):
                return Refusal("its turns store in more than names")
            if not context.kind(statement.value).is_tensor:
                return Refusal(f"`{target.id}` is not known to be a tensor")
            stored.setdefault(target.id)
    before = context.inference.at_branch.get(node, {})
    carried = [name for name in stored if name in before or _read_outside(name, node, context)]
    for name in carried:
        kind = before.get(name)
        if kind is None or not kind.is_tensor or kind.optional:
            return Refusal(f"`{name}` is not known to be a tensor before the loop")
    return _why_not_pure(node, context) or carried or Refusal("its turns change nothing")


def _read_outside(name: str, loop: ast.While, context: FileContext) -> bool:
    """Whether a name that the loop binds is read outside it, or in its test."""
    inside = {n for s in loop.body for n in ast.walk(s)}
    every = (
        n for n in ast.walk(context.function(loop).node) if isinstance(n, ast.Name) and n.id == name
    )
    return any(isinstance(n.ctx, ast.Load) and n not in inside for n in every)


def _why_not_pure(node: ast.While, context: FileContext) -> Any:
    """The Refusal of a turn that may do more than compute: calls other than those of torch and of
    tensors' methods."""
    tested = set(ast.walk(node.test))
    for call in (n for n in ast.walk(node) if isinstance(n, ast.Call)):
        read = host_read(call, context) is not None and call in tested
        if not read and not tensor_work(call, context, MAY_DRAW):
            return Refusal(f"`{' '.join(context.segment(call).split())}` may do more than compute")
    return None
