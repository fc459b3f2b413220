"""Where Python or torch makes an int of what it is given, without being told: bounds of slices, and
sizes."""

import ast
from collections.abc import Callable
from typing import Any

from ...rewriter.analysis.torch_facts import SIZED, SIZED_FACTORIES


def places(resolve: Callable[..., Any], node: ast.expr) -> list[ast.expr]:
    """The expressions of a call or an index that stand where an int is meant; `resolve(func)` gives
    a dotted name."""
    if isinstance(node, ast.Subscript):
        parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        bounds = (b for p in parts if isinstance(p, ast.Slice) for b in (p.lower, p.upper, p.step))
        return [b for b in bounds if b is not None]
    return (
        [p for a in _sizes(resolve, node) for p in elements(a)]
        if isinstance(node, ast.Call)
        else []
    )


def _sizes(resolve: Callable[..., Any], call: ast.Call) -> list[ast.expr] | tuple[Any, ...]:
    """The arguments of a call that are sizes."""
    name = resolve(call.func) or ""
    if name.startswith("torch."):
        last = name.removeprefix("torch.")
        return call.args if last in SIZED_FACTORIES else call.args[1:] if last in SIZED else ()
    return call.args if isinstance(call.func, ast.Attribute) and call.func.attr in SIZED else ()


def elements(node: ast.expr) -> list[ast.expr]:
    """The parts of a tuple or list that is written out; anything else alone."""
    return node.elts if isinstance(node, (ast.Tuple, ast.List)) else [node]
