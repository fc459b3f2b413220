"""The fix of DYN504 where a tensor with a row for each chosen place goes into what a mask
chooses."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ....rewriter.source.intents import replace_statements
from ....rewriter.source.spans import Refusal, Safety
from ....rewriter.transforms.mask_expressions import simple, still
from .dynamic_shape import is_mask

if TYPE_CHECKING:
    from ...analysis.file_context import FileContext


_OPERATORS = {
    ast.Add: ("+", "zeros"),
    ast.Sub: ("-", "zeros"),
    ast.Mult: ("*", "ones"),
    ast.Div: ("/", "ones"),
}
_WHY = (
    "it takes the tensor to have a row for each place that the mask chooses; where it had one for"
    " all, torch raises"
)
_LINE = 80


@dataclass(frozen=True)
class Rows:
    """`y[mask, :] = y[mask, :] + rows` with the statements that say so."""

    into: ast.expr
    mask: ast.expr
    rows: ast.expr
    operator: ast.operator
    statements: tuple


def added_rows(node: ast.stmt, context: FileContext) -> Any:
    """The Fix for a masked write of one `y[mask] op rows`, also by way of a name; None for anything
    else."""
    found = _parts(node, context)
    torch = context.torch(node) if found is not None else None
    if torch is None or any(context.source.indent_of(s) is None for s in found.statements):
        return None
    operator, filler = _OPERATORS[type(found.operator)]
    into, rows = context.segment(found.into), context.segment(found.rows)
    mask = _lifted(found, context)
    if context.kind(found.rows).dtype != context.kind(found.into).dtype:
        bare = isinstance(found.rows, (ast.Name, ast.Attribute, ast.Call, ast.Subscript))
        rows = f"{rows if bare else f'({rows})'}.to({into}.dtype)"
    full = f"{torch[0]}.{filler}_like({into}).masked_scatter({mask}, {rows})"
    parts = mask, f"{into} {operator} {full}", into
    first = found.statements[0]
    text = f"{into}[...] = {torch[0]}.where({_laid_out(parts, first, context)})"
    edit = replace_statements(context.source, found.statements, text)
    if isinstance(edit, Refusal):
        return None
    return context.fix(
        "scatter the rows, and use torch.where",
        edit,
        safety=Safety.UNSAFE,
        why=_WHY,
        imports=torch[1],
    )


def _laid_out(parts: tuple[str, str, str], statement: ast.stmt, context: FileContext) -> str:
    """Arguments on one line, or on one each."""
    one, source = ", ".join(parts), context.source
    if len(one) < _LINE:
        return one
    indent = f"{source.newline}{source.indent_of(statement)}"
    return "".join(f"{indent}{source.indent_unit()}{part}," for part in parts) + indent


def _parts(node: ast.stmt, context: FileContext) -> Any:
    """The Rows of a statement; None where it is of another form."""
    target = node.target if isinstance(node, ast.AugAssign) else node.targets[0]
    mask = _mask(target.slice, context) if isinstance(target, ast.Subscript) else None
    if (
        mask is None
        or not still(mask)
        or not simple(target.value)
        or not context.kind(target.value).is_tensor
    ):
        return None
    if isinstance(node, ast.AugAssign):
        found = Rows(target.value, mask, node.value, node.op, (node,))
    elif len(node.targets) == 1:
        found = _sum(node, target, mask, context)
    else:
        found = None
    fits = (
        found is not None and type(found.operator) in _OPERATORS and _is_rows(found.rows, context)
    )
    return found if fits else None


def _sum(node: Any, target: Any, mask: ast.expr, context: FileContext) -> Rows | None:
    """`y[mask] + rows` on the right, or a name for it from the statement just before, which nothing
    else reads."""
    value, statements = node.value, (node,)
    if isinstance(value, ast.Name):
        block, index = context.block(node)
        before = block[index - 1] if index else None
        if not _names_it(before, value.id) or _count(value.id, context.function(node).node) != 2:
            return None
        value, statements = before.value, (before, node)
    if not isinstance(value, ast.BinOp):
        return None
    text = ast.dump(target).replace("Store()", "Load()")
    if ast.dump(value.left) == text:
        return Rows(target.value, mask, value.right, value.op, statements)
    turned = isinstance(value.op, (ast.Add, ast.Mult)) and ast.dump(value.right) == text
    return Rows(target.value, mask, value.left, value.op, statements) if turned else None


def _names_it(statement: Any, name: str) -> bool:
    one = isinstance(statement, ast.Assign) and len(statement.targets) == 1
    return one and isinstance(statement.targets[0], ast.Name) and statement.targets[0].id == name


def _count(name: str, function: ast.FunctionDef) -> int:
    return sum(isinstance(n, ast.Name) and n.id == name for n in ast.walk(function))


def _mask(index: ast.expr, context: FileContext) -> ast.expr | None:
    """The mask of `y[mask]`, `y[mask, :]` or `y[mask, ...]`."""
    parts = index.elts if isinstance(index, ast.Tuple) else [index]
    rest = all(_whole(p) for p in parts[1:])
    return parts[0] if parts and rest and is_mask(parts[0], context, sure=True) else None


def _whole(node: Any) -> bool:
    if isinstance(node, ast.Slice):
        return node.lower is node.upper is node.step is None
    return isinstance(node, ast.Constant) and node.value is ...


def _is_rows(node: ast.expr, context: FileContext) -> bool:
    """Whether an expression is a tensor of some axes that reads nothing under a mask."""
    kind = context.kind(node)
    reads = any(
        isinstance(n, ast.Subscript) and _mask(n.slice, context) is not None for n in ast.walk(node)
    )
    return kind.is_tensor and kind.least_rank() > 0 and not reads


def _lifted(found: Rows, context: FileContext) -> str:
    """The mask with axes of one element in the place of those that it lacks."""
    mask, into = context.kind(found.mask), context.kind(found.into)
    text = context.segment(found.mask)
    text = text if simple(found.mask) else f"({text})"
    if mask.rank is None or into.rank is None:
        shown = context.segment(found.into)
        return f"{text}.reshape({text}.shape + (1,) * ({shown}.dim() - {text}.dim()))"
    missing = into.rank - mask.rank
    return (
        f"{text}.unsqueeze(-1)"
        if missing == 1
        else f"{text}[..., {', '.join(['None'] * missing)}]"
        if missing
        else text
    )
