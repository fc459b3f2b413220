"""The one place for warnings and logs."""

import logging
import threading
import warnings

log = logging.getLogger("dynfix")
_seen: set[tuple[str, str]] = set()
_lock = threading.Lock()


class DynfixWarning(UserWarning):
    """A function stays in eager, or something was not done that was asked for."""


def warn_once(key: str, message: str, place: str = "") -> None:
    """Warn with `message` once for each (key, place)."""
    with _lock:
        if (key, place) in _seen:
            return
        _seen.add((key, place))
    warnings.warn(message, DynfixWarning, stacklevel=2)


def reset() -> None:
    """Forget which warnings were given."""
    with _lock:
        _seen.clear()
