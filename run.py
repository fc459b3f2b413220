"""`python -m dynfix.run script.py`, and the command `dynrun`."""

import sys
from collections.abc import Sequence
from typing import Any

from . import __getattr__ as public
from .rewriter.dynrun.main import main as _main


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of the console script; as `rewriter.dynrun.main`, with what `--fix` needs of the
    codemods, loaded when it is asked for."""
    return _main(argv, fix=_fix)


def _fix(script: list[str], changes: list[Any]) -> None:
    fix_after_run: Any = public("fix_after_run")
    fix_after_run(script, changes)


if __name__ == "__main__":
    sys.argv[0] = "dynrun"
    sys.exit(main())
