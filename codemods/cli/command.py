"""The `dynfix` command."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ... import __version__
from ...rewriter.catalogue import REASONS
from ...rewriter.source.regular_files import read
from ..analysis.findings import ERROR, CommandError, failure
from . import command_line
from .command_line import CLEAN, FAILED, FINDINGS
from .on_demand import OnDemand
from .settings import SettingsError, meant_rule
from .terminal import never_fail, say, seen

if TYPE_CHECKING:
    import argparse

    from ..analysis.findings import Finding
    from ..hoist import plan
    from ..server import language_server
    from ..trace import saved_facts, trace_facts
    from . import (
        add_noqa,
        advise,
        command_report,
        completion,
        deep_stack,
        file_writes,
        formats,
        inspect_package,
        lock,
        notebook,
        rules_page,
        runner,
        side_by_side,
        trace_verify,
    )
    from .runner import FileResult
    from .settings import Settings
else:
    add_noqa, command_report = OnDemand(".add_noqa"), OnDemand(".command_report")
    advise, inspect_package = OnDemand(".advise"), OnDemand(".inspect_package")
    completion, file_writes = OnDemand(".completion"), OnDemand(".file_writes")
    deep_stack, formats = OnDemand(".deep_stack"), OnDemand(".formats")
    lock = OnDemand(".lock")
    language_server, notebook = OnDemand("..server.language_server"), OnDemand(".notebook")
    rules_page, runner = OnDemand(".rules_page"), OnDemand(".runner")
    side_by_side, trace_verify = OnDemand(".side_by_side"), OnDemand(".trace_verify")
    plan, trace_facts = OnDemand("..hoist.plan"), OnDemand("..trace.trace_facts")
    saved_facts = OnDemand("..trace.saved_facts")


def main(argv: list[str] | None = None) -> int | None:
    """Run the command line; the result is the exit code."""
    argv = sys.argv[1:] if argv is None else list(argv)
    never_fail()
    try:
        return _main(argv)
    except CommandError as error:
        say(str(error))
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError as error:  # the folder at hand is gone, or a disk full
        where = f"{error.filename}: " if isinstance(error.filename, str) else ""
        say(f"{where}{error.strerror or error}")
    except (RecursionError, MemoryError) as error:
        say(deep_stack.reason(error))
    except KeyboardInterrupt:
        say("interrupted")
    return FAILED


def _main(argv: list[str]) -> int | None:
    if argv and argv[0] in _ALONE:
        return _ALONE[argv[0]](argv[1:])
    parser, options = command_line.parsed(argv, __version__)
    if command_line.without_path(options):
        parser.print_help()
        print(file=sys.stderr)
        say("no PATH given; `dynfix .` fixes this folder")
        return FAILED
    if options.explain:
        return _rule([options.explain])
    settings = command_line.settings(options)
    if options.show_settings:
        return _show_settings(settings)
    if options.verify:
        return side_by_side.command(options, settings)
    if options.paths == ["-"]:
        return _stdin(options, settings)
    return _files(options, settings)


def _rule(codes: list[str]) -> int:
    known = [c.upper() for c in codes] or list(REASONS)
    missing = [c for c in known if c not in REASONS]
    if missing:
        say(f"no rule {missing[0]}{meant_rule(missing[0]) or '; `dynfix rule` shows all'}")
        return FAILED
    print("\n".join(rules_page.page(c) for c in known), end="")
    return CLEAN


def _server(words: list[str]) -> int:
    if words:
        raise SettingsError(f"dynfix server takes nothing, not {words[0]}")
    try:
        serve = language_server.serve
    except ModuleNotFoundError:  # pygls, or what comes with it
        raise SettingsError("no pygls: install dynfix[server]") from None
    return serve()


_ALONE = {
    "rule": _rule,
    "server": _server,
    "completion": lambda words: completion.main(words),
    "advise": lambda words: advise.main(words),
    "inspect": lambda words: inspect_package.main(words),
    "lock": lambda words: lock.main(words),
}


def _show_settings(settings: Any) -> int:
    for name in settings.__dataclass_fields__:
        print(seen(f"{name} = {getattr(settings, name)!r}"))
    return CLEAN


# Standard input


def _stdin(options: Any, settings: Any) -> Any:
    raw = sys.stdin.buffer.read()
    fixing = options.diff or not options.check
    result = runner.handled(options.stdin_filename, raw, settings, fixing)
    text = _decoded(raw)
    if options.diff:
        formats.show_diff(result, sys.stdout)
    elif fixing:
        sys.stdout.buffer.write(raw if result.raw is None else result.raw)
        sys.stdout.flush()
    stream = sys.stderr if fixing else sys.stdout
    lines = formats.PlainLines({options.stdin_filename: result.after or text})
    return command_report.report([result], options, settings, [], stream, lines)


def _decoded(raw: Any) -> Any:
    return raw.decode("utf-8", errors="replace")


# Files


def _files(options: argparse.Namespace, settings: Any) -> int:
    paths, failures = runner.files(options.paths or ["."], settings)
    traced, seen, keeps, costs = {}, {}, settings.cache, {}
    if options.trace:
        traced = trace_facts.observed(options.trace, paths)
        facts = deep_stack.called(plan.planned, trace_facts.load(traced), settings)
        seen = saved_facts.stamps(paths)
        settings = replace(settings, facts=facts, cache=False)
    else:
        settings = runner.with_saved_facts(settings, paths)
    fixing = (options.diff or not options.check) and not options.add_noqa
    settings = replace(settings, verified=bool(options.trace and not options.no_verify and fixing))
    results = runner.run(paths, settings, fixing, _progress(options, len(paths)))
    if settings.verified:
        results, costs = trace_verify.verified(options.trace, results, settings)
    if options.add_noqa:
        return _add_noqa(results, options, settings, failures)
    if options.diff:
        for result in results:
            formats.show_diff(result, sys.stdout)
    elif fixing:
        within = _within(options, settings)
        results = [_written(result, within) for result in results]
    if options.trace and keeps:
        saved_facts.store(traced, seen, settings.root)
        saved_facts.keep_costs({} if options.diff else costs, settings.root)
    stream = sys.stderr if options.diff else sys.stdout
    known = {r.path: r.after for r in results if r.after is not None}
    lines = formats.PlainLines(known)
    return command_report.report(results, options, settings, failures, stream, lines)


def _within(options: argparse.Namespace, settings: Settings) -> str:
    """The folder out of which no link is followed where a file is written."""
    return file_writes.checkout((options.paths or ["."])[0], settings.root)


def _written(result: FileResult, within: str) -> FileResult:
    """The result, once the file is put back if it was fixed; an error where it could not be."""
    if result.raw is None:
        return result
    try:
        file_writes.write(result.path, result.raw, result.read, within)
    except OSError as error:
        what = failure(result.path, f"cannot be written: {error.strerror}")
        return runner.FileResult(result.path, error=what)
    return result


def _progress(options: argparse.Namespace, total_files: int) -> Any:
    """A counter on a terminal for long runs, nothing in a pipe."""
    dumb = not sys.stderr.isatty() or os.environ.get("TERM") == "dumb"
    if options.quiet or total_files < 200 or dumb:
        return None

    def show(done: Any, total: Any) -> None:
        if done % 20 == 0 or done == total:
            end = "\r" if done < total else "\r" + " " * 40 + "\r"
            print(f"dynfix: {done}/{total} files", end=end, file=sys.stderr, flush=True)

    return show


# --add-noqa


def _add_noqa(
    results: list[FileResult],
    options: argparse.Namespace,
    settings: Settings,
    failures: list[Finding],
) -> int:
    """Every line with a finding gets its comment; under --diff and --check that is only told."""
    added, dry = 0, options.diff or options.check
    for result in results:
        if any(f.level == ERROR for f in result.left):
            try:
                added += deep_stack.called(_annotate, result.path, options, settings)
            except OSError as error:
                failures.append(failure(result.path, f"cannot be written: {error.strerror}"))
            except Exception as error:
                failures.append(failure(result.path, deep_stack.reason(error)))
    for trouble in [*failures, *(r.error for r in results if r.error)]:
        say(f"{trouble.place}: {trouble.message}")
    verb = "Would add" if dry else "Added"
    print(f"{verb} {command_report.count(added, 'noqa comment')}.", file=sys.stderr)
    if failures or any(r.error for r in results):
        return FAILED
    return FINDINGS if added and dry else CLEAN


def _annotate(path: str, options: argparse.Namespace, settings: Settings) -> int:
    """Handled anew, so that comments go to the lines of what is read and compared here."""
    before = read(path)
    left = runner.handled(path, before, settings, False).left
    raw, number = add_noqa.annotate(before, path, [f for f in left if f.level == ERROR])
    if options.diff:
        after = notebook.load(raw, path).document
        shown = runner.FileResult(path, before=notebook.load(before, path).document, after=after)
        formats.show_diff(shown, sys.stdout)
    elif number and not options.check:
        file_writes.write(path, raw, before, _within(options, settings))
    return number


if __name__ == "__main__":
    sys.exit(main())
