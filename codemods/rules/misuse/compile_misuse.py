"""DYN901 to DYN904: torch.compile used in a way that cannot work well."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from ....rewriter.analysis.name_scopes import rebindings
from ....rewriter.source.spans import Safety
from ...analysis.definitions import COMPILE
from ...analysis.findings import NOTE
from ..base import Rule

if TYPE_CHECKING:
    from ...analysis.file_context import FileContext
    from ...analysis.findings import Finding


_MODES = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs", "lite")


class CompileInside(Rule):
    """
    `torch.compile` in a loop or inside a `forward` makes a new compiled function each time: the
    cache of compiled code is keyed by the function, and guards, warm-up and memory are paid again.
    Compile once, where the model is made. A loop over several models may compile each.
    """

    code = "DYN901"
    nodes = (ast.For, ast.While, ast.FunctionDef)
    whole_file = True
    before = """
import torch


def train(model, batches):
    for batch in batches:
        step = torch.compile(model)
        step(batch)
"""

    def check(self, node: Any, context: FileContext) -> Iterable[Finding]:
        if isinstance(node, ast.FunctionDef) and node.name != "forward":
            return
        if not context.program.compiles:
            return
        inner = [
            n
            for s in node.body
            for n in ast.walk(s)
            if isinstance(n, ast.Call) and context.names.resolve(n.func) in COMPILE
        ]
        where = "in forward" if isinstance(node, ast.FunctionDef) else "in a loop"
        yield from (
            context.finding(self, n, f"torch.compile is called {where}: once for every turn")
            for n in inner
            if _nearest(n, node) and not _another(n, node)
        )


def _another(call: ast.Call, node: ast.For) -> bool:
    """Whether each turn of a loop compiles another thing: what the loop is over, or comes of it."""
    if not isinstance(node, ast.For) or not call.args:
        return False
    found = {n.id for n in ast.walk(node.target) if isinstance(n, ast.Name)}
    for statement in (n for s in node.body for n in ast.walk(s) if isinstance(n, ast.Assign)):
        if found & {n.id for n in ast.walk(statement.value) if isinstance(n, ast.Name)}:
            found |= {
                n.id for t in statement.targets for n in ast.walk(t) if isinstance(n, ast.Name)
            }
    return bool(found & {n.id for n in ast.walk(call.args[0]) if isinstance(n, ast.Name)})


def _nearest(call: ast.Call, node: ast.For) -> bool:
    """Whether no inner loop holds the call, which then speaks for itself."""
    loops = [n for s in node.body for n in ast.walk(s) if isinstance(n, (ast.For, ast.While))]
    return not any(call in set(ast.walk(loop)) for loop in loops)


class WrongMode(Rule):
    """
    A `mode` that torch.compile does not know raises at the first call. A slip of the pen is set
    right where only one mode is near: unsafe, for the original raises.
    """

    code = "DYN902"
    safety = Safety.UNSAFE
    nodes = (ast.Call,)
    whole_file = True
    before = """
import torch


def make(model):
    return torch.compile(model, mode="max_autotune")
"""
    after = """
import torch


def make(model):
    return torch.compile(model, mode="max-autotune")
"""

    def check(self, node: Any, context: FileContext) -> Iterable[Finding]:
        if context.names.resolve(node.func) not in COMPILE:
            return
        mode = next((k.value for k in node.keywords if k.arg == "mode"), None)
        if (
            not isinstance(mode, ast.Constant)
            or not isinstance(mode.value, str)
            or mode.value in _MODES
        ):
            return
        import difflib  # most files have no such mode

        near = difflib.get_close_matches(mode.value, _MODES, 1, 0.8)
        fix = None
        if near:
            quote = context.segment(mode)[0]
            edit = context.replacement(mode, f"{quote}{near[0]}{quote}")
            fix = context.fix(
                f"use {near[0]}", edit, safety=Safety.UNSAFE, why="the original raises"
            )
        yield context.finding(self, mode, f"torch.compile has no mode {mode.value!r}", fix=fix)


class Swallowed(Rule):
    """
    `fullgraph=True` makes a break an error; a `try` around the call that catches every exception
    hides it again, and the program goes on in eager, or with nothing. Catch what the call itself
    may raise, or drop `fullgraph`.
    """

    code = "DYN903"
    nodes = (ast.Try,)
    whole_file = True
    before = """
import torch


def run(model, x):
    try:
        return torch.compile(model, fullgraph=True)(x)
    except Exception:
        return model(x)
"""

    def check(self, node: Any, context: FileContext) -> Iterable[Finding]:
        broad = [h for h in node.handlers if self._catches_all(h)]
        if not broad:
            return
        for call in (n for s in node.body for n in ast.walk(s) if isinstance(n, ast.Call)):
            named = {k.arg: k.value for k in call.keywords}
            full = named.get("fullgraph")
            if (
                context.names.resolve(call.func) in COMPILE
                and isinstance(full, ast.Constant)
                and full.value is True
            ):
                yield context.finding(self, call)

    def _catches_all(self, handler: ast.ExceptHandler) -> bool:
        named = (
            []
            if handler.type is None
            else [n.id for n in ast.walk(handler.type) if isinstance(n, ast.Name)]
        )
        raises = any(isinstance(n, ast.Raise) for s in handler.body for n in ast.walk(s))
        return not raises and (
            handler.type is None or bool({"Exception", "BaseException"} & set(named))
        )


class Deprecated(Rule):
    """
    These names of `torch._dynamo` have public successors in `torch.compiler`, which do the same:
    safe where the call has no arguments that changed.
    """

    code = "DYN904"
    safety = Safety.SAFE
    nodes = (ast.Attribute,)
    whole_file = True
    successors = {  # noqa: RUF012
        "torch._dynamo.is_compiling": "torch.compiler.is_compiling",
        "torch._dynamo.reset": "torch.compiler.reset",
        "torch._dynamo.allow_in_graph": "torch.compiler.allow_in_graph",
        "torch._dynamo.list_backends": "torch.compiler.list_backends",
    }
    before = """
import torch


def fresh():
    torch._dynamo.reset()
"""
    after = """
import torch


def fresh():
    torch.compiler.reset()
"""

    def check(self, node: Any, context: FileContext) -> Iterable[Finding]:
        name = context.names.resolve(node) or ""
        successor = self.successors.get(name)
        if successor is None or context.names.torch() is None or context.segment(node) != name:
            return
        if _hides_torch(node, context):
            return
        if isinstance(_statement(node, context), ast.Expr):
            return  # a call at import, which compiles nothing
        edit = context.replacement(node, successor)
        fix = context.fix(f"use {successor}", edit)
        yield context.finding(self, node, f"`{name}` is now `{successor}`", fix=fix, level=NOTE)


def _hides_torch(node: Any, context: FileContext) -> bool:
    """Whether a function around a node binds the name."""
    parents = context.whole_parents()
    while node in parents:
        node = parents[node]
        scoped = isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        if scoped and "torch" in rebindings(node).shared.union(rebindings(node).places):
            return True
    return False


def _statement(node: Any, context: FileContext) -> ast.AST | None:
    """The statement of the module itself that holds a node; None within functions and classes."""
    parents = context.whole_parents()
    while node in parents and not isinstance(parents[node], ast.Module):
        node = parents[node]
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            return None
    return node
