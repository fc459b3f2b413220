"""The command line: its options, and the settings that come out of them."""

import argparse
import os
from dataclasses import replace
from typing import Any

from .settings import FORMATS, SCOPES, Settings, SettingsError, convert, load

_LISTS = (
    "select",
    "ignore",
    "extend_select",
    "fixable",
    "unfixable",
    "exclude",
    "extend_exclude",
    "per_file_ignores",
)


def parser(version: str) -> Any:
    """The ArgumentParser of `dynfix`."""
    top = argparse.ArgumentParser(
        prog="dynfix",
        description=(
            "Find and fix what makes torch.compile break its graph. Alone: safe fixes, in place."
        ),
        epilog=(
            "`dynfix rule DYN201` explains a rule. Exit codes: 0 clean or fixed, 1 findings left, 2"
            " failure."
        ),
    )
    top.add_argument(
        "paths",
        nargs="*",
        metavar="PATH",
        help="files and folders, - for stdin; . if nothing is changed",
    )
    top.add_argument("--version", action="version", version=f"dynfix {version}")
    _modes(top.add_argument_group("what is done"))
    _rules(top.add_argument_group("which rules and files"))
    _output(top.add_argument_group("output"))
    return top


def writes_nowhere(options: Any) -> bool:
    """Whether files would be changed, and none are named: the folder at hand may not be meant."""
    reads = options.check or options.diff or options.explain or options.show_settings
    return not (options.paths or reads or options.verify)


def _modes(group: Any) -> None:
    group.add_argument("--check", action="store_true", help="only report; exit 1 on findings")
    group.add_argument("--diff", action="store_true", help="show what would change, change nothing")
    group.add_argument(
        "--unsafe-fixes",
        action="store_true",
        default=None,
        help="apply the fixes that may change behaviour as well",
    )
    group.add_argument(
        "--add-noqa", action="store_true", help="add `# noqa: CODE` to every line with a finding"
    )
    group.add_argument(
        "--verify",
        metavar="MODULE:FACTORY",
        help="run original and fixed code, compare, count breaks (needs torch)",
    )
    group.add_argument(
        "--trace",
        metavar="'SCRIPT ARGS'",
        help="run a script once, and fix what it shows the code to be (needs torch)",
    )
    group.add_argument("--explain", metavar="CODE", help="explain a rule")
    group.add_argument("--show-settings", action="store_true", help="show the settings in force")


def _rules(group: Any) -> None:
    for name in _LISTS:
        metavar = "PATTERN:CODE" if name == "per_file_ignores" else "LIST"
        group.add_argument(f"--{name.replace('_', '-')}", action="append", metavar=metavar)
    group.add_argument(
        "--scope",
        choices=SCOPES,
        help="what runs under capture: reached from a forward, from torch.compile, all",
    )
    group.add_argument("--config", metavar="FILE", help="configuration file")
    group.add_argument("--isolated", action="store_true", help="read no configuration file")
    group.add_argument(
        "--no-respect-gitignore", dest="respect_gitignore", action="store_false", default=None
    )
    group.add_argument(
        "--jobs", "-j", type=int, metavar="N", help="processes (default: one a core)"
    )
    group.add_argument("--no-cache", dest="cache", action="store_false", default=None)
    group.add_argument("--stdin-filename", metavar="NAME", default="<stdin>")


def _output(group: Any) -> None:
    group.add_argument("--output-format", choices=FORMATS)
    group.add_argument("--statistics", action="store_true", help="count the findings of each rule")
    group.add_argument(
        "-q", "--quiet", action="store_true", help="print findings and errors, nothing else"
    )
    group.add_argument(
        "-v", "--verbose", action="store_true", help="also show notes and what was fixed"
    )
    group.add_argument(
        "--exit-zero", action="store_true", help="exit 0 even when findings are left"
    )
    group.add_argument(
        "--exit-non-zero-on-fix", action="store_true", help="exit 1 when something was fixed"
    )


def settings(options: argparse.Namespace) -> Settings | None:
    """The Settings of this run: the configuration file's, and the command line's over them."""
    start = next((p for p in options.paths if p != "-"), ".") or "."
    base = Settings(root=os.getcwd()) if options.isolated else load(_folder(start), options.config)
    changes = {}
    for name in _LISTS:
        given = getattr(options, name)
        if given:
            changes.update([convert(name, ",".join(given), "command line")])
    for name in ("unsafe_fixes", "scope", "respect_gitignore", "jobs", "cache", "output_format"):
        given = getattr(options, name)
        if given is not None:
            changes[name] = given
    if changes.get("jobs", 1) < 0:
        raise SettingsError("command line: --jobs must not be negative")
    return replace(base, **changes)


def _folder(path: str) -> str:
    from_file = path.rpartition("/")[0] if path.endswith((".py", ".pyi", ".ipynb")) else path
    return from_file or "."
