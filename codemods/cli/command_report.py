"""What a run says: the findings in the format asked for, the summary, the exit code."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..analysis.findings import ERROR
from . import formats
from .command_line import CLEAN, FAILED, FINDINGS
from .on_demand import OnDemand
from .settings import SettingsError
from .terminal import seen

if TYPE_CHECKING:
    from ..analysis.findings import Finding
    from . import machine_formats
    from .formats import PlainLines
    from .runner import FileResult
    from .settings import Settings
else:
    machine_formats = OnDemand(".machine_formats")


def report(
    results: list[FileResult],
    options: argparse.Namespace,
    settings: Settings,
    failures: list[Finding],
    stream: Any,
    lines: PlainLines,
) -> int:
    """Print the findings that are left, and what failed; the exit code."""
    left = [f for r in results for f in r.left]
    failing = [f for f in left if f.level == ERROR]
    failures = [*failures, *(r.error for r in results if r.error)]
    for_people = settings.output_format in formats.FORMATTERS
    shown = [*failures, *(left if options.verbose or not for_people else failing)]
    if options.statistics:
        stream.write(_statistics(shown, settings))
    else:
        known = formats if for_people else machine_formats
        printed = known.FORMATTERS[settings.output_format]
        stream.write(printed(shown, lines, painter(stream)))
    stream.flush()  # what stderr says comes after it, wherever both go
    if not options.quiet and for_people:
        _summary(results, left, failures, options, settings)
    if failures:
        return FAILED
    return _exit_code(results, failing, options, settings)


def _statistics(shown: list[Finding], settings: Settings) -> str:
    name, rows = settings.output_format, formats.counts(shown, settings.wants)
    if name in formats.FORMATTERS:
        return formats.statistics(rows)
    if name in machine_formats.STATISTICS:
        return machine_formats.STATISTICS[name](rows)
    known = ", ".join([*formats.FORMATTERS, *machine_formats.STATISTICS])
    raise SettingsError(f"--statistics are printed as {known}, not as {name}")


def _exit_code(
    results: list[FileResult],
    failing: list[Finding],
    options: argparse.Namespace,
    settings: Settings,
) -> int:
    fixed = any(r.applied for r in results)
    if options.diff:  # as ruff: whether there is one, unless any exit is to be 0
        return FINDINGS if fixed and not settings.exit_zero else CLEAN
    if fixed and options.exit_non_zero_on_fix:
        return FINDINGS
    if settings.exit_zero:
        return CLEAN
    if settings.exit_zero_on_unsafe:
        failing = [f for f in failing if not _has_fix(f, "unsafe")]
    return FINDINGS if failing else CLEAN


def count(number: int, word: str) -> str:
    return f"{number} {word}{'' if number == 1 else 's'}"


def _summary(
    results: list[FileResult],
    left: list[Finding],
    failures: list[Finding],
    options: argparse.Namespace,
    settings: Settings,
) -> None:
    applied = [f for r in results for f in r.applied]
    if options.verbose:
        for finding in applied:
            line = f"fixed {finding.place}: {finding.code} {finding.fix.title}"
            print(seen(line), file=sys.stderr)
    failing = [f for f in left if f.level == ERROR]
    notes = len(left) - len(failing)
    parts = [_fixed(results, applied, options)] if applied else []
    if failing:
        parts.append(f"Found {count(len(failing), 'problem')}{' more' if applied else ''}.")
    if failures:
        parts.append(f"{count(len(failures), 'failure')}: see above.")
    elif not failing and not applied:
        parts.append("All clear." if results else _nothing(options))
    parts += _ways_out(failing, options, settings)
    if notes and not options.verbose:
        parts.append(f"{count(notes, 'note')} (-v shows).")
    print(" ".join(parts), file=sys.stderr)


def _nothing(options: argparse.Namespace) -> str:
    return f"No Python files or notebooks found in {seen(', '.join(options.paths or ['.']))}."


def _fixed(results: list[FileResult], applied: list[Finding], options: argparse.Namespace) -> str:
    files = count(sum(bool(r.applied) for r in results), "file")
    verb = "Would fix" if options.diff else "Fixed"
    return f"{verb} {count(len(applied), 'problem')} in {files}{_silent(applied)}."


def _silent(applied: list[Finding]) -> str:
    fixes = dict.fromkeys((f.path, f.fix) for f in applied)  # one may answer several findings
    muted = sum(fix.silent for _, fix in fixes)
    return f" ({count(muted, 'print or log call')} silent when compiled)" if muted else ""


def _has_fix(finding: Finding, safety: str) -> bool:
    return finding.fix is not None and finding.fix.safety.value == safety


def _ways_out(failing: list[Finding], options: argparse.Namespace, settings: Settings) -> list[str]:
    safe = sum(_has_fix(f, "safe") for f in failing)
    unsafe = sum(_has_fix(f, "unsafe") for f in failing)
    parts = []
    if safe and options.check:
        parts.append(f"{safe} fixable with `dynfix`.")
    if unsafe and not settings.unsafe_fixes:
        parts.append(f"{unsafe} fixable with `--unsafe-fixes`.")
    return parts


# Whether output is coloured: https://no-color.org, FORCE_COLOR, TERM, and a terminal.


def coloured(stream: Any) -> bool:
    """NO_COLOR goes first, then FORCE_COLOR; else a terminal that is not TERM=dumb has colours."""
    if os.environ.get("NO_COLOR"):
        return False
    forced = os.environ.get("FORCE_COLOR", "")
    if forced:
        return forced not in ("0", "false")
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def painter(stream: Any) -> Callable[[str, str], str]:
    """Marks up text for a stream; rich is loaded only where there are colours."""
    if not coloured(stream):
        return lambda text, style: text
    from rich.style import Style

    return lambda text, style: Style.parse(style).render(text)
