"""One run of `dynrun`: the arguments that everything is compiled with, and what was captured, for
the report."""

import sys
from collections.abc import Iterator
from typing import Any, TextIO

from .. import (
    # the package's lazy table: `public("compile")` loads torch and the compiler
    __getattr__ as public,
)
from .config import make_options


class Session:
    """Compiles with the arguments of the command line. Raises OptionError for unknown ones, before
    anything runs."""

    def __init__(self, keep: bool = False, **arguments: Any) -> None:
        self.keep, self.arguments = keep, arguments
        self.captured: list[tuple[str, Any]] = []
        make_options(**arguments)

    def compile(self, model: Any, **changes: Any) -> Any:
        """`dynfix.compile(model)` with the command line's arguments, except for `changes`."""
        compile: Any = public("compile")
        compiled = compile(model, **{**self.arguments, **changes})
        if self.keep and hasattr(compiled, "_dynfix_entry"):
            self.captured.append((_name(model), compiled._dynfix_entry))
        return compiled

    def print_report(self, file: TextIO | None = None) -> None:
        """What was captured, and each place where it broke."""
        out = file or sys.stderr
        called = [(name, entry.recordings) for name, entry in self.captured if entry.recordings]
        print(f"dynrun: {len(called)} captured", file=out)
        for name, recordings in called:
            print("\n".join(_lines(name, recordings)), file=out)


def _lines(name: str, recordings: Any) -> Iterator[str]:
    graphs = sum(len(recording.segments) for recording in recordings)
    sites = [site for recording in recordings for site in recording.sites]
    yield f"  {name}: {len(recordings)} recorded, {graphs} graphs, {len(sites)} breaks"
    for site in sites:
        yield "    " + str(site).replace("\n", "\n    ")
    for change in dict.fromkeys(c for recording in recordings for c in recording.rewritten):
        yield f"    {change.file}:{change.line}: {change.code} rewritten"
        yield from (f"      - {line}" for line in change.before.splitlines())
        yield from (f"      + {line}" for line in change.after.splitlines())


def _name(model: Any) -> str:
    return getattr(model, "__qualname__", type(model).__qualname__)
