"""Which recorder, if any, is at work on this thread."""

import threading
from typing import Any


class _State(threading.local):
    recorder: Any = None
    family: Any = None


_state = _State()


def recorder() -> Any:
    """The active recorder of this thread, or None."""
    return _state.recorder


def install(recorder: Any) -> Any:
    """Make `recorder` the active one; returns the one before."""
    before, _state.recorder = _state.recorder, recorder
    return before


def family() -> Any:
    """What compiles the callees of a function that runs in parts on this thread, or None."""
    return _state.family


def open_family(family: Any) -> Any:
    """Compile callees by `family` from now on; returns the one before."""
    before, _state.family = _state.family, family
    return before
