"""An `if` on a tensor's value that only keeps something on the module."""

from __future__ import annotations

import ast
from dataclasses import replace
from typing import TYPE_CHECKING

from ....rewriter.source.spans import Fix, Safety
from ....rewriter.transforms.tensor_if import is_elif
from ..effects.compile_guards import effect_free, guard

if TYPE_CHECKING:
    from ...analysis.file_context import FileContext


_WHY = "compiled code does not keep `{0}`, which then tells of eager calls alone"


def kept_in_eager(node: ast.If, context: FileContext) -> Fix | None:
    """The Fix that puts an `if` that only stores numbers on `self` under the guard; None for
    others."""
    names = [_kept(s, context) for s in node.body]
    if node.orelse or is_elif(node, context.source) or not names or not all(names):
        return None
    if not effect_free(node.test, context):
        return None
    built = guard([node], context)
    why = _WHY.format("`, `".join(dict.fromkeys(names)))
    return replace(built, safety=Safety.UNSAFE, why=why) if isinstance(built, Fix) else None


def _kept(statement: ast.stmt, context: FileContext) -> str:
    """The attribute of `self` to which a statement gives a Python number; "" for others."""
    if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
        return ""
    target, kind = statement.targets[0], context.kind(statement.value)
    own = isinstance(target, ast.Attribute) and context.kind(target.value).what == "self"
    number = kind.is_number or isinstance(statement.value, ast.Constant)
    return target.attr if own and number and effect_free(statement.value, context) else ""
