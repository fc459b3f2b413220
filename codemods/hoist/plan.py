"""Which host reads of a traced run can be computed ahead of the captured call, and the edits that
do so.

A read that depends on the inputs of the outermost module alone is computed by a companion of that
module's `forward` (and of each function between), which runs before it, outside the graph; the
values are handed down as a parameter."""

from __future__ import annotations

import ast
import copy
import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ...rewriter.analysis.torch_facts import METHOD
from ...rewriter.source.import_places import after_imports
from ...rewriter.source.regular_files import read
from ...rewriter.source.source_file import SourceError, SourceFile
from ...rewriter.source.spans import Edit, Fix, Safety, apply
from ..analysis.findings import Finding
from ..cli.suppressions import Suppressions
from . import companion_edits
from .clobbers import Untouched
from .companion_source import HELPER, HELPER_TEXT, text_of
from .planner import Planner

if TYPE_CHECKING:
    from ..cli.settings import Settings
    from ..trace.trace_facts import TraceFacts
    from .companion import Companion


CODE = "DYN110"
_BUILTINS = frozenset("len int float bool range list tuple max min sum sorted zip".split())
_TITLE = "compute it ahead of the call"
_WHY = (
    "which functions lead to it, with which objects, and that nothing before writes into what is"
    " read, is what one run showed"
)


def _edits(planner: Planner) -> dict[str, list[Edit]]:
    """{path: edits}."""
    found, roots = {}, set()
    for companion in planner.companions.values():
        if companion.units or companion.calls:
            edits = found.setdefault(companion.file.path, [])
            edits += [*companion_edits.edits(companion), _definition(companion)]
            if companion.is_root:
                edits.append(_decorator(companion))
                roots.add(companion.file.path)
    for path in roots:
        source = planner.project.file(path).source
        if f"from dynfix import {HELPER}" not in source.text:
            helper = HELPER_TEXT.rstrip("\n").replace("\n", source.newline)
            found[path].append(after_imports(source, helper, "torch"))
    return found


def _fixes(planner: Planner) -> dict[str, Fix]:
    """{path: Fix}; none where one of them cannot be made."""
    found = {}
    for path, edits in _edits(planner).items():
        source = planner.project.file(path).source
        if None in edits:
            return {}
        why = _why(planner, path)
        safety = Safety.UNSAFE if why else Safety.SAFE
        found[path] = Fix(tuple(edits), _TITLE, safety, why, first=True)
        try:
            source.with_text(apply(source.text, edits))
        except (SourceError, ValueError):
            return {}
    return found


def _why(planner: Planner, path: str) -> str:
    """Why a file's part is unsafe: "" where its outermost forwards read for themselves alone, by
    torch's functions, and nothing before may write into what they read."""
    used = [c for c in planner.companions.values() if c.units or c.calls]
    own = [c for c in used if c.file.path == path]
    if not all(c.is_root and not c.calls and _only_torch(c) for c in own):
        return _WHY
    return "; ".join(dict.fromkeys(filter(None, (Untouched(c).doubt() for c in own))))


def _only_torch(companion: Companion) -> bool:
    names = companion.file.names
    for call in ast.walk(ast.parse(text_of(companion, "", "    "))):
        if not isinstance(call, ast.Call):
            continue
        name = names.resolve(call.func) or ""
        method = isinstance(call.func, ast.Attribute) and call.func.attr in METHOD
        if not (name.startswith("torch.") or method or name in _BUILTINS):
            return False
    return True


def _definition(companion: Companion) -> Edit:
    """The companion before its function, or, without an object, before the class."""
    source, node = companion.file.source, companion.function
    owner = companion.file.cls(node)
    place = node if owner is None or companion.takes_self else owner
    first = min([place.lineno, *(d.lineno for d in place.decorator_list)])
    indent = source.white_before(place) or ""
    while first > 1 and source.line(first - 1).startswith(f"{indent}#"):
        first -= 1  # a comment that belongs to it
    start = source.starts[first - 1]
    text = text_of(companion, indent, source.indent_unit())
    text = text if place is not owner else text + "\n"
    return Edit(start, start, text.replace("\n", source.newline))


def _decorator(companion: Companion) -> Edit:
    """The decorator that runs a root's companion, above the others; part of the same edit as the
    definition's place."""
    source, node = companion.file.source, companion.function
    first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
    at = source.starts[first - 1]
    indent = source.white_before(node) or ""
    return Edit(
        at, at + len(indent), f"{indent}@{HELPER}({companion.name}){source.newline}{indent}"
    )


@dataclass(frozen=True)
class FilePlan:
    """One file's part: it holds for this text alone, and together with the other files' parts."""

    text: str
    findings: tuple


def planned(
    facts: dict[str, TraceFacts], settings: Settings, load: Callable[..., Any] | None = None
) -> dict[str, TraceFacts]:
    """The facts, each with its file's part of the plan; of files that the settings let be changed.
    `load(path)` gives the Source of a file."""
    known = {path: copy.copy(fact) for path, fact in facts.items()}
    load = functools.cache(load or _load)
    planner = Planner(facts, load)
    for path in sorted(facts):
        for raw, clean in facts[path].reads:
            way = [(p, line) for p, _, (line, *_) in raw]
            if clean and all(p in facts and _may_change(p, n, load, settings) for p, n in way):
                planner.add(raw)
    planner.add_tests()
    for path, fix in _fixes(planner).items():
        known[path].plan = FilePlan(load(path).text, _findings(planner, path, fix))
    return known


def _load(path: str) -> Any:
    """The SourceFile at `path`; None where it is none."""
    try:
        return SourceFile.from_bytes(read(path), path)
    except (OSError, SourceError, RecursionError, MemoryError):
        return None


def _may_change(path: str, line: int, load: Any, settings: Settings) -> bool:
    source = load(path)
    if source is None or not settings.selects(CODE, path) or not settings.fixes(CODE):
        return False
    return not Suppressions(source).covers(CODE, line, line)


def _findings(planner: Planner, path: str, fix: Fix) -> tuple[Finding, ...]:
    source = planner.project.file(path).source
    places = {(f.file, n) for f, n in planner.reads if f.file.source is source}
    nodes = sorted({n for _, n in places}, key=lambda n: (n.lineno, n.col_offset))
    nodes = (
        nodes or [c.function for c in planner.companions.values() if c.file.source is source][:1]
    )
    return tuple(_finding(source, node, fix) for node in nodes)


def _finding(source: SourceFile, node: ast.AST, fix: Fix) -> Finding:
    message = "this value depends on inputs alone, but is read in the middle of the graph"
    end = node.end_lineno if isinstance(node, ast.expr) else node.lineno
    column = node.end_col_offset if isinstance(node, ast.expr) else node.col_offset + 3
    place = (
        node.lineno,
        source.column(node.lineno, node.col_offset),
        end,
        source.column(end, column),
    )
    return Finding(CODE, message, source.path, *place, fix, traced=True)
