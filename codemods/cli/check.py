"""One file: findings, and the file with its fixes made. Fixing goes on until nothing changes, so
that a second run finds nothing to do."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ...rewriter.source.import_places import add_import
from ...rewriter.source.intents import realised
from ...rewriter.source.source_file import SourceError
from ...rewriter.source.spans import Safety, apply, disjoint
from ..analysis.captured_walk import Walk
from ..analysis.file_context import FileContext
from ..analysis.findings import ERROR
from ..rules import RULES
from ..rules.data_shapes.scoped_capture import CAPTURED
from .suppressions import Suppressions

if TYPE_CHECKING:
    import ast

    from ...rewriter.source.source_file import SourceFile
    from ...rewriter.source.spans import Edit, Fix
    from ..analysis.definitions import Function
    from ..analysis.findings import Finding
    from ..rules.base import Rule
    from .settings import Settings


_MAX_ROUNDS = 50


@dataclass(frozen=True)
class Fixed:
    """`source` after the fixes; `applied`: the findings that were fixed; `left`: those of the final
    text; both placed."""

    source: object
    applied: tuple
    left: tuple


def enabled(settings: Settings, path: str) -> list[Rule]:
    """The rules that look at the file at `path`."""
    return [r for r in RULES if settings.selects(r.code, path) and not _whole(r, settings)]


def _whole(rule: Rule, settings: Settings) -> bool:
    """Whether what a rule finds breaks no graph with the torch that the code runs with."""
    return bool(rule.whole_since) and not settings.targets_before(rule.whole_since)


def findings(source: SourceFile, settings: Settings) -> list[Finding]:
    """Every finding of a file, suppressed ones left out, in order."""
    links = settings.links_of(source.path)
    if "torch" not in source.text and not (links and links.reached):
        return []
    found = _findings(source, settings)
    if settings.facts_of(source.path) is None:
        return found
    alone = _findings(source, replace(settings, facts={}))
    proved = {(f.code, f.fix) for f in alone}
    seen = [f if (f.code, f.fix) in proved else replace(f, traced=True) for f in found]
    return _with_all_fixes(seen, alone)


_BY_TEXT = {None: 0, Safety.UNSAFE: 1, Safety.SAFE: 2}


def _with_all_fixes(seen: list[Finding], alone: list[Finding]) -> list[Finding]:
    """What a run showed takes no fix away that the text alone allows; what it proved is made first,
    for that may change the rest."""
    if any(f.fix is not None and f.fix.safety is Safety.SAFE for f in seen):
        return seen
    better = {(f.code, f.line, f.column): f for f in alone if f.fix is not None}
    found = []
    for finding in seen:
        other = better.pop((finding.code, finding.line, finding.column), finding)
        worth = [_BY_TEXT[f.fix and f.fix.safety] for f in (finding, other)]
        found.append(other if worth[1] > worth[0] else finding)
    proved = [f for f in better.values() if f.fix.safety is Safety.SAFE]
    return sorted(found + proved, key=lambda f: f.sort_key())


def _off(settings: Settings, path: str) -> list[str]:
    """The rules that find nothing in a file: what is not selected, and, without facts of a traced
    run, what only such a run shows."""
    traced = settings.facts_of(path) is not None
    known = (r.code for r in RULES if (traced or not r.shown) and not _whole(r, settings))
    on = {code for code in known if settings.selects(code, path)}
    return [r.code for r in RULES if r.code not in on]


def _findings(source: SourceFile, settings: Settings, within_fix: bool = False) -> list[Finding]:
    context = FileContext(source, settings)
    rules = enabled(settings, source.path)
    functions = context.program.captured(settings.scope)
    found = _captured(context, rules, functions) + _whole_file(context, rules)
    changed = context.inference.affected(context.inference.suggested)
    if changed:
        alive, context = context.alive, context.supposing(changed)
        found = _with_assumed(_captured(context, rules, functions & changed), found)
        context.alive = alive
    for rule in rules:
        found = rule.conclude(context, found)
    if not within_fix:
        found += _on_some_path(context, rules, functions, found)
    suppressions = Suppressions(source)
    if settings.verified and context.facts:
        found = [_shown_by_run(f, context) for f in found]
    kept = [f for f in found if not suppressions.covers(f.code, f.line, f.end_line)]
    shown = [_admitted(f, source) for f in _without_suppressed(kept, found)]
    if not within_fix:
        shown = [_with_next(f, shown, source, settings) for f in shown]
    return sorted(
        [*shown, *suppressions.unused(_off(settings, source.path))], key=lambda f: f.sort_key()
    )


def _with_next(
    finding: Finding, found: list[Finding], source: SourceFile, settings: Settings
) -> Finding:
    """The finding; without its fix where that would leave another graph break in its place."""
    if finding.fix is None or not (finding.fix.needs_next or finding.fix.needs_whole):
        return finding
    changed = apply_fixes(source, [finding.fix])
    after = _findings(changed, settings, within_fix=True) if changed else found
    before, left = ([f for f in fs if f.level == ERROR] for fs in (found, after))
    fixable = [f for f in left if f.code == _CAPTURE and f.fix and settings.fixes(f.code)]
    unsafe = finding.fix.safety is Safety.UNSAFE  # it is made where unsafe fixes are
    capturing = [f for f in fixable if unsafe or settings.wants(f)]
    stuck = [f for f in left if f.fix is None and not _is_captured(f, capturing)]
    fewer = len(left) < len(before) or len(stuck) <= sum(f.fix is None for f in before)
    if not stuck or (fewer and not finding.fix.needs_whole):
        return finding
    why = next((f.kept for f in stuck if f.kept), "it has no form")
    return finding.without_fix(f"the graph would break at line {stuck[0].line} then: {why}")


_CAPTURE = "DYN506"  # whose fix has torch capture what a function reads


def _is_captured(finding: Finding, capturing: list[Finding]) -> bool:
    """Whether the fix of another finding has the function around this one captured."""
    told = finding.kept == CAPTURED
    return any(told or f.line <= finding.line for f in capturing)


def _shown_by_run(finding: Finding, context: FileContext) -> Finding:
    """The finding with a fix that is safe, where eager runs what it ran and the run that verifies
    it compares what compiled code does then."""
    fix = finding.fix
    if fix is None or not (fix.compiled and fix.ran):
        return finding
    around = (f for f in context.program.functions if _contains(f.node, finding))
    inner = max(around, key=lambda f: f.node.lineno, default=None)
    if inner is None or inner.qualified not in context.facts.captured:
        return finding
    return replace(finding, fix=replace(fix, safety=Safety.SAFE, why=""), traced=True)


def _contains(node: ast.AST, finding: Finding) -> bool:
    return node.lineno <= finding.line <= node.end_lineno


_SUPPOSED = (
    "an input that has no annotation is taken to be a tensor, by its use: annotate it, or show a"
    " run with --trace"
)


def _with_assumed(supposed: list[Finding], found: list[Finding]) -> list[Finding]:
    """The findings, with those that hold where inputs are tensors, and fixes that ask for that."""
    asked = {_place(f) for f in supposed if f.fix is not None and f.fix.asked and _is_safe(f)}
    kept = [f for f in found if _is_safe(f) or _place(f) not in asked]
    return [*kept, *_only_assumed(supposed, kept)]


_OF_VALUES = ("DYN1", "DYN2", "DYN5")  # what reads tensors, or branches on them


def _on_some_path(
    context: FileContext, rules: list[Rule], functions: set[Function], found: list[Finding]
) -> list[Finding]:
    """Findings that hold on one of several paths, where another binds something else or nothing.
    There is no fix: nothing tells the paths apart."""
    partly = context.inference.partly & functions
    changed = context.inference.affected(partly) & functions
    if not changed:
        return []
    known = {(f.code, f.line) for f in found}
    of_values = [r for r in rules if r.code.startswith(_OF_VALUES)]
    more = _captured(context.supposing(changed, any_path=True), of_values, changed)
    return [
        replace(f, fix=None, kept=_SOME_PATH)
        for f in more
        if f.level == ERROR and (f.code, f.line) not in known
    ]


_SOME_PATH = "it is a tensor on some paths alone"


def _place(finding: Finding) -> tuple[str, int, int]:
    return finding.code, finding.line, finding.column


def _is_safe(finding: Finding) -> bool:
    return finding.fix is not None and finding.fix.safety is Safety.SAFE


def _only_assumed(supposed: Any, found: Any) -> Iterator[Any]:
    """Findings that hold where inputs are tensors; none of their fixes is proved."""
    known = {_place(f) for f in found}
    for finding in supposed:
        if _place(finding) not in known:
            fix = finding.fix
            why = f"{fix.why}; {_SUPPOSED}" if fix is not None and fix.why else _SUPPOSED
            if fix is not None and not fix.asked:
                fix = replace(fix, safety=Safety.UNSAFE, why=why)
            yield replace(finding, fix=fix)


def _without_suppressed(kept: list[Finding], found: list[Finding]) -> list[Finding]:
    """A fix that would also change a suppressed finding is not offered."""
    muted = {f.fix for f in found if f not in kept and f.fix is not None}
    return [
        f.without_fix("a suppressed finding shares the fix") if f.fix in muted else f for f in kept
    ]


def _admitted(finding: Finding, source: SourceFile) -> Finding:
    why = finding.fix is not None and source.refuses(finding.fix)
    return finding.without_fix(why) if why else finding


def _captured(context: FileContext, rules: list[Rule], functions: set[Function]) -> list[Finding]:
    walk = Walk(context, _table([r for r in rules if not r.whole_file]))
    walk.captured = functions
    for function in sorted(functions, key=lambda f: f.node.lineno):
        walk.function(function)
    return walk.found


def _table(rules: list[Any]) -> dict[type, list[Any]]:
    table = {}
    for rule in rules:
        for node_type in rule.nodes:
            table.setdefault(node_type, []).append(rule)
    return table


def _whole_file(context: FileContext, rules: list[Rule]) -> list[Finding]:
    whole = [(rule, node_type) for rule in rules if rule.whole_file for node_type in rule.nodes]
    return [
        f
        for rule, t in whole
        for node in context.index.get(t, ())
        for f in rule.check(node, context)
    ]


def fix(source: SourceFile, settings: Settings) -> Fixed:
    """Fixed: every fix that the settings allow made, those of the first lines first, until none is
    left."""
    applied, dropped = [], set()
    found = findings(source, settings)
    for _ in range(_MAX_ROUNDS):
        chosen = [f for f in found if settings.wants(f) and _key(f) not in dropped]
        fixes = disjoint(f.fix for f in [f for f in chosen if f.fix.first] or chosen)
        if not fixes:
            break
        changed = apply_fixes(source, fixes)
        if changed is None:
            fixes = fixes[:1]
            changed = apply_fixes(source, fixes)
        if changed is None:
            dropped |= {_key(f) for f in chosen if f.fix in fixes}
            continue
        applied += source.placed([f for f in chosen if f.fix in fixes])
        source = changed
        settings = replace(settings, broken={})  # its lines are those of the text before
        found = findings(source, settings)
    left = [_failed(f) if _key(f) in dropped else f for f in found]
    return Fixed(source, tuple(applied), tuple(source.placed(left)))


def _key(finding: Finding) -> tuple[str, Fix | None]:
    return finding.code, finding.fix


def _failed(finding: Any) -> Any:
    return finding.without_fix("its fix did not parse, and was taken back")


def apply_fixes(source: SourceFile, fixes: list[Fix]) -> SourceFile | None:
    """The source with the fixes and the imports that they need; None where the result does not
    parse."""
    edits = splices(source, fixes)
    if edits is None:
        return None
    try:
        changed = source.with_text(apply(source.text, edits))
        changed.to_bytes()
    except (SourceError, ValueError):
        return None
    return changed


def splices(source: SourceFile, fixes: list[Fix]) -> list[Edit] | None:
    """The fixes, and the imports that they need, as splices of the text; None where one cannot be
    made."""
    modules = sorted({m for f in fixes for m in f.imports})
    edits = [e for f in fixes for e in f.edits] + [add_import(source, m) for m in modules]
    try:
        return realised(source, edits)
    except (SourceError, ValueError):
        return None
