"""What becomes of a loop that a tensor's value leaves early."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Any

from ....rewriter.source.intents import insert_before, wrap
from ....rewriter.source.spans import Safety
from ....rewriter.transforms.condition import Condition, condition
from ....rewriter.transforms.predication.path import stored
from ....rewriter.transforms.predication.predicated_values import PredicatedValues
from ....rewriter.transforms.tensor_if import is_elif
from ..effects.compile_guards import only_logs

if TYPE_CHECKING:
    from ....rewriter.source.spans import Fix
    from ...analysis.file_context import FileContext


_ON = (
    "compiled code takes every turn of the loop: what eager leaves alone after the turn that it"
    " leaves at goes on to change, or to grow"
)
_ALL = (
    "every turn of the loop is taken, in eager too: what later turns compute may raise, draws and"
    " writes, and their parameters get zero gradients; all turns must return one shape"
)


def left_early(node: ast.If, context: FileContext) -> Fix | None:
    """The Fix for `if t: break` and `if t: return value` in a loop; None for others."""
    loop = context.parent(node)
    inside = isinstance(loop, ast.For) and node in loop.body and not node.orelse
    if not inside or is_elif(node, context.source) or not node.body:
        return None
    *before, last = node.body
    if isinstance(last, ast.Break) and all(only_logs(s, context) for s in before):
        return None if loop.orelse else _stays(node, context)
    if isinstance(last, ast.Return) and not before and last.value is not None:
        return _chosen_later(node, loop, last.value, context)
    return None


def _sized_by_data(results: tuple[ast.expr, ...], values: PredicatedValues) -> bool:
    """Whether data says how many rows one of `results` has, or what it is computed of."""
    function = values.context.function(results[0]).node
    stores = [n for n in ast.walk(function) if isinstance(n, (ast.Assign, ast.AugAssign))]
    todo, seen = list(results), set()
    while todo:
        one = todo.pop()
        if values.rows(one):
            return True
        names = {n.id for n in ast.walk(one) if isinstance(n, ast.Name)} - seen
        seen |= names
        todo += [s.value for s in stores if stored([s]) & names]
    return False


def _stays(node: ast.If, context: FileContext) -> Fix | None:
    found = context.torch(node)
    if found is None:
        return None
    head = f"if not {found[0]}.compiler.is_compiling():"
    edit: Any = wrap(context.source, [node], head)
    return context.fix(
        "leave the loop in eager only", edit, safety=Safety.UNSAFE, why=_ON, imports=found[1]
    )


def _chosen_later(node: ast.If, loop: ast.For, value: ast.expr, context: FileContext) -> Fix | None:
    """The first value that eager would have returned is kept, and returned behind the loop."""
    test, found, source = condition(node.test, context), context.torch(node), context.source
    block, index = context.block(loop)
    after = block[index + 1 : index + 2]
    ends = bool(after) and isinstance(after[0], ast.Return) and after[0].value is not None
    if not isinstance(test, Condition) or found is None or loop.orelse or not ends:
        return None
    exits = [n for n in ast.walk(loop) if isinstance(n, (ast.Break, ast.Return, ast.Yield))]
    indents = [source.indent_of(s) for s in (node, loop, after[0])]
    if len(exits) != 1 or None in indents or not context.kind(value).is_tensor:
        return None
    torch = found[0]
    if _sized_by_data((value, after[0].value), PredicatedValues(context, torch)):
        return None
    left = context.fresh_name(node, "left", "has_left")
    kept = context.fresh_name(node, "returned", "first_returned")
    shown = f"{torch}.logical_not({test.text})" if test.negated else test.text
    given = context.segment(value)
    turn = [
        f"{kept} = {given} if {left} is None else {torch}.where({left}, {kept}, {given})",
        f"{left} = {shown} if {left} is None else {torch}.logical_or({left}, {shown})",
    ]
    last = context.operand(after[0].value)
    edits = [
        insert_before(source, loop, f"{left} = {kept} = None"),
        context.replacement(node, f"{source.newline}{indents[0]}".join(turn)),
        context.replacement(
            after[0].value, f"{last} if {left} is None else {torch}.where({left}, {kept}, {last})"
        ),
    ]
    if context.lost_comments(*source.span(node)):
        return None
    return context.fix(
        "return behind the loop", *edits, safety=Safety.UNSAFE, why=_ALL, imports=found[1]
    )
