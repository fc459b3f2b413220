"""The one place for warnings and logs."""

import logging
import threading
import warnings
from collections.abc import Callable

log = logging.getLogger("dynfix")
_seen: set[tuple[str, str]] = set()
_lock = threading.Lock()
_speak: Callable[[str], None] | None = None


class DynfixWarning(UserWarning):
    """A function stays in eager, or something was not done that was asked for."""


def speak_with(speak: Callable[[str], None]) -> None:
    """From now on messages go to `speak`, and not to `warnings`: whose program this is may have
    made errors of those, and is not to be ended by a message that it did not ask for."""
    global _speak
    _speak = speak
    if log.level == logging.NOTSET:
        log.setLevel(logging.WARNING)  # a program that shows all that is logged means its own


def warn_once(key: str, message: str, place: str = "", at: tuple[str, int] | None = None) -> None:
    """Warn with `message` once for each (key, place). `at`: the user's file and line."""
    with _lock:
        if (key, place) in _seen:
            return
        _seen.add((key, place))
    if _speak is not None:
        _speak(message)
    elif at is not None:
        warnings.warn_explicit(message, DynfixWarning, *at)
    else:
        warnings.warn(message, DynfixWarning, stacklevel=2)


def reset() -> None:
    """Forget which warnings were given."""
    with _lock:
        _seen.clear()
