"""DYN303, DYN305: warnings and progress bars in captured code."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ....rewriter.source.spans import Fix, Refusal, Safety, hidden
from ...analysis.captured_walk import has_compiled_form
from ..base import Rule
from ..call_rule import CallRule
from .compile_guards import effect_free, guard

if TYPE_CHECKING:
    from ...analysis.file_context import FileContext
    from ...analysis.findings import Finding


_FILTERS = ("warnings.simplefilter", "warnings.filterwarnings", "warnings.resetwarnings")
_BARS = frozenset(
    ["tqdm.tqdm", "tqdm.auto.tqdm", "tqdm.notebook.tqdm", "tqdm.trange", "tqdm.auto.trange"]
)


class Warn(Rule):
    """
    `warnings.warn` looks at the stack and at global filters. Dynamo leaves it out of the graph with
    a break or drops it, by version. Under `if not torch.compiler.is_compiling():` eager warns
    exactly as before, and the compiled code is silent, which is counted. So it is with
    `simplefilter`, `filterwarnings` and `resetwarnings`, which break the graph, and inside `with
    warnings.catch_warnings():` (which is traced) leave the whole function to eager; unsafe where
    the filter may make errors of warnings.
    """

    code = "DYN303"
    safety = Safety.SAFE
    nodes = (ast.Expr,)
    before = """
import warnings

import torch


@torch.compile
def step(x: torch.Tensor):
    warnings.warn("slow path")
    return torch.relu(x)
"""
    after = """
import warnings

import torch


@torch.compile
def step(x: torch.Tensor):
    if not torch.compiler.is_compiling():
        warnings.warn("slow path")
    return torch.relu(x)
"""

    def check(self, node: Any, context: FileContext) -> Iterable[Finding]:
        call = node.value
        name = context.resolve(call.func) if isinstance(call, ast.Call) else None
        if name not in ("warnings.warn", *_FILTERS):
            return
        kept = ""
        if not all(
            effect_free(a, context) for a in [*call.args, *(k.value for k in call.keywords)]
        ):
            kept = "its arguments do more than read: muting them could change the result"
        elif _recorded(node, context):
            kept = "the warnings are recorded here"
        if kept:
            yield context.finding(self, node, kept=kept)
            return
        built = guard([node], context, silent=int(name == "warnings.warn"))
        if isinstance(built, Fix) and name in _FILTERS and not _tells(call):
            built = replace(
                built,
                safety=Safety.UNSAFE,
                why="a warning may be an error here, which compiled code does not raise",
            )
        message = (
            self.message
            if name == "warnings.warn"
            else "a filter of warnings is set in compiled code"
        )
        yield context.finding(self, node, message, fix=built)


def _recorded(node: ast.AST, context: FileContext) -> bool:
    """Whether a `with` around a statement keeps the warnings."""
    while node is not None:
        items = node.items if isinstance(node, ast.With) else []
        kept = (i.context_expr for i in items if i.optional_vars is not None)
        calls = (c.func for c in kept if isinstance(c, ast.Call))
        if any(context.resolve(f) == "warnings.catch_warnings" for f in calls):
            return True
        node = context.parent(node)
    return False


def _tells(call: ast.Call) -> bool:
    """Whether a filter only says which warnings are shown."""
    action = (
        call.args[0]
        if call.args
        else next((k.value for k in call.keywords if k.arg == "action"), None)
    )
    return isinstance(action, ast.Constant) and action.value in (
        "ignore",
        "default",
        "always",
        "module",
        "once",
    )


class ProgressBar(CallRule):
    """
    A progress bar reads the clock and writes to the terminal at every turn: the graph breaks there.
    Where a loop goes over it, compiled code goes over the plain iterable, without a bar. A bar that
    has a name is used for more: iterate over the plain iterable, and show progress outside.
    """

    code = "DYN305"
    safety = Safety.SAFE
    names = _BARS
    before = """
import torch
from tqdm import tqdm


@torch.compile
def step(x: torch.Tensor):
    for _ in tqdm(range(3)):
        x = torch.relu(x) + 1
    return x
"""
    after = """
import torch
from tqdm import tqdm


@torch.compile
def step(x: torch.Tensor):
    for _ in range(3) if torch.compiler.is_compiling() else tqdm(range(3)):
        x = torch.relu(x) + 1
    return x
"""

    def applies(self, node: ast.Call, context: FileContext) -> bool:
        return not has_compiled_form(node, context)

    def fix(self, node: ast.Call, context: FileContext) -> Fix | Refusal:
        """A choice, where a loop goes over the bar and the iterable is evaluated as it was."""
        parent, torch = context.parent(node), context.torch(node)
        loop = isinstance(parent, (ast.For, ast.comprehension)) and parent.iter is node
        if torch is None:
            return hidden()
        if not loop or not node.args or any(isinstance(a, ast.Starred) for a in node.args):
            return Refusal("the bar is used for more than a loop")
        ranges = (context.resolve(node.func) or "").endswith("trange")
        text = ", ".join(map(context.shown, node.args)) if ranges else context.shown(node.args[0])
        plain = f"range({text})" if ranges else text
        choice = f"{plain} if {torch[0]}.compiler.is_compiling() else {context.shown(node)}"
        choice = choice if isinstance(parent, ast.For) else f"({choice})"
        edit = context.replacement(node, choice)
        return context.fix("no bar when compiled", edit, silent=1, imports=torch[1])
