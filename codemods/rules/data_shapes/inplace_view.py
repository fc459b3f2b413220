"""DYN505: an input's shape changed in place."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from ....rewriter.source.spans import Safety
from ..base import Rule

if TYPE_CHECKING:
    from ...analysis.file_context import FileContext
    from ...analysis.findings import Finding


_VIEWS = ("squeeze_", "unsqueeze_", "transpose_", "t_", "swapaxes_", "swapdims_")


class InPlaceView(Rule):
    """
    `x.squeeze_()` changes the shape of the caller's own tensor: the graph breaks where `x` is an
    input. `x = x.squeeze()` goes on with a view; the caller's tensor, and other names of it, keep
    their shape: unsafe.
    """

    code = "DYN505"
    safety = Safety.UNSAFE
    nodes = (ast.Call,)
    before = """
import torch


@torch.compile
def step(x: torch.Tensor):
    x.unsqueeze_(0)
    return torch.relu(x)
"""
    after = """
import torch


@torch.compile
def step(x: torch.Tensor):
    x = x.unsqueeze(0)
    return torch.relu(x)
"""

    def check(self, node: Any, context: FileContext) -> Iterable[Finding]:
        func = node.func
        known = (
            isinstance(func, ast.Attribute)
            and func.attr in _VIEWS
            and isinstance(func.value, ast.Name)
        )
        if not known or not _input(func.value, context):
            return
        start, end = context.source.span(node)
        owner = context.source.span(func.value)[1]
        text = context.source.text[start:end]
        at = text.index(func.attr, owner - start)
        shown = text[:at] + func.attr[:-1] + text[at + len(func.attr) :]
        parent = context.parent(node)
        if isinstance(parent, ast.Expr):
            shown = f"{func.value.id} = {shown}"
            node = parent
        elif not _rebinds(parent, func.value.id):
            yield context.finding(self, node, kept="its value goes elsewhere as well")
            return
        why = "the caller's tensor, and other names of it, keep their shape"
        edit = context.replacement(node, shown)
        yield context.finding(
            self, node, fix=context.fix("go on with a view", edit, safety=Safety.UNSAFE, why=why)
        )


def _rebinds(statement: ast.Assign, name: str) -> bool:
    targets = statement.targets if isinstance(statement, ast.Assign) else []
    return len(targets) == 1 and isinstance(targets[0], ast.Name) and targets[0].id == name


def _input(name: ast.Name, context: FileContext) -> bool:
    """Whether a name is a parameter that nothing above has bound anew."""
    function = context.function(name).node
    args = function.args
    if name.id not in {a.arg for a in (*args.posonlyargs, *args.args, *args.kwonlyargs)}:
        return False
    stores = (
        n for n in ast.walk(function) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)
    )
    return not any(n.id == name.id and n.lineno < name.lineno for n in stores)
