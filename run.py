"""`python -m dynfix.run script.py`, and the command `dynrun`."""

import sys
from collections.abc import Sequence
from typing import Any

from . import __getattr__ as public
from .rewriter.dynrun.main import main as _main


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of the console script; as `rewriter.dynrun.main`, with what `--fix` and
    `--advise` need of the codemods, loaded when it is asked for."""
    return _main(argv, _fix, _advise)


def _fix(script: list[str], changes: list[Any]) -> None:
    fix_after_run: Any = public("fix_after_run")
    fix_after_run(script, changes)


def _advise(script: list[str], costs: Any, asked: str, out: int | None) -> None:
    advise_after_run: Any = public("advise_after_run")
    advise_after_run(script, costs, asked, out)


if __name__ == "__main__":
    sys.argv[0] = "dynrun"
    sys.exit(main())
