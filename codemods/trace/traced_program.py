"""The program of a traced run: a script, or a module that Python runs (`pytest tests`,
`python -m package`)."""

from __future__ import annotations

import importlib.util
import os
import runpy
import shlex
import sys

from ..analysis.findings import CommandError


class TraceError(CommandError):
    """The script cannot be run under the tracer."""


def words_of(command: str) -> list[str]:
    """A command as `[script, *arguments]` or `["-m", module, *arguments]`; TraceError where it
    names neither."""
    try:
        words = shlex.split(command)
    except ValueError as error:  # a quotation without its end
        raise TraceError(f"--trace {command!r}: {error}") from None
    if words and os.path.basename(words[0]).startswith("python"):
        words = words[1:]
    if words[:1] == ["-m"] and len(words) > 1:
        return words
    if not words:
        raise TraceError("--trace needs a script")
    if os.path.exists(words[0]):
        return words
    known = words[0].isidentifier() and importlib.util.find_spec(words[0]) is not None
    if not known:
        raise TraceError(f"{words[0]}: no such script")
    return ["-m", *words]


def launch(words: list[str]) -> None:
    """Run what `words_of` gives, as Python would."""
    if words[0] == "-m":
        sys.argv, sys.path[0] = words[1:], os.getcwd()
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
        return
    sys.argv, sys.path[0] = words, os.path.dirname(os.path.abspath(words[0]))
    runpy.run_path(words[0], run_name="__main__")
