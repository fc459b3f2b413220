"""The command line: its options, and the settings that come out of them."""

import argparse
import os
from dataclasses import replace
from typing import Any, NoReturn

from .settings import FORMATS, SCOPES, Settings, SettingsError, convert, load, meant

_LISTS = (
    "entry",
    "select",
    "ignore",
    "extend_select",
    "fixable",
    "unfixable",
    "exclude",
    "extend_exclude",
    "per_file_ignores",
)
_PLAIN = (
    "unsafe_fixes",
    "scope",
    "force_exclude",
    "respect_gitignore",
    "jobs",
    "cache",
    "output_format",
    "exit_zero",
    "exit_zero_on_unsafe",
)

SUFFIXES = (".py", ".pyi", ".ipynb")  # of the files that are looked at
CLEAN, FINDINGS, FAILED = 0, 1, 2  # exit codes
COMMANDS = {
    "check": "only report; exit 1 on findings: the same as --check",
    "fix": "apply the safe fixes in place: the same as no command",
    "advise": "run a script, and rank what costs a step time: `dynfix advise train.py`",
    "lock": "compare what two runs compiled: `dynfix lock diff old.lock new.lock`",
    "inspect": "what a package holds: `dynfix inspect model.dfx`",
    "rule": "explain a rule: `dynfix rule DYN201`",
    "server": "a language server, for editors, on stdin and stdout (needs dynfix[server])",
    "completion": "the script that completes options in bash, zsh or fish",
}


class _Parser(argparse.ArgumentParser):
    """Says in one line what it does not understand."""

    def error(self, message: str) -> NoReturn:
        raise SettingsError(message)

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        options, unknown = self.parse_known_args(args, namespace)
        if unknown:
            word = unknown[0].partition("=")[0]
            close = _instead(word.strip("-")) or meant(word, self._option_string_actions)
            raise SettingsError(f"unknown option {word}{close}")
        return options

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        choices = action.choices
        if choices is not None and value not in choices:
            known = ", ".join(choices)
            told = f"must be one of {known}, not {value!r}{meant(value, choices)}"
            raise argparse.ArgumentError(action, told)


def _instead(word: str) -> str:
    """What other tools have as an option, and this one otherwise."""
    if word in COMMANDS:
        return f"; did you mean the command `dynfix {word}`?"
    return f"; did you mean --output-format {word}?" if word in FORMATS else ""


def parser(version: str, command: str = "") -> argparse.ArgumentParser:
    """The ArgumentParser of `dynfix`, or of its commands `check` and `fix`."""
    listed = "".join(f"\n  {name:<10} {text}" for name, text in COMMANDS.items())
    top = _Parser(
        prog=f"dynfix {command}".strip(),
        allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description=(
            "Find and fix what makes torch.compile break its graph. Alone: safe fixes, in place."
        ),
        epilog=(
            f"commands:{listed}\n(a folder of such a name: ./check)\n\n"
            "Exit codes: 0 clean or all fixed, 1 findings left, 2 failure."
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


def parsed(argv: list[str], version: str) -> tuple[argparse.ArgumentParser, argparse.Namespace]:
    """The parser for a command line, and its options."""
    command = argv[0] if argv[:1] in (["check"], ["fix"]) else ""
    made = parser(version, command)
    words, names = _without_names(argv[1:] if command else argv)
    options = made.parse_args(words)
    options.paths += [os.path.join(".", name) if name == "-" else name for name in names]
    options.check = options.check or command == "check"
    late = [p for p in options.paths or () if p in COMMANDS and not os.path.exists(p)]
    if late:  # files would be changed that were to be checked
        made.error(f"a command goes first: dynfix {late[0]} …; there is no file {late[0]!r}")
    first = argv[0] if argv and options.paths[:1] == argv[:1] else ""
    if first.isalpha() and not os.path.exists(first) and meant(first, COMMANDS):
        made.error(f"no command, file or folder {first!r}{meant(first, COMMANDS)}")
    return made, options


def _without_names(argv: list[str]) -> tuple[list[str], list[str]]:
    """(the words that may be options, the names of files): names are what follows `--`, and,
    where there is no `--`, each word with a dash that is a file's name in this folder. A checkout
    chooses its names: pre-commit, `*` and xargs hand them over, and none is to be an option."""
    at = argv.index("--") if "--" in argv else len(argv)
    names = [word for word in argv[:at] if word.startswith("-") and os.path.lexists(word)]
    if at < len(argv) and not (names and os.path.lexists("--")):
        return argv[:at], argv[at + 1 :]
    unclear = next((n for n in names if "=" not in n and not n.endswith(SUFFIXES)), None)
    if at < len(argv) or unclear is not None:  # that `--` may be a file, too
        raise SettingsError(
            f"{unclear or '--'!r} is a word of the command, and a file's name in this folder: put"
            f" -- between options and files, or call the file ./{unclear or '--'}"
        )
    return [word for word in argv if word not in names], names


def without_path(options: Any) -> bool:
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
        action="append",
        metavar="'SCRIPT ARGS'",
        help="run a script, or `pytest tests`, once, and fix what it shows the code to be (needs"
        " torch); may be given several times",
    )
    group.add_argument(
        "--no-verify", action="store_true", help="with --trace: do not run what was fixed"
    )
    group.add_argument("--explain", metavar="CODE", help="explain a rule")
    group.add_argument("--show-settings", action="store_true", help="show the settings in force")


def _rules(group: Any) -> None:
    for name in _LISTS:
        metavar = {"per_file_ignores": "PATTERN:CODE", "entry": "MODULE:NAME"}.get(name, "LIST")
        text = "what is compiled: only what it reaches is looked at" if name == "entry" else None
        option = f"--{name.replace('_', '-')}"
        group.add_argument(option, action="append", metavar=metavar, help=text)
    group.add_argument(
        "--scope",
        choices=SCOPES,
        help="what runs under capture: reached from a forward, from torch.compile, all",
    )
    group.add_argument(
        "--target-torch",
        metavar="VERSION",
        help="the oldest torch that the code runs with, such as 2.11 (default: the newest)",
    )
    group.add_argument("--config", metavar="FILE", help="configuration file")
    group.add_argument("--isolated", action="store_true", help="read no configuration file")
    group.add_argument(
        "--force-exclude",
        action="store_true",
        default=None,
        help="excludes and .gitignore hold for files that are named, too",
    )
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
        "--exit-zero",
        action="store_true",
        default=None,
        help="exit 0 even when findings are left",
    )
    group.add_argument(
        "--exit-zero-on-unsafe",
        action="store_true",
        default=None,
        help="exit 0 when all that is left has a fix that is unsafe",
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
    for name in _PLAIN:
        given = getattr(options, name)
        if given is not None:
            changes[name] = given
    if options.target_torch is not None:
        changes.update([convert("target_torch", options.target_torch, "command line")])
    if changes.get("jobs", 1) < 0:
        raise SettingsError("command line: --jobs must not be negative")
    return replace(base, **changes)


def _folder(path: str) -> str:
    from_file = path.rpartition("/")[0] if path.endswith(SUFFIXES) else path
    return from_file or "."
