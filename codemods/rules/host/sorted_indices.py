"""`sorted(range(n), key=lambda i: -x[i].item())` as torch.argsort."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ....rewriter.source.spans import Safety

if TYPE_CHECKING:
    from ....rewriter.source.spans import Fix, Refusal
    from ...analysis.file_context import FileContext

_WHY = "NaN is sorted to the end; a tensor with fewer elements than indices does not raise"


@dataclass(frozen=True)
class _Sorted:
    """`call` sorts indices below `count` by the elements of `values`."""

    call: ast.Call
    count: ast.expr
    values: ast.expr
    descending: bool


def by_argsort(read: ast.Call, context: FileContext) -> Fix | Refusal | None:
    """The Fix for the sorting whose key `read` reads; None where it is none."""
    found, torch = _sorted_by(read, context), context.torch(read)
    if found is None or torch is None or not context.kind(found.values).is_tensor:
        return None
    text, count = context.atom(found.values), context.segment(found.count)
    every = {f"len({text})", f"{text}.shape[0]", f"{text}.size(0)"}
    shown = text if "".join(count.split()) in every else f"{text}[:{count}]"
    down = ", descending=True" if found.descending else ""
    made = f"{torch[0]}.argsort({shown}.detach(){down}, stable=True).tolist()"
    edit = context.replacement(found.call, made)
    title = "sort with torch.argsort"
    return context.fix(title, edit, safety=Safety.UNSAFE, why=_WHY, imports=torch[1])


def _sorted_by(read: ast.Call, context: FileContext) -> _Sorted | None:
    negated, top = False, context.parent(read)
    if isinstance(top, ast.UnaryOp) and isinstance(top.op, ast.USub):
        negated, top = True, context.parent(top)
    call = context.parent(context.parent(top)) if isinstance(top, ast.Lambda) else None
    element = read.func.value if isinstance(read.func, ast.Attribute) else None
    if not isinstance(call, ast.Call) or not isinstance(element, ast.Subscript):
        return None
    given = {k.arg: k.value for k in call.keywords}
    reverse = given.get("reverse", ast.Constant(False))
    counts = call.args[0] if call.args else None
    plain = context.resolve(call.func) == "sorted" and given.get("key") is top
    ranged = isinstance(counts, ast.Call) and context.resolve(counts.func) == "range"
    if not plain or not ranged or len(counts.args) != 1 or not isinstance(reverse, ast.Constant):
        return None
    names = [a.arg for a in top.args.args]
    whole = element.value
    same = [n.id for n in ast.walk(whole) if isinstance(n, ast.Name)]
    if names != [ast.unparse(element.slice)] or names[0] in same:
        return None
    return _Sorted(call, counts.args[0], whole, negated != bool(reverse.value))
