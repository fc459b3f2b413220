"""No garbage collection while many nodes are made, of which none is garbage yet: its passes over
all of them take as long as the work itself."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

from .background_budget import in_background


@contextmanager
def gc_paused() -> Iterator[None]:
    """Inside, nothing is collected; in background work, which rests for as long as the user's work
    asks for, as it always is: the switch belongs to the whole process."""
    was = gc.isenabled() and not in_background()
    if was:
        gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()
