"""The fix of DYN501 for sums and means over the elements that a mask chooses."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Any

from ....rewriter.source.spans import Refusal, Safety
from ....rewriter.transforms.mask_expressions import Masked, simple, still

if TYPE_CHECKING:
    from ...analysis.file_context import FileContext


_WHOLE = ("sum", "mean")
_WHY = "all elements are computed, and added in another order: the last bits may differ"


def masked_sum(node: ast.expr, context: FileContext) -> Any:
    """The Fix for a read under a mask (`x[mask]`, `torch.masked_select(x, mask)`) of which only a
    whole sum or mean is taken; or the Refusal."""
    found = context.torch(node)
    mask, tensor = parts(node, context)
    if found is None or mask is None or not still(mask) or not simple(tensor):
        return Refusal("the parts are no plain names")
    kept = _kept_for_sum(node, context)
    if kept:
        return _zeroed(node, mask, tensor, found, context)
    reduction = _reduction(node, context)
    if reduction is None:
        return Refusal("its elements go elsewhere than into a sum or a mean")
    return _reduced(reduction, mask, found, context)


def parts(node: ast.expr, context: FileContext) -> Any:
    """(mask, tensor) of a read under a mask; (None, None) for anything else."""
    if isinstance(node, ast.Subscript):
        return node.slice, node.value
    if isinstance(node, ast.Call) and not node.keywords:
        if context.resolve(node.func) == "torch.masked_select" and len(node.args) == 2:
            return node.args[1], node.args[0]
        if (
            isinstance(node.func, ast.Attribute)
            and node.func.attr == "masked_select"
            and len(node.args) == 1
        ):
            return node.args[0], node.func.value
    return None, None


def _fits(node: ast.expr, mask: ast.expr, tensor: ast.Name, context: FileContext) -> bool:
    """Whether the mask lines up with the tensor element by element; masked_select sees to that
    itself."""
    return isinstance(node, ast.Call) or Masked(mask, context).covers(tensor)


def _zeroed(
    node: ast.expr,
    mask: ast.expr,
    tensor: ast.Name,
    found: tuple[str, tuple[Any, ...]],
    context: FileContext,
) -> Any:
    """Zeros in the place of what is left out: for a sum."""
    if not _fits(node, mask, tensor, context):
        return Refusal("the mask may have fewer axes than the tensor")
    shown = f"{found[0]}.where({context.segment(mask)}, {context.segment(tensor)}, 0)"
    edit = context.replacement(node, shown)
    return context.fix(
        "add zeros for the others", edit, safety=Safety.UNSAFE, why=_WHY, imports=found[1]
    )


def _reduced(
    reduction: tuple[ast.Call, ast.expr, str],
    mask: ast.expr,
    found: tuple[str, tuple[Any, ...]],
    context: FileContext,
) -> Any:
    """`f(x[mask]).mean()` as `torch.where(mask, f(x), 0).sum() / mask.sum()`."""
    call, inner, name = reduction
    masked = Masked(mask, context)
    problem = masked.elementwise(inner)
    if problem:
        return Refusal(problem)
    if not all(simple(r.value) and masked.covers(r.value) for r in masked.reads):
        return Refusal("the mask may have fewer axes than the tensor")
    chosen = context.segment(mask)
    shown = f"{found[0]}.where({chosen}, {masked.ungathered(inner, found[0])}, 0).sum()"
    if name == "mean":
        count = context.atom(mask)
        shown = f"({shown} / {count}.sum())"
    edit = context.replacement(call, shown)
    return context.fix(
        "add zeros for the others", edit, safety=Safety.UNSAFE, why=_WHY, imports=found[1]
    )


def whole(call: ast.AST, context: FileContext) -> tuple[ast.expr | None, str]:
    """(argument, "sum" or "mean") of a reduction over everything; (None, "") for anything else."""
    if not isinstance(call, ast.Call) or call.keywords or not isinstance(call.func, ast.Attribute):
        return None, ""
    name, full = call.func.attr, context.resolve(call.func) or ""
    if name not in _WHOLE:
        return None, ""
    if full in ("torch.sum", "torch.mean"):
        return (call.args[0], name) if len(call.args) == 1 else (None, "")
    return (
        (call.func.value, name) if not call.args and not full.startswith("torch.") else (None, "")
    )


def _reduction(node: ast.expr, context: FileContext) -> Any:
    """(call, what it reduces, its name) of the reduction that the expression around `node` goes
    into."""
    parent = context.parent(node)
    while isinstance(parent, ast.expr):
        inner, name = whole(parent, context)
        if inner is not None and any(n is node for n in ast.walk(inner)):
            return parent, inner, name
        parent = context.parent(parent)
    return None


def _kept_for_sum(node: ast.expr, context: FileContext) -> bool:
    """Whether the read is the whole of what a sum takes: there, or by way of a name that nothing
    else reads."""
    parent = context.parent(node)
    direct = parent if isinstance(parent, ast.Call) else context.parent(parent)
    inner, name = whole(direct, context)
    if inner is node:
        return name == "sum"
    if (
        not isinstance(parent, ast.Assign)
        or len(parent.targets) != 1
        or not isinstance(parent.targets[0], ast.Name)
    ):
        return False
    return _one_sum(parent, context)


def _one_sum(statement: ast.Assign, context: FileContext) -> bool:
    """Whether the name that a statement binds is bound once and read once, by a sum."""
    name = statement.targets[0].id
    every = [
        n
        for n in ast.walk(context.function(statement).node)
        if isinstance(n, ast.Name) and n.id == name
    ]
    loads = [n for n in every if isinstance(n.ctx, ast.Load)]
    if len(every) != 2 or len(loads) != 1:
        return False
    parent = context.parent(loads[0])
    call = parent if isinstance(parent, ast.Call) else context.parent(parent)
    inner, what = whole(call, context)
    return inner is loads[0] and what == "sum"
