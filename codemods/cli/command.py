"""The `dynfix` command."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ... import __version__
from ...rewriter.catalogue import REASONS
from ..analysis.findings import ERROR
from ..hoist.plan import planned
from ..rules import BY_CODE
from ..rules.base import without_rule
from ..trace import trace_facts
from . import add_noqa, command_line, formats, notebook, runner, side_by_side
from .settings import SettingsError

if TYPE_CHECKING:
    from ..analysis.findings import Finding
    from .formats import PlainLines
    from .runner import Result
    from .settings import Settings


CLEAN, FINDINGS, FAILED = 0, 1, 2


def main(argv: list[str] | None = None) -> int | None:
    """Run the command line; the result is the exit code."""
    argv = sys.argv[1:] if argv is None else list(argv)
    try:
        return _main(argv)
    except (SettingsError, trace_facts.TraceError) as error:
        print(f"dynfix: {error}", file=sys.stderr)
        return FAILED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except KeyboardInterrupt:
        print("dynfix: interrupted", file=sys.stderr)
        return FAILED


def _main(argv: list[str]) -> int | None:
    if argv[:1] == ["rule"] and not os.path.exists("rule"):
        return _rule(argv[1:])
    parser = command_line.parser(__version__)
    options = parser.parse_args(argv)
    if command_line.writes_nowhere(options):
        parser.print_help()
        print("\ndynfix: no PATH given; `dynfix .` fixes this folder", file=sys.stderr)
        return FAILED
    if options.explain:
        return _rule([options.explain])
    settings = command_line.settings(options)
    if options.show_settings:
        return _show_settings(settings)
    if options.verify:
        return side_by_side.command(options, settings, runner.write)
    if options.paths == ["-"]:
        return _stdin(options, settings)
    return _files(options, settings)


def _rule(codes: list[str]) -> int:
    known = [c.upper() for c in codes] or list(REASONS)
    missing = [c for c in known if c not in REASONS]
    if missing:
        print(f"dynfix: no rule {missing[0]}; the rules are {', '.join(REASONS)}", file=sys.stderr)
        return FAILED
    print("\n".join(_page(c) for c in known), end="")
    return CLEAN


def _page(code: str) -> str:
    """What is known of a code, in Markdown."""
    return BY_CODE[code].document() if code in BY_CODE else without_rule(REASONS[code])


def _show_settings(settings: Any) -> int:
    for name in settings.__dataclass_fields__:
        print(f"{name} = {getattr(settings, name)!r}")
    return CLEAN


# Standard input


def _stdin(options: Any, settings: Any) -> Any:
    raw = sys.stdin.buffer.read()
    fixing = not options.check
    result = runner.handle(options.stdin_filename, raw, settings, fixing)
    text = _decoded(raw)
    if options.diff:
        sys.stdout.write(_diff(result))
    elif fixing:
        sys.stdout.buffer.write(raw if result.raw is None else result.raw)
        sys.stdout.flush()
    stream = sys.stderr if fixing else sys.stdout
    lines = formats.PlainLines({options.stdin_filename: result.after or text})
    return _report([result], options, settings, [], stream, lines)


def _decoded(raw: Any) -> Any:
    return raw.decode("utf-8", errors="replace")


# Files


def _files(options: argparse.Namespace, settings: Any) -> int:
    paths, missing = runner.files(options.paths or ["."], settings)
    if options.trace:
        settings = replace(
            settings, facts=planned(trace_facts.run(options.trace, paths), settings), cache=False
        )
    fixing = not options.check and not options.add_noqa
    results = runner.run(paths, settings, fixing, _progress(options, len(paths)))
    if options.add_noqa:
        return _add_noqa(results, missing)
    errors = [f"{p}: no such file or folder" for p in missing]
    if options.diff:
        sys.stdout.write("".join(_diff(r) for r in results))
    elif fixing:
        errors += _write(results)
    stream = sys.stderr if options.diff else sys.stdout
    known = {r.path: r.after for r in results if r.after is not None}
    return _report(results, options, settings, errors, stream, formats.PlainLines(known))


def _write(results: list[Result]) -> list[Any]:
    errors = []
    for result in results:
        if result.raw is not None:
            try:
                runner.write(result.path, result.raw)
            except OSError as error:
                errors.append(f"{result.path}: cannot be written: {error.strerror}")
    return errors


def _diff(result: Result) -> str:
    if result.after is None:
        return ""
    if not result.path.endswith(notebook.SUFFIX):
        return _diff_of(result.before, result.after, result.path)
    before, after = notebook.cell_texts(result.before), notebook.cell_texts(result.after)
    return "".join(_diff_of(before[n], after[n], f"{result.path}:cell {n}") for n in before)


def _diff_of(before: str, after: str, path: str) -> str:
    import difflib  # only where a diff is asked for

    before, after = before.splitlines(keepends=True), after.splitlines(keepends=True)
    lines = difflib.unified_diff(before, after, path, path)
    return "".join(
        line if line.endswith(("\n", "\r")) else line + "\n\\ No newline at end of file\n"
        for line in lines
    )


def _progress(options: argparse.Namespace, count: int) -> Any:
    """A counter on a terminal for long runs, nothing in a pipe."""
    if options.quiet or count < 200 or not sys.stderr.isatty():
        return None

    def show(done: Any, total: Any) -> None:
        if done % 20 == 0 or done == total:
            end = "\r" if done < total else "\r" + " " * 40 + "\r"
            print(f"dynfix: {done}/{total} files", end=end, file=sys.stderr, flush=True)

    return show


# Reporting


def _painter(stream: Any) -> Callable[..., Any]:
    """Marks up text for a terminal; rich is loaded only for one."""
    if not stream.isatty() or os.environ.get("NO_COLOR"):
        return lambda text, style: text
    from rich.style import Style

    return lambda text, style: Style.parse(style).render(text)


def _report(
    results: list[Result],
    options: argparse.Namespace,
    settings: Settings,
    errors: list[str],
    stream: Any,
    lines: PlainLines,
) -> int:
    left = [f for r in results for f in r.left]
    failing = [f for f in left if f.level == ERROR]
    shown = left if options.verbose or settings.output_format not in formats.FOR_PEOPLE else failing
    if options.statistics:
        stream.write(formats.statistics(shown))
    else:
        stream.write(formats.FORMATTERS[settings.output_format](shown, lines, _painter(stream)))
    stream.flush()  # what stderr says comes after it, wherever both go
    errors += [f"{r.path}:{r.error[1]}:{r.error[2]}: {r.error[0]}" for r in results if r.error]
    for error in errors:
        print(f"dynfix: {error}", file=sys.stderr)
    if not options.quiet and settings.output_format in formats.FOR_PEOPLE:
        _summary(results, left, options, settings)
    return _exit_code(results, failing, errors, options)


def _exit_code(
    results: list[Result], failing: list[Finding], errors: list[str], options: argparse.Namespace
) -> int:
    if errors:
        return FAILED
    fixed = any(r.applied for r in results)
    if fixed and (options.exit_non_zero_on_fix or options.diff):
        return FINDINGS
    return FINDINGS if failing and not options.exit_zero else CLEAN


def _count(number: int, word: str) -> str:
    return f"{number} {word}{'' if number == 1 else 's'}"


def _summary(
    results: list[Result], left: list[Finding], options: argparse.Namespace, settings: Settings
) -> None:
    applied = [f for r in results for f in r.applied]
    if options.verbose:
        for finding in applied:
            print(f"fixed {finding.place}: {finding.code} {finding.fix.title}", file=sys.stderr)
    failing = [f for f in left if f.level == ERROR]
    notes = len(left) - len(failing)
    parts = []
    if applied:
        files = sum(bool(r.applied) for r in results)
        verb = "Would fix" if options.diff else "Fixed"
        parts.append(
            f"{verb} {_count(len(applied), 'problem')} in"
            f" {_count(files, 'file')}{_silent(applied)}."
        )
    parts.append(
        f"Found {_count(len(failing), 'problem')}{' more' if applied else ''}."
        if failing
        else _clean(applied)
    )
    parts += _ways_out(failing, options, settings)
    if notes and not options.verbose:
        parts.append(f"{_count(notes, 'note')} (-v shows).")
    print(" ".join(p for p in parts if p), file=sys.stderr)


def _clean(applied: list[Any]) -> str:
    return "" if applied else "All clear."


def _silent(applied: list[Finding]) -> str:
    fixes = dict.fromkeys(f.fix for f in applied)
    count = sum(f.silent for f in fixes)
    return f" ({_count(count, 'print or log call')} silent when compiled)" if count else ""


def _ways_out(failing: list[Finding], options: argparse.Namespace, settings: Settings) -> list[str]:
    safe = sum(f.fix is not None and f.fix.safety.value == "safe" for f in failing)
    unsafe = sum(f.fix is not None and f.fix.safety.value == "unsafe" for f in failing)
    parts = []
    if safe and options.check:
        parts.append(f"{safe} fixable with `dynfix`.")
    if unsafe and not settings.unsafe_fixes:
        parts.append(f"{unsafe} fixable with `--unsafe-fixes`.")
    return parts


# --add-noqa


def _add_noqa(results: list[Result], missing: list[Any]) -> int:
    added = 0
    for result in results:
        added += _annotate(result.path, [f for f in result.left if f.level == ERROR])
    for path in missing:
        print(f"dynfix: {path}: no such file or folder", file=sys.stderr)
    print(f"Added {_count(added, 'noqa comment')}.", file=sys.stderr)
    return FAILED if missing or any(r.error for r in results) else CLEAN


def _annotate(path: str, found: list[Finding]) -> int:
    if not found:
        return 0
    with open(path, "rb") as stream:
        raw, count = add_noqa.annotate(stream.read(), path, found)
    if count:
        runner.write(path, raw)
    return count


if __name__ == "__main__":
    sys.exit(main())
