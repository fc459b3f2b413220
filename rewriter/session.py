"""One run of `dynrun`: the arguments that everything is compiled with, and what was captured, for
the report."""

import sys
from collections.abc import Iterator
from typing import Any, TextIO

from .. import (
    # the package's lazy table: `public("compile")` loads torch and the compiler
    __getattr__ as public,
)
from ..runtime.pacing import SHARE, Account
from .background import Background
from .config import make_options


class Session:
    """Compiles with the arguments of the command line. Raises OptionError for unknown ones, before
    anything runs."""

    def __init__(self, keep: bool = False, **arguments: Any) -> None:
        self.keep, self.arguments = keep, arguments
        self.captured: list[tuple[str, Any]] = []
        self.background: Background | None = None
        make_options(**arguments)

    def compile_beside(self, share: float = SHARE) -> None:
        """From now on modules are compiled beside the calls that eager serves, and only where that
        pays. `share` of the run may be lost by that."""
        self.background = Background(_load_compiler, Account(share=share))
        self.background.start()

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


def _load_compiler() -> None:
    public("compile")
    warm_up: Any = public("warm_up")
    warm_up()


def _lines(name: str, recordings: Any) -> Iterator[str]:
    graphs = sum(len(recording.segments) for recording in recordings)
    sites = [site for recording in recordings for site in recording.sites]
    yield f"  {name}: {len(recordings)} recorded, {graphs} graphs, {len(sites)} breaks"
    for site in sites:
        yield "    " + str(site).replace("\n", "\n    ")


def _name(model: Any) -> str:
    return getattr(model, "__qualname__", type(model).__qualname__)
