"""DYN506: numbers and shapes that are read from tensors, captured below one root alone."""

from __future__ import annotations

import ast
import os
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from ....rewriter.source.import_places import after_imports
from ....rewriter.source.intents import insert_before
from ....rewriter.source.spans import Refusal, Safety, hidden
from ...trace.reads_left import Text, stands
from ..base import Rule

if TYPE_CHECKING:
    from ....rewriter.source.source_file import SourceFile
    from ....rewriter.source.spans import Fix
    from ...analysis.definitions import Function
    from ...analysis.file_context import FileContext
    from ...analysis.findings import Finding


_NAME = "captures_reads"
_HELPER = f"""
try:
    from dynfix import {_NAME}
except ImportError:  # without dynfix, the graph breaks where it did

    def {_NAME}(forward):
        return forward"""
_WHY = (
    "two options of torch._dynamo are on while this forward is compiled; sizes that depend on data"
    " stay symbols, and where Dynamo cannot go on with one, the whole forward runs in eager"
)


class ScopedCapture(Rule):
    """
    Where a value that is read from a tensor depends on activations (how many tokens go to an
    expert, how many frames are predicted), no other form keeps it in the graph. Dynamo can capture
    it as a symbol, by two options that hold for the whole process.

    The helper sets them while one forward is compiled, and puts them back. Other code is compiled
    as before, eager code runs as before, and inside another compiled module the forward is inlined
    as it was. Offered with `--trace` alone, on the outermost modules of the run, where a read is
    left after all other fixes.

    Unsafe: the options change how code below the forward is compiled. The helper, which dynfix has,
    uses torch's internals.
    """

    code = "DYN506"
    safety = Safety.UNSAFE
    shown = (("Model.forward", "Model.forward", "x[x > x.mean()]"),)
    before = """
import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x):
        return torch.sort(x[x > x.mean()]).values
"""
    after = f"""
import torch
from torch import nn

{_HELPER}


class Model(nn.Module):
    @{_NAME}
    def forward(self, x):
        return torch.sort(x[x > x.mean()]).values
"""

    def check(self, node: Any, context: FileContext) -> Iterable[Finding]:
        return ()

    def conclude(self, context: FileContext) -> Iterator[Finding]:
        roots = context.facts.roots if context.facts else {}
        for function in context.program.functions:
            ways = roots.get(function.qualified, ())
            if ways and not _captures(function.node) and _reads(ways, context):
                yield self._finding(function, context)

    def _finding(self, function: Function, context: FileContext) -> Finding:
        return context.finding(self, function.node, fix=self._fix(function.node, context))

    def _fix(self, node: Any, context: FileContext) -> Fix | Refusal:
        """The Fix: the helper, where the file has none yet, and the outermost decorator."""
        source, found = context.source, context.torch(node)
        if found is None or found[1]:
            return hidden()
        imported = f"from dynfix import {_NAME}" in source.text
        if not imported and _NAME in context.names.bound:
            return hidden(_NAME)
        edits = [self._decorator(node, source)]
        if not imported:
            helper = _HELPER.replace("\n", source.newline)
            edits.append(after_imports(source, helper, found[0]))
        if None in edits:
            return Refusal("the imports, or the function's own line, leave no place for it")
        title = "capture what is read, below it alone"
        return context.fix(title, *edits, safety=Safety.UNSAFE, why=_WHY)

    def _decorator(self, node: ast.FunctionDef, source: SourceFile) -> Any:
        alone = source.white_before(node) is not None
        return insert_before(source, node, f"@{_NAME}") if alone else None


def _reads(ways: list[list[list[str]]], context: FileContext) -> bool:
    """Whether a number or a shape is still read below a root: in this file, or, as the run of all
    files found, elsewhere (an empty way)."""
    own = os.path.realpath(context.source.path)
    text = Text(context.source.tree, context.names)
    here = [way for way in ways if way and way[-1][0] == own and not _is_truth(way[-1], context)]
    return [] in ways or any(stands(way, {own: text}) for way in here)


def _is_truth(read: list[str], context: FileContext) -> bool:
    """Whether what was read is a bool, which can only decide a branch: a symbol is no help
    there."""
    fact = context.facts.table.get((read[1], read[2]))
    return fact is not None and fact.what == "bool"


def _captures(node: ast.FunctionDef) -> bool:
    """Whether the helper is on it already."""
    return any(isinstance(d, ast.Name) and d.id == _NAME for d in node.decorator_list)
