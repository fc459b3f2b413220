"""Calls: `f(a, *b, k=v)` -> `__df.call(f, a, *b, k=v)`. What looks at the frame that calls it stays
a plain call."""

from typing import Any

import libcst as cst

from ..source.scope import NameKind
from .conversion import ConversionContext
from .form import argument, gap, template
from .tree import swap, walk

# Builtins that read the calling frame; the first four do so only without arguments.
_WITHOUT_ARGUMENTS = {"super", "locals", "vars", "dir"}
_FRAME_READERS = {*_WITHOUT_ARGUMENTS, "eval", "exec", "globals"}


def reads_frame(node: cst.CSTNode) -> bool:
    """Whether this is a call that must be made by the user's own frame. (By name: it is no loss if
    the name means something else.)
    """
    if not isinstance(node, cst.Call) or not isinstance(node.func, cst.Name):
        return False
    return node.func.value in _FRAME_READERS and not (
        node.args and node.func.value in _WITHOUT_ARGUMENTS
    )


def can_be_lazy(*nodes: cst.CSTNode) -> bool:
    """Whether the expressions mean the same in a lambda: no walrus, no yield, no reader of the
    frame."""
    return not any(
        isinstance(inner, (cst.NamedExpr, cst.Yield, cst.Await)) or reads_frame(inner)
        for node in nodes
        for inner in walk(node)
    )


def convert(node: cst.Call, cx: ConversionContext) -> Any:
    args = [cx.convert(arg) for arg in node.args]
    if reads_frame(node) and cx.scope.resolve(node.func.value) is NameKind.GLOBAL:  # type: ignore[attr-defined]
        return _without_own_cell(node) if not args else swap(node, args=args)
    between = gap(node.whitespace_after_func, "," if args else "", node.whitespace_before_args)
    return template("__df.call(", argument(cx.convert(node.func)), *between, *args, ")", like=node)


def _without_own_cell(node: cst.Call) -> Any:
    """`locals()` shows free variables, and `__df` is one: leave it out."""
    if node.func.value in ("locals", "vars"):  # type: ignore[attr-defined]
        return template("{_: __ for _, __ in ", node, '.items() if _ != "__df"}')
    if node.func.value == "dir":  # type: ignore[attr-defined]
        return template("[_ for _ in ", node, ' if _ != "__df"]')
    return node
