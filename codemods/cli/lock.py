"""`dynfix lock check OLD NEW` and `dynfix lock diff OLD NEW`: how what two runs compiled differs,
by the user's lines."""

from __future__ import annotations

import argparse

from ...rewriter.lock import lock_file
from ...rewriter.lock.lock_changes import Changes, compared
from ..analysis.findings import CommandError
from .command_line import CLEAN, FINDINGS
from .terminal import seen


def main(argv: list[str]) -> int:
    """Compare two files; CommandError for what is no lock."""
    parser = argparse.ArgumentParser(
        prog="dynfix lock",
        description="Compare what two runs compiled, by the files that `dynrun --lock FILE"
        " script.py` wrote. `dynrun --lock-check FILE script.py` compares a run with a file.",
    )
    words = parser.add_subparsers(dest="what", required=True, metavar="check|diff")
    for name, help in _HELP.items():
        command = words.add_parser(name, help=help, description=help)
        command.add_argument("old", metavar="OLD")
        command.add_argument("new", metavar="NEW")
    options = parser.parse_args(argv)
    try:
        changes = compared(lock_file.read(options.old), lock_file.read(options.new))
    except lock_file.LockError as error:
        raise CommandError(str(error)) from error
    _show(changes, options.old, options.new, options.what == "diff")
    return FINDINGS if changes.failing and options.what == "check" else CLEAN


_HELP = {
    "check": "exit 1, and say at which lines, where a graph, a break, a recompile or a kernel"
    " changed",
    "diff": "say in words everything in which the two differ: guards, times and memory too",
}


def _show(changes: Changes, old: str, new: str, notes: bool) -> None:
    for line in changes.lines(old, new, notes):
        print(seen(line))
