"""DYN508: Python loops as long as an axis of a tensor."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ....lowering.opinfo import having
from ....rewriter.analysis.kinds import literal
from ....rewriter.analysis.torch_facts import SAME, SAME_FLOAT
from ....rewriter.source.intents import replace_statements
from ....rewriter.source.spans import Refusal, Safety
from ...analysis.findings import NOTE
from ..base import Rule

if TYPE_CHECKING:
    from ....rewriter.source.spans import Fix
    from ...analysis.file_context import FileContext
    from ...analysis.findings import Finding


# Of the operators that keep the shape: not elementwise, random, or an alias of what they are given.
_OTHERS = having("not_elementwise") | {"masked_fill", "detach", "contiguous", "positive"}
_UNARY = frozenset(n for n in (SAME | SAME_FLOAT) - _OTHERS if not n.endswith(("_", "_like")))
_SIMPLE = (ast.Add, ast.Sub, ast.Mult, ast.Div)
_KEPT = "its turns do more than elementwise work on rows that are stacked again"
_RESULT_SAVED = having("saves_result")
_WHY = (
    "the rows raise where there are none, or no such axis, and torch.stack makes a contiguous"
    " tensor; `exp` and the like may round otherwise"
)


@dataclass(frozen=True)
class AxisLoop:
    """A loop over an axis: its variable, the tensor (None: any that is indexed), the axis, and
    whether the variable is the row itself (`for row in x`) and not its index."""

    name: str
    tensor: ast.expr
    axis: int
    rows: bool = False


class SizeLoop(Rule):
    """
    A loop as long as an axis (`for i in range(x.size(0))`) is unrolled: a graph for each size, with
    as many copies of its body, and eager after eight of them. `mark_dynamic` does not help: it
    raises, since the loop makes the size a constant. An operator on the whole tensor, or
    `torch.func.vmap`, is one graph for every size.

    Rows that go through elementwise operators alone and are stacked again become those operators on
    the whole tensor. This is unsafe: `torch.stack` raises where there are no rows, and its result is
    contiguous. Where autograd saves an operator's result (`relu`, `exp`), `clone` keeps a later write
    in place from spoiling it. Other loops are noted.
    """

    code = "DYN508"
    safety = Safety.UNSAFE
    nodes = (ast.For, ast.Call)
    before = """
import torch


@torch.compile
def step(x: torch.Tensor):
    return torch.stack([torch.relu(x[i]) * 2 for i in range(x.size(0))])
"""
    after = """
import torch


@torch.compile
def step(x: torch.Tensor):
    return torch.relu(x) * 2
"""

    def check(self, node: Any, context: FileContext) -> Iterable[Finding]:
        if isinstance(node, ast.Call):
            yield from self._comprehension(node, context)
            return
        turns = _turns(node.target, node.iter, context)
        if turns is None:
            return
        built = _appended(node, turns, context)
        if built is not None:
            yield context.finding(self, node.iter, fix=built)
        elif not turns.rows and _uses_index(node.body, turns, context):
            yield context.finding(self, node.iter, kept=_KEPT, level=NOTE)

    def _comprehension(self, node: ast.Call, context: FileContext) -> Iterator[Any]:
        listed = node.args[0] if node.args else None
        if (
            not isinstance(listed, (ast.ListComp, ast.GeneratorExp))
            or context.resolve(node.func) != "torch.stack"
        ):
            return
        only = len(listed.generators) == 1 and not listed.generators[0].ifs
        turns = (
            _turns(listed.generators[0].target, listed.generators[0].iter, context)
            if only
            else None
        )
        if turns is None:
            return
        text = _whole(listed.elt, turns, context) if _stack_axis(node) == turns.axis else None
        if text is not None and context.lost_comments(*context.source.span(node)):
            yield context.finding(self, listed, kept="a comment stands in it")
        elif text is not None:
            text = _copied(text, listed.elt, node, context)
            wrapped = isinstance(listed.elt, (ast.BinOp, ast.UnaryOp)) and isinstance(
                context.parent(node), _TIGHT
            )
            edit = context.replacement(node, f"({text})" if wrapped else text)
            yield context.finding(self, listed, fix=_fix(context, edit))
        elif not turns.rows and _uses_index([listed.elt], turns, context):
            yield context.finding(self, listed, kept=_KEPT, level=NOTE)


_TIGHT = (ast.BinOp, ast.UnaryOp, ast.Attribute, ast.Subscript, ast.Compare, ast.Await, ast.Call)


def _copied(text: str, element: ast.expr, stack: Any, context: FileContext) -> str:
    """The source for all rows, with the copy that torch.stack makes where autograd keeps the
    result, which code after it could write in place."""
    saved = isinstance(element, ast.Call) and element.func.attr in _RESULT_SAVED
    consumed = isinstance(context.parent(stack), (ast.BinOp, ast.UnaryOp, ast.Compare))
    return f"{text}.clone()" if saved and not consumed else text


def _fix(context: FileContext, *edits: Any) -> Fix:
    return context.fix("work on the whole tensor", *edits, safety=Safety.UNSAFE, why=_WHY)


def _turns(target: ast.expr, iterated: ast.expr, context: FileContext) -> AxisLoop | None:
    """The Turns of a loop over `range(<an axis of a tensor>)` or over a tensor."""
    if not isinstance(target, ast.Name):
        return None
    if context.kind(iterated).is_tensor and not context.kind(iterated).optional:
        return AxisLoop(target.id, iterated, 0, rows=True)
    ranged = (
        isinstance(iterated, ast.Call)
        and context.resolve(iterated.func) == "range"
        and len(iterated.args) == 1
    )
    found = _axis(iterated.args[0], context) if ranged else None
    return AxisLoop(target.id, *found) if found else None


def _axis(node: ast.expr, context: FileContext) -> Any:
    """(tensor, axis) of `x.size(0)`, `x.shape[0]` or `len(x)`."""
    if (
        isinstance(node, ast.Subscript)
        and isinstance(node.value, ast.Attribute)
        and node.value.attr == "shape"
    ):
        tensor, axis = node.value.value, literal(node.slice)
    elif (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "size"
    ):
        tensor, axis = node.func.value, literal(node.args[0]) if len(node.args) == 1 else None
    elif isinstance(node, ast.Call) and context.resolve(node.func) == "len" and len(node.args) == 1:
        tensor, axis = node.args[0], 0
    else:
        return None
    known = isinstance(axis, int) and axis >= 0 and context.kind(tensor).is_tensor
    return (tensor, axis) if known else None


def _uses_index(body: list[ast.AST], turns: AxisLoop, context: FileContext) -> bool:
    """Whether the body indexes a tensor with the loop's variable."""
    parts = (n for s in body for n in ast.walk(s) if isinstance(n, ast.Subscript))
    return any(context.kind(p.value).is_tensor and _names(p.slice, turns.name) for p in parts)


def _names(node: ast.expr, name: str) -> list[ast.Name]:
    return [n for n in ast.walk(node) if isinstance(n, ast.Name) and n.id == name]


def _stack_axis(call: ast.Call) -> Any:
    given = (
        call.args[1]
        if len(call.args) == 2
        else next((k.value for k in call.keywords if k.arg == "dim"), None)
    )
    extra = len(call.args) > 2 or any(k.arg != "dim" for k in call.keywords)
    axis = 0 if given is None else literal(given)
    return None if extra or not isinstance(axis, int) else axis


_REPEATED = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp, ast.Lambda)


# The body for all rows at once


def _whole(node: ast.expr, turns: AxisLoop, context: FileContext) -> str | None:
    """The source of an expression of one row, for all rows; None where it is not elementwise. A row
    alone is no work."""
    rows = _rows(node, turns, context)
    if (
        not rows
        or not _plain(turns.tensor)
        or node in rows
        or len(_names(node, turns.name)) != len(rows)
        or not _pointwise(node, rows, context)
    ):
        return None
    return context.source.substituted(node, dict.fromkeys(rows, context.segment(turns.tensor)))


def _plain(node: Any) -> bool:
    """Whether a node is a chain of names: evaluated again, it is the same."""
    return isinstance(node, ast.Name) or (isinstance(node, ast.Attribute) and _plain(node.value))


def _rows(node: ast.expr, turns: AxisLoop, context: FileContext) -> Any:
    """The parts of an expression that are the row of this turn."""
    if turns.rows:
        return _names(node, turns.name)
    shown = ast.dump(turns.tensor)
    parts = (
        n for n in ast.walk(node) if isinstance(n, ast.Subscript) and ast.dump(n.value) == shown
    )
    return [p for p in parts if _selects(p.slice, turns)]


def _selects(index: ast.expr, turns: AxisLoop) -> bool:
    """Whether an index is `i` at the loop's axis, after as many whole axes."""
    parts = index.elts if isinstance(index, ast.Tuple) else [index]
    *before, last = parts
    whole = all(isinstance(p, ast.Slice) and not (p.lower or p.upper or p.step) for p in before)
    return (
        whole and len(before) == turns.axis and isinstance(last, ast.Name) and last.id == turns.name
    )


def _pointwise(node: ast.expr, rows: list[ast.expr], context: FileContext) -> bool:
    """Whether an expression does the same to each element of the rows."""
    if node in rows:
        return True
    if isinstance(node, ast.UnaryOp):
        return isinstance(node.op, ast.USub) and _pointwise(node.operand, rows, context)
    if isinstance(node, ast.BinOp):
        sides = [_pointwise(n, rows, context) for n in (node.left, node.right)]
        numbers = [_number(n, context) for n in (node.left, node.right)]
        return (
            isinstance(node.op, _SIMPLE)
            and any(sides)
            and all(s or n for s, n in zip(sides, numbers, strict=True))
        )
    return isinstance(node, ast.Call) and _pointwise_call(node, rows, context)


def _pointwise_call(call: ast.Call, rows: list[ast.expr], context: FileContext) -> bool:
    if not isinstance(call.func, ast.Attribute) or call.func.attr not in _UNARY:
        return False
    base = call.func.value
    module = context.resolve(call.func) in (
        f"torch.{call.func.attr}",
        f"torch.nn.functional.{call.func.attr}",
    )
    inner, *others = call.args if module else [base, *call.args]
    given = [*others, *(k.value for k in call.keywords)]
    return _pointwise(inner, rows, context) and all(_number(a, context) for a in given)


def _number(node: ast.expr, context: FileContext) -> bool:
    """Whether a node is a Python number that every turn finds the same."""
    named = isinstance(node, (ast.Name, ast.Constant)) or literal(node) is not None
    return (
        named
        and context.kind(node).what in ("int", "float", "size", "number")
        and not context.kind(node).host
    )


# `out = []`, a loop that appends, `torch.stack(out)`


def _appended(node: ast.For, turns: AxisLoop, context: FileContext) -> Fix | None:
    """The Fix of a loop that only appends to a list made before it and stacked once after it; else
    None."""
    added = _added(node)
    block, index = context.block(node)
    made = block[index - 1] if index else None
    if added is None or node.orelse or not _makes_list(made, added.func.value.id):
        return None
    function = context.function(node).node
    inside = {*ast.walk(node), *ast.walk(made)}
    later = [n for n in ast.walk(function) if isinstance(n, ast.Name) and n not in inside]
    uses = [n for n in later if n.id == added.func.value.id]
    stack = context.parent(uses[0]) if len(uses) == 1 else None
    if _read_outside(turns.name, later, context) or not _stacks(
        stack, block[index + 1 :], turns, context
    ):
        return None
    text = _whole(added.args[0], turns, context)
    if text is None:
        return None
    text = _copied(text, added.args[0], stack, context)
    return _three_edits(made, node, added.func.value.id, stack, text, context)


def _read_outside(name: str, names: list[ast.Name], context: FileContext) -> bool:
    """Whether the loop's variable is read elsewhere than in loops that bind it themselves."""
    return any(
        n.id == name and isinstance(n.ctx, ast.Load) and not _bound_around(n, context)
        for n in names
    )


def _bound_around(node: ast.Name, context: FileContext) -> bool:
    name = node.id
    while not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        node = context.parent(node)
        loops = [node] if isinstance(node, ast.For) else getattr(node, "generators", [])
        if any(name == getattr(loop.target, "id", "") for loop in loops):
            return True
    return False


def _added(node: ast.For) -> Any:
    """The call of `out.append(f(x[i]))` where that is all that the loop does."""
    statement = node.body[0] if len(node.body) == 1 else None
    call = statement.value if isinstance(statement, ast.Expr) else None
    method = (
        isinstance(call, ast.Call)
        and isinstance(call.func, ast.Attribute)
        and call.func.attr == "append"
    )
    return (
        call if method and isinstance(call.func.value, ast.Name) and len(call.args) == 1 else None
    )


def _makes_list(statement: Any, name: str) -> bool:
    plain = isinstance(statement, ast.Assign) and len(statement.targets) == 1
    empty = plain and isinstance(statement.value, ast.List) and not statement.value.elts
    return empty and isinstance(statement.targets[0], ast.Name) and statement.targets[0].id == name


def _stacks(call: Any, following: list[ast.stmt], turns: AxisLoop, context: FileContext) -> bool:
    """Whether a call stacks the list along the loop's axis, at once in one of the statements that
    follow."""
    if (
        not isinstance(call, ast.Call)
        or context.resolve(call.func) != "torch.stack"
        or not call.args
    ):
        return False
    listed = isinstance(call.args[0], ast.Name) and _stack_axis(call) == turns.axis
    return listed and context.statement(call) in following and _once(call, context)


def _once(node: ast.Call, context: FileContext) -> bool:
    """Whether an expression is evaluated once where its statement is: one tensor must not stand for
    several."""
    while not isinstance(node, ast.stmt):
        if isinstance(node, _REPEATED):
            return False
        node = context.parent(node)
    return not isinstance(node, (ast.While, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))


def _three_edits(
    made: Any, node: ast.For, name: str, stack: Any, text: str, context: FileContext
) -> Fix | None:
    block, first = context.block(made)
    if context.source.indent_of(made) is None or node not in block:
        return None
    run = block[first : block.index(node) + 1]
    whole = replace_statements(context.source, run, f"{name} = {text}")
    if isinstance(whole, Refusal):
        return None
    return _fix(context, whole, context.replacement(stack, name))
