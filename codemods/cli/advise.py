"""`dynfix advise script.py`, and `dynrun --advise`: what a run's graph breaks, recompiles and host
reads cost a step, and which fix there is."""

from __future__ import annotations

import json
import os
import shlex
import sys
from dataclasses import asdict, dataclass, replace
from typing import Any

from ... import __version__
from ...rewriter.dynrun.summary import say
from ...rewriter.source.regular_files import read
from ...rewriter.source.spans import Safety
from ...run import main as dynrun
from ..analysis.findings import CommandError, Finding
from ..hoist import plan
from ..trace import trace_facts
from . import deep_stack, formats, machine_formats, project_links, runner
from .command_line import SUFFIXES
from .run_fixes import is_library
from .settings import Settings, SettingsError, load
from .terminal import seen

LITTLE = 0.02  # of a step: less is not worth a change
SHOWN = 10  # costs in the text
_BOTH_SIDES = ("torch.where", "by predicates")  # in the titles of fixes that compute all sides
_JSON = ("--json", "--output-format=json")
_WORDS = {**dict.fromkeys(_JSON, "json"), "--output-format=full": "full", "--trace": "trace"}


def main(words: list[str]) -> int:
    """`dynfix advise [--json] [--trace] [options of dynrun] script.py [its arguments]`."""
    asked, rest = [], list(words)
    while rest and (rest[0] in _WORDS or rest[0] == "--output-format"):
        word = rest.pop(0)
        if word == "--output-format":
            word = f"{word}={rest.pop(0) if rest else ''}"
        if word not in _WORDS:
            raise SettingsError(f"{word}: the advisor's formats are full and json")
        asked.append(_WORDS[word])
    sys.argv[0] = "dynrun"
    return dynrun([f"--advise={','.join(asked or ['full'])}", *rest])


@dataclass(frozen=True)
class Advice:
    """A cost, and what dynfix offers for its line. `diff` is what the fix changes."""

    cost: Any
    finding: Finding | None
    record: dict[str, Any] | None
    diff: str

    @property
    def safety(self) -> str:
        """ "safe", "unsafe", "with --trace" or "none"."""
        fix = self.finding.fix if self.finding is not None else None
        if self.finding is None or fix is None:
            return "none"
        if fix.safety is Safety.SAFE and self.finding.traced:
            return "with --trace"
        return fix.safety.value

    @property
    def computes_both(self) -> bool:
        """Whether compiled code then computes, at every step, what this run may have skipped."""
        fix = self.finding.fix if self.finding is not None else None
        return fix is not None and any(form in fix.title for form in _BOTH_SIDES)

    @property
    def place(self) -> str:
        path = self.cost.file
        return f"{_short(path)}:{self.cost.line}" if path else self.cost.function

    def command(self, script: list[str]) -> str:
        """What makes the fix."""
        assert self.finding is not None and self.finding.fix is not None
        words = ["dynfix", "--select", self.finding.code]
        if self.finding.fix.safety is Safety.UNSAFE:
            words.append("--unsafe-fixes")
        if self.finding.traced:
            words += ["--trace", shlex.join(script)]
        return shlex.join([*words, _short(self.cost.file)])


def advise_after_run(script: list[str], costs: Any, asked: str, out: int | None) -> None:
    """Rank what was found, on stderr, or as JSON on the descriptor `out`. `asked`: words of
    `--advise`."""
    found: list[Advice] = []
    if costs is not None and costs.costs:
        trace = script if "trace" in asked else []
        found = _advice(costs.costs, trace)
    first = _first(costs, found, script)
    if out is not None:
        with os.fdopen(out, "w", encoding="utf-8") as stream:
            json.dump(_data(script, costs, found, first), stream, indent=2)
            stream.write("\n")
    else:
        say(seen("\n".join(_text(costs, found, first)), "\n"))


# -- fixes


def _advice(costs: list[Any], trace: list[str]) -> list[Advice]:
    files = {cost.file for cost in costs if cost.file.endswith(SUFFIXES)}
    paths = sorted(path for path in files if not is_library(path))
    if not paths:
        return [Advice(cost, None, None, "") for cost in costs]
    settings, lines = _settings(paths, trace), formats.PlainLines({})
    found = {path: _findings(path, settings) for path in paths}
    return [_of(cost, found.get(cost.file, []), lines) for cost in costs]


def _settings(paths: list[str], trace: list[str]) -> Settings:
    """The user's own, with every function in scope: what was compiled is known by the run."""
    try:
        settings = replace(load(os.path.dirname(paths[0])), scope="all", select=("DYN",), ignore=())
    except CommandError as error:
        say(f"{error}: the settings are not used")
        settings = Settings(scope="all")
    settings = project_links.linked([*paths, *_loaded()], settings, 1)
    if not trace:
        return runner.with_saved_facts(settings, paths)
    try:
        seen_facts = trace_facts.observed([shlex.join(trace)], paths)
        facts = deep_stack.called(plan.planned, trace_facts.load(seen_facts), settings)
    except (CommandError, RecursionError, MemoryError) as error:
        say(f"no traced run: {error}")
        return settings
    return replace(settings, facts=facts)


def _loaded() -> list[str]:
    """The script's own files, as far as it has loaded them."""
    own = __name__.partition(".")[0]
    modules = (m for name, m in list(sys.modules.items()) if name.partition(".")[0] != own)
    files = (getattr(module, "__file__", None) for module in modules)
    return sorted({f for f in files if f and f.endswith(SUFFIXES) and not is_library(f)})


def _findings(path: str, settings: Settings) -> list[Finding]:
    try:
        return list(runner.handled(path, read(path), settings, False).left)
    except OSError:
        return []


def _of(cost: Any, findings: list[Finding], lines: formats.PlainLines) -> Advice:
    """The cost with the finding of its line: one that has a fix, a safe one first."""
    if is_library(cost.file):
        return Advice(cost, None, None, "")
    here = [f for f in findings if f.line <= cost.line <= f.end_line and f.cell is None]
    order = {Safety.SAFE: 0, Safety.UNSAFE: 1}
    ranked = sorted(here, key=lambda f: 2 if f.fix is None else order[f.fix.safety])
    if not ranked or cost.kind == "recompile":
        return Advice(cost, None, None, "")
    best = ranked[0]
    return Advice(cost, best, machine_formats.record(best, lines), lines.diff(best))


# -- what is said


def _short(path: str) -> str:
    near = os.path.relpath(path)
    return path if near.startswith(os.pardir) else near


def _first(costs: Any, found: list[Advice], script: list[str]) -> str:
    """What to do first."""
    if costs is None:
        return "Nothing was compiled: the script calls no module, training step or torch.compile."
    if costs.why:
        return f"Nothing can be ranked: {costs.why}."
    lost = sum(advice.cost.ms for advice in found)
    if lost < LITTLE * costs.ms:
        return f"Nothing here is worth a change: it costs {lost:.2f} of {costs.ms:.2f} ms a step."
    fixed = next((a for a in found if a.safety != "none" and a.cost.ms >= LITTLE * costs.ms), None)
    if fixed is not None:
        word, end = ("at most", _COMPUTES) if fixed.computes_both else ("about", "")
        saves = f"{word} {_saving(fixed.cost, costs)}{end}"
        return f"First: `{fixed.command(script)}` removes {fixed.place}, which saves {saves}."
    saves = f"at most {_saving(found[0].cost, costs)}"
    return f"First: {found[0].place} costs {saves}, and has no fix: {found[0].cost.help}."


_COMPUTES = ", less what a side takes that this run skipped: compiled code computes both"


def _saving(cost: Any, costs: Any) -> str:
    seconds = cost.once_ms * costs.steps / 1e3
    parts = [f"{cost.each_ms:.2f} of {costs.ms:.2f} ms a step"] if cost.each_ms else []
    return " and ".join([*parts, *([f"{seconds:.1f} s of compiling"] if seconds else [])])


def _text(costs: Any, found: list[Advice], first: str) -> list[str]:
    if costs is None or costs.why:
        return [f"dynrun: {first}"]
    clock = " of processor time, since the machine is busy" if costs.clock == "processor" else ""
    lines = [
        f"dynrun: a step takes {costs.ms:.2f} ms{clock} ({costs.step}; {costs.counted} of"
        f" {costs.steps} steps counted); {costs.compile_seconds:.1f} s of compiling"
    ]
    for rank, advice in enumerate(found[:SHOWN], 1):
        lines += _entry(rank, advice, costs.ms)
    if len(found) > SHOWN:
        lines.append(f"  and {len(found) - SHOWN} more (--advise=json has all)")
    return [*lines, first]


def _entry(rank: int, advice: Advice, ms: float) -> list[str]:
    cost = advice.cost
    share = 100 * cost.each_ms / ms if ms else 0.0
    parts = ", ".join(f"{part} {each:.2f}" for part, each in cost.parts.items() if each >= 0.005)
    lines = [
        f"{rank:3}. {cost.ms:.2f} ms a step: {cost.kind}, {cost.times:.3g} a step"
        + (f", {share:.0f}% of it" if cost.each_ms else "")
        + (f" ({parts})" if len(cost.parts) > 1 and parts else ""),
        f"     {advice.place}  {cost.text}".rstrip(),
        f"     why: {cost.code} {cost.reason}".replace("why:  ", "why: "),
    ]
    finding = advice.finding
    if finding is not None and finding.fix is not None:
        why = f": {finding.fix.why}" if finding.fix.why else ""
        lines.append(f"     fix: {finding.code} {finding.fix.title} ({advice.safety}{why})")
        lines += [f"       {line}" for line in advice.diff.splitlines()[2:]]
    elif finding is not None and finding.kept:
        lines.append(f"     no fix: {finding.code} {finding.kept}; {cost.help}")
    else:
        where = "it stands in an installed package; " if is_library(cost.file) else ""
        lines.append(f"     no fix: {where}{cost.help}")
    return lines


def _data(script: list[str], costs: Any, found: list[Advice], first: str) -> dict[str, Any]:
    about = None if costs is None else {k: v for k, v in vars(costs).items() if k != "costs"}
    ranked = [
        {
            **asdict(advice.cost),
            "ms": advice.cost.ms,
            "safety": advice.safety,
            "computes_both_sides": advice.computes_both,
            "saves_ms": advice.cost.each_ms if advice.safety != "none" else None,
            "finding": advice.record,
            "diff": advice.diff or None,
            "command": advice.command(script) if advice.safety != "none" else None,
        }
        for advice in found
    ]
    return {
        "dynfix": __version__,
        "script": script,
        "run": about,
        "costs": ranked,
        "first": first,
    }
