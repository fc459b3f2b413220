"""Code that is nested deeper than Python's stack: once more, on a thread with a large one."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import Any

from ...rewriter.source.source_file import SourceError
from ..analysis.findings import CommandError

_STACK = 512 * 1024 * 1024  # bytes; pages that nothing touches cost nothing
_DEPTH = 200_000


def called(function: Callable[..., Any], *args: Any) -> Any:
    """`function(*args)`; where that raises RecursionError or MemoryError, again with much more
    stack."""
    try:
        return function(*args)
    except (RecursionError, MemoryError):
        return _deep(function, args)


def _deep(function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    outcome: list[Any] = []

    def work() -> None:
        try:
            outcome.append((function(*args), None))
        except BaseException as error:
            outcome.append((None, error))

    depth, size = sys.getrecursionlimit(), threading.stack_size(_STACK)
    sys.setrecursionlimit(_DEPTH)
    try:
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    except RuntimeError:  # there is no room for such a stack
        raise RecursionError from None
    finally:
        threading.stack_size(size)
        sys.setrecursionlimit(depth)
    result, error = outcome[0]
    if error is not None:
        raise error
    return result


def reason(error: Exception) -> str:
    """Why a file could not be handled, in one line."""
    if isinstance(error, RecursionError):
        return "the code is nested too deeply"
    if isinstance(error, MemoryError):
        return "the code is too large, or nested too deeply"
    if isinstance(error, (CommandError, SourceError)):
        return str(error)
    return f"internal error: {type(error).__name__}: {error}"
