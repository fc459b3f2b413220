"""The fix of DYN701 for a number that only training looks at."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Any

from ....rewriter.source.spans import Safety
from ...analysis.implicit_ints import places

if TYPE_CHECKING:
    from ....rewriter.source.spans import Fix
    from ...analysis.file_context import FileContext


_WHY = (
    "compiled code that does not train leaves NumPy's generator alone: later draws give other"
    " numbers"
)


def only_for_training(call: ast.Call, context: FileContext) -> Fix | None:
    """The Fix for `p = numpy.random.uniform()` of which every use stands behind `self.training
    and`; None where there is none. Eager draws as before."""
    statement, found = context.parent(call), context.torch(call)
    function = context.function(call)
    bound = isinstance(statement, ast.Assign) and len(statement.targets) == 1
    if (
        not bound
        or not isinstance(statement.targets[0], ast.Name)
        or found is None
        or not function.self_name
    ):
        return None
    training = f"{function.self_name}.training"
    uses = _loads(statement.targets[0].id, function.node)
    if not uses or not all(_behind(use, training, context) for use in uses):
        return None
    text = f"{context.shown(call)} if {training} or not {found[0]}.compiler.is_compiling() else 0.0"
    edit = context.replacement(call, text)
    return context.fix(
        "draw only where it is used", edit, safety=Safety.UNSAFE, why=_WHY, imports=found[1]
    )


def settled(call: ast.Call, context: FileContext) -> bool:
    """Whether the call is drawn in eager and in training alone."""
    parent = context.parent(call)
    if (
        not isinstance(parent, ast.IfExp)
        or parent.body is not call
        or not isinstance(parent.test, ast.BoolOp)
    ):
        return False
    last = parent.test.values[-1]
    off = isinstance(last, ast.UnaryOp) and isinstance(last.operand, ast.Call)
    return off and context.resolve(last.operand.func) == "torch.compiler.is_compiling"


_NUMBERS = frozenset(["range", "int", "float", "bool", "round", "divmod"])


def read_as_number(
    drawn: ast.expr, context: FileContext, names: tuple[str, ...] = ()
) -> ast.expr | None:
    """Where a number that Dynamo traces as a tensor is needed as a Python number; None where it
    only goes into arithmetic with tensors."""
    parent = context.parent(drawn)
    if isinstance(parent, ast.keyword):
        parent = context.parent(parent)
    if isinstance(parent, ast.Assign) and parent.value is drawn:
        target, function = parent.targets[0], context.function(drawn)
        if not isinstance(target, ast.Name) or target.id in names or function is None:
            return drawn
        loads = sorted(_loads(target.id, function.node), key=lambda n: (n.lineno, n.col_offset))
        known = (*names, target.id)
        after = (n for n in loads if n.lineno > drawn.lineno and n in context.parents)
        found = (read_as_number(load, context, known) for load in after)
        return next((f for f in found if f is not None), None)
    if isinstance(parent, ast.Call):
        return drawn if _needs_number(drawn, parent, context) else None
    if isinstance(parent, (ast.BinOp, ast.Compare)):
        sides = [n for n in ast.iter_child_nodes(parent) if isinstance(n, ast.expr)]
        asks = isinstance(parent, ast.Compare) and isinstance(parent.ops[0], (ast.Is, ast.IsNot))
        return None if asks or any(context.kind(s).is_tensor for s in sides) else drawn
    tests = (ast.If, ast.While, ast.IfExp, ast.BoolOp, ast.UnaryOp, ast.Subscript, ast.Slice)
    return drawn if isinstance(parent, (*tests, ast.Tuple, ast.comprehension)) else None


def _needs_number(drawn: ast.expr, call: ast.Call, context: FileContext) -> bool:
    name = context.resolve(call.func) or ""
    if any(drawn is part for part in places(context.resolve, call)):
        return True
    return name in _NUMBERS or name.startswith(("math.", "numpy.", "random."))


def _loads(name: str, function: ast.FunctionDef) -> list[ast.Name]:
    return [
        n
        for n in ast.walk(function)
        if isinstance(n, ast.Name) and n.id == name and isinstance(n.ctx, ast.Load)
    ]


def _behind(node: ast.Name, training: str, context: FileContext) -> bool:
    """Whether `node` is evaluated only where `training` holds."""
    child, parent = node, context.parent(node)
    while parent is not None and not isinstance(parent, (ast.FunctionDef, ast.Lambda)):
        if (
            isinstance(parent, ast.BoolOp)
            and isinstance(parent.op, ast.And)
            and child is not parent.values[0]
        ):
            earlier = parent.values[: parent.values.index(child)]
            if any(ast.unparse(v) == training for v in earlier):
                return True
        if (
            isinstance(parent, (ast.If, ast.IfExp))
            and _asks(parent.test, training)
            and _in_body(child, parent)
        ):
            return True
        child, parent = parent, context.parent(parent)
    return False


def _asks(test: Any, training: str) -> bool:
    parts = test.values if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And) else [test]
    return any(ast.unparse(p) == training for p in parts)


def _in_body(child: Any, parent: Any) -> bool:
    return child in parent.body if isinstance(parent.body, list) else child is parent.body
