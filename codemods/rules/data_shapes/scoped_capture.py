"""DYN506: numbers and shapes that are read from tensors, captured below one root alone."""

from __future__ import annotations

import ast
import os
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ....rewriter.source.import_places import after_imports
from ....rewriter.source.intents import decorate, insert_before
from ....rewriter.source.spans import Fix, Refusal, Safety, hidden
from ...analysis.definitions import COMPILE
from ...analysis.findings import ERROR
from ...trace.reads_left import Text, stands
from ..base import Rule
from ..libraries.eager_part import eager_part
from .captured_reads import RECOMPILES, captured_below

if TYPE_CHECKING:
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
CAPTURED = "DYN506 keeps it in the graph as it is"
_WHY = (
    "two options of torch._dynamo are on while this forward is compiled; sizes that depend on data"
    " stay symbols, and where Dynamo cannot go on with one, the whole forward runs in eager"
)


class ScopedCapture(Rule):
    """
    Where a value that is read from a tensor depends on activations (how many tokens go to an
    expert, how many frames are predicted), Dynamo can capture it as a symbol, by two options that
    hold for the whole process. The helper sets them while one function is compiled, and puts them
    back. Other code is compiled as before, eager code runs as before, and inside another compiled
    module the function is inlined as it was.

    It is safe where such reads are all that breaks the graph there, their values go into
    arithmetic, sizes, slices and results alone, and no tensor is computed of what is read from one
    that is written there, too. It then comes before unsafe fixes of the reads.

    With `--trace`, it is offered as well on the outermost modules of the run, where a read is left
    after all other fixes. This is unsafe: where Dynamo cannot go on with a symbol, the whole forward
    runs in eager. The helper, which dynfix has, uses torch's internals.

    Findings of any rule for which no fix is left get the last one: the statements become a function
    that runs in eager, as one operator of the graph (`dynfix.eager_op`). It is safe if no gradient
    flows into it, and it gives nothing but new tensors of known sizes. Eager runs what it ran.
    Compiled code gains no speed there, but the graph does not break, gradients flow, and writes to
    buffers are kept. Types come from annotations or from `--trace`. With `--trace --unsafe-fixes`,
    so do the lines at which the run broke the graph and that no rule names.
    """

    code = "DYN506"
    safety = Safety.SAFE
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

    def conclude(self, context: FileContext, found: list[Finding]) -> list[Finding]:
        """What Dynamo surely captures is found no more, or with this fix, which changes nothing in
        eager, in the place of those that do."""
        for function in _compiled_alone(context):
            below = captured_below(function, found, context)
            if below is None:
                continue
            fix = self._fix(function.node, context, Safety.SAFE)
            if isinstance(fix, Refusal):
                continue
            found = [f for f in found if f not in below]
            if not _captures(function.node):
                kept = [f.without_fix(CAPTURED) if f.fix is None or _worse(f) else f for f in below]
                found += [*kept, context.finding(self, function.node, fix=fix)]
        eager = {f for f in context.program.functions if _runs_in_eager(f, context)}
        found = [f for f in found if not any(_stands_in(f, g, context) for g in eager)]
        for last in (_deciding, self._traced, _anything, self._at_breaks):
            if any(_is_made(f, context) for f in found):
                break
            found = last(context, found)
        return found

    def _at_breaks(self, context: FileContext, found: list[Finding]) -> list[Finding]:
        """Operators where a run broke the graph, of which no rule knows."""
        lines = context.settings.broken.get(os.path.realpath(context.source.path), ())
        for function in context.program.functions:
            node = function.node
            inner = [f.node for f in context.program.functions if f.outer is function]
            own = [
                n for n in lines if _holds(node, n) and not any(_holds(other, n) for other in inner)
            ]
            fix = _operator(function, own, context) if own else None
            if isinstance(fix, Fix):
                at = next(n for n in ast.walk(node) if getattr(n, "lineno", 0) == own[0])
                return [*found, context.finding(self, at, fix=fix)]
        return found

    def _traced(self, context: FileContext, found: list[Finding]) -> list[Finding]:
        if any(f.fix is not None and context.settings.fixes(f.code) for f in found):
            return found
        return [*found, *self._of_roots(context)]

    def _of_roots(self, context: FileContext) -> Iterator[Finding]:
        roots = context.facts.roots if context.facts else {}
        for function in context.program.functions:
            ways = roots.get(function.qualified, ())
            if ways and not _captures(function.node) and _reads(ways, context):
                fix = self._fix(function.node, context, Safety.UNSAFE)
                yield context.finding(self, function.node, fix=fix)

    def _fix(self, node: Any, context: FileContext, safety: Safety) -> Fix | Refusal:
        """The Fix: the helper, where the file has none yet, and the decorator."""
        source, found = context.source, context.torch(node)
        if found is None or found[1]:
            return hidden()
        imported = f"from dynfix import {_NAME}" in source.text
        if not imported and _NAME in context.names.bound:
            return hidden(_NAME)
        edits = [self._decorator(node, context)]
        if not imported:
            helper = _HELPER.replace("\n", source.newline)
            edits.append(after_imports(source, helper, found[0]))
        if any(e is None or isinstance(e, Refusal) for e in edits):
            return Refusal("the imports, or the function's own line, leave no place for it")
        title = "capture what is read, below it alone"
        why = _WHY if safety is Safety.UNSAFE else ""
        return context.fix(title, *edits, safety=safety, why=why)

    def _decorator(self, node: ast.FunctionDef, context: FileContext) -> Any:
        """Outermost; below what compiles the function, which is to compile what runs inside."""
        source = context.source
        if any(_compiles(d, context) for d in node.decorator_list):
            return decorate(source, node, _NAME)
        alone = source.white_before(node) is not None
        return insert_before(source, node, f"@{_NAME}") if alone else None


_READ = frozenset("DYN101 DYN102 DYN103 DYN105 DYN501 DYN503 DYN504".split())


def _is_safe(finding: Finding) -> bool:
    return finding.fix is not None and finding.fix.safety is Safety.SAFE


def _is_made(finding: Finding, context: FileContext) -> bool:
    """Whether the fix of a finding is to be made, by what a run shows, too."""
    fix, settings = finding.fix, context.settings
    shown = settings.verified and fix is not None and fix.compiled and fix.ran
    return settings.wants(
        replace(finding, fix=replace(fix, safety=Safety.SAFE)) if shown else finding
    )


def _deciding(context: FileContext, found: list[Finding]) -> list[Finding]:
    """Operators in the place of what decides by a tensor, or leaves torch."""
    decides = {f for f in context.program.functions if _left(found, f, context, _READ)}
    return _as_operators(context, found, decides)


def _anything(context: FileContext, found: list[Finding]) -> list[Finding]:
    """The same of what reads alone, where no root in another file captures it."""
    if context.facts and not context.facts.roots:
        return found
    return _as_operators(context, found, set(context.program.functions))


def _as_operators(
    context: FileContext, found: list[Finding], functions: set[Function]
) -> list[Finding]:
    """What nothing else mends, as operators that run in eager, where it can be that."""
    for function in context.program.functions:
        left = _left(found, function, context) if function in functions else []
        if left:
            made = _with(left[0], _operator(function, [f.line for f in left], context))
            rest = [f for f in found if _stands_in(f, function, context) and not _is_safe(f)]
            if made.fix is not None and any(_breaks_elsewhere(made.fix, f, context) for f in rest):
                made = replace(made, fix=replace(made.fix, safety=Safety.UNSAFE, why=_ELSEWHERE))
            found = [made if f is left[0] else f for f in found]
    return found


_ELSEWHERE = "the graph breaks beside these statements, too"


def _breaks_elsewhere(fix: Fix, finding: Finding, context: FileContext) -> bool:
    """Whether a safe fix leaves a graph break of its function outside of what it replaces."""
    if fix.safety is not Safety.SAFE or finding.level != ERROR or finding.code in RECOMPILES:
        return False
    text = context.source.text
    replaced = [e for e in fix.edits if e.start < e.end]
    lines = [[text.count("\n", 0, at) + 1 for at in (e.start, e.end)] for e in replaced]
    return not any(first <= finding.line <= last for first, last in lines)


def _operator(function: Function, lines: list[int], context: FileContext) -> Fix | Refusal:
    """The Fix in the function, or around its calls."""
    if context.program.disabled(function):
        return Refusal("it runs in eager")
    first = eager_part(function, sorted(lines), context)
    todo, seen, fix = [function], [], first
    while todo and isinstance(fix, Refusal):
        known = context.program.by_node
        callers = context.callers(todo.pop().node)
        for around, call in (
            (known[a], c)
            for a, c in callers
            if a in known and a not in seen and not context.program.disabled(known[a])
        ):
            seen.append(around.node)
            todo.append(around)
            fix = eager_part(around, [call.lineno], context)
            if isinstance(fix, Fix):
                break
    return fix if isinstance(fix, Fix) else first


def _with(finding: Finding, fix: Fix | Refusal) -> Finding:
    if isinstance(fix, Fix):
        return replace(finding, fix=fix, kept="")
    other = f"it cannot be an operator that runs in eager: {fix.why}"
    return finding if other in finding.kept else replace(finding, kept=f"{finding.kept}; {other}")


def _runs_in_eager(function: Function, context: FileContext, depth: int = 3) -> bool:
    """Whether operators that run in eager call a function, and nothing else does."""
    known = context.program.by_node
    callers = [known.get(around) for around, _ in context.callers(function.node)]
    return bool(callers) and all(
        f is not None
        and (context.program.disabled(f) or (depth and _runs_in_eager(f, context, depth - 1)))
        for f in callers
    )


def _left(
    found: list[Finding],
    function: Function,
    context: FileContext,
    but: frozenset[str] = frozenset(),
) -> list[Finding]:
    """The findings in a function, and in none within, that stay."""
    return [
        f
        for f in found
        if f.level == ERROR
        and (f.fix is None or context.settings.unsafe_fixes)
        and f.code not in RECOMPILES | but
        and f.kept != CAPTURED
        and _stands_in(f, function, context)
    ]


def _stands_in(finding: Finding, function: Function, context: FileContext) -> bool:
    inner = [f.node for f in context.program.functions if f.outer is function]
    around = [n for n in (function.node, *inner) if _holds(n, finding.line)]
    return around == [function.node]


def _holds(node: ast.FunctionDef, line: int) -> bool:
    return node.lineno <= line <= node.end_lineno


def _compiled_alone(context: FileContext) -> list[Function]:
    """The functions that torch.compile may be given: a module's `forward`, and what is compiled."""
    known = context.program.captured(context.settings.scope)
    return [
        f
        for f in context.program.functions
        if f in known
        and (f in context.program.compiled or (f.cls and f.cls.is_module and f.name == "forward"))
    ]


def _compiles(decorator: ast.expr, context: FileContext) -> bool:
    called = decorator.func if isinstance(decorator, ast.Call) else decorator
    return context.names.resolve(called) in COMPILE or "compile" in ast.unparse(decorator)


def _worse(finding: Finding) -> bool:
    return finding.fix is not None and finding.fix.safety is Safety.UNSAFE


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
