"""DYN407: iterators that live on from call to call."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from ...analysis.prior_bindings import prior_values
from ..base import Rule

if TYPE_CHECKING:
    from ...analysis.file_context import FileContext
    from ...analysis.findings import Finding


_MAKERS = frozenset(["iter", "zip", "map", "filter", "enumerate", "reversed"])
_COUNT = "itertools.count"
_CONSUMERS = frozenset(["next", "list", "tuple", "sum", "set", "sorted", "enumerate", "zip"])


class KeptGenerator(Rule):
    """
    An iterator made before the compiled code runs (a generator, `iter(...)`, `zip(...)`, most of
    `itertools`) is an object whose state the tracer does not see: `next` on it breaks the graph,
    and a loop over it leaves the whole function to eager. `itertools.count` is followed, but each
    number is a new graph. A generator function under `torch.compile` runs in eager as a whole.
    Iterators that compiled code makes and uses itself are fine.
    """

    code = "DYN407"
    nodes = (ast.Call, ast.For, ast.comprehension, ast.Yield, ast.YieldFrom)
    before = """
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.scales = iter([1.0, 0.5, 0.25])

    def forward(self, x: torch.Tensor):
        return torch.relu(x) * next(self.scales)
"""

    def check(self, node: Any, context: FileContext) -> Iterable[Finding]:
        if isinstance(node, (ast.Yield, ast.YieldFrom)):
            yield from self._yielding(node, context)
            return
        iterated = _iterated(node, context)
        if iterated is None:
            return
        if _given(node, iterated, context) or _kept(iterated, context):
            yield context.finding(self, iterated)
        elif _counter(iterated, context):
            message = (
                "a counter from outside is advanced in compiled code: each number is a new graph"
            )
            yield context.finding(self, iterated, message)

    def _yielding(self, node: Any, context: FileContext) -> Iterator[Finding]:
        """Once for a compiled function: at its first yield."""
        function = context.function(node)
        if function is None or not context.program.is_compiled(function):
            return
        if node is min(_own_yields(function.node), key=_place, default=None):
            message = "a generator function is compiled: it runs in eager as a whole"
            yield context.finding(
                self, node, message, help="compile the function that it calls for each value"
            )


def _place(node: ast.Yield) -> tuple[int, int]:
    return node.lineno, node.col_offset


def _iterated(node: ast.AST, context: FileContext) -> ast.expr | None:
    """What a node advances: `next(it)`, `it.send(v)`, `for v in it`, `list(it)`; else None."""
    if not isinstance(node, ast.Call):
        return node.iter
    if isinstance(node.func, ast.Attribute) and node.func.attr in ("send", "__next__"):
        return node.func.value
    named = (
        isinstance(node.func, ast.Name) and context.resolve(node.func) in _CONSUMERS and node.args
    )
    return node.args[0] if named else None


def _given(node: ast.AST, iterated: ast.expr, context: FileContext) -> bool:
    """Whether `node` is `next(p)` of a parameter of a compiled function that is not bound anew."""
    function = context.function(node)
    named = (
        isinstance(node, ast.Call)
        and isinstance(iterated, ast.Name)
        and getattr(node.func, "id", "") == "next"
    )
    if not named or function is None or not context.program.is_compiled(function):
        return False
    args = function.node.args
    stores = (
        n
        for n in ast.walk(function.node)
        if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)
    )
    given = any(a.arg == iterated.id for a in [*args.posonlyargs, *args.args, *args.kwonlyargs])
    return given and all(n.id != iterated.id for n in stores)


def _kept(iterated: ast.expr, context: FileContext) -> bool:
    values = prior_values(iterated, context)
    return bool(values) and all(_makes_iterator(v, context) for v in values)


def _makes_iterator(node: ast.expr, context: FileContext) -> bool:
    """Whether an expression gives a new iterator."""
    if isinstance(node, ast.GeneratorExp):
        return True
    if not isinstance(node, ast.Call):
        return False
    name = context.names.resolve(node.func) or ""
    if name in _MAKERS:
        return True
    return (name.startswith("itertools.") and name != _COUNT) or _calls_generator(
        node.func, context
    )


def _calls_generator(func: ast.expr, context: FileContext) -> bool:
    """Whether what is called is a generator function of the file."""
    if isinstance(func, ast.Name):
        function = context.program.top.get(func.id)
    else:
        own = isinstance(func, ast.Attribute) and context.inference.kind(func.value).what == "self"
        cls = context.program.classes.get(context.inference.kind(func.value).cls) if own else None
        function = context.program.method(cls, func.attr) if cls else None
    return (
        function is not None
        and not function.node.decorator_list
        and bool(_own_yields(function.node))
    )


def _own_yields(function: ast.FunctionDef) -> Any:
    """Those of the function itself, not of functions in it."""
    found, todo = [], list(function.body)
    while todo:
        node = todo.pop()
        if isinstance(node, (ast.Yield, ast.YieldFrom)):
            found.append(node)
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)):
            todo += ast.iter_child_nodes(node)
    return found


def _counter(iterated: ast.expr, context: FileContext) -> bool:
    values = prior_values(iterated, context)
    return bool(values) and all(
        isinstance(v, ast.Call) and context.names.resolve(v.func) == _COUNT for v in values
    )
