"""Recursion while a call is recorded: for each of the user's functions the interpreter has several
frames, so that Python's limit would be met where eager does not meet it."""

import sys
from typing import Any

DEEPEST = 64  # functions inside each other that are recorded; deeper ones run as they are
ROOM = 1500  # frames beyond the user's limit while a call is recorded


class Room:
    """Frames beyond the user's limit between `give` and `take`."""

    given = 0  # by all recordings at hand

    def give(self) -> None:
        """A recording begins."""
        Room.given += ROOM
        sys.setrecursionlimit(sys.getrecursionlimit() + ROOM)
        self._raised = sys.getrecursionlimit()

    def take(self) -> None:
        """It has ended. A limit that the user has set meanwhile stays."""
        Room.given -= ROOM
        if sys.getrecursionlimit() == self._raised:
            sys.setrecursionlimit(self._raised - ROOM)


def recursion_limit() -> int:
    """`sys.getrecursionlimit()` as the user has it."""
    return sys.getrecursionlimit() - Room.given


def deeper(rec: Any, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A call inside of those at hand."""
    rec.depth += 1
    try:
        return rec.once(function, args, kwargs)
    finally:
        rec.depth -= 1
