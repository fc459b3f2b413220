"""Work besides the user's: it says nothing, and leaves what the program has said as it is."""

import contextlib
import threading
import warnings
from collections.abc import Iterator
from typing import Any

from .background_budget import in_background
from .diagnostics import DynfixWarning

_lock = threading.Lock()
_within = 0
_mutated: Any = None


@contextlib.contextmanager
def suppress_warnings() -> Iterator[None]:
    """Nothing but warnings of this package is told of what is done inside. The worker keeps to
    itself what it says, and leaves alone what belongs to the whole process."""
    if in_background():
        yield
        return
    own = next((each[0] for each in warnings.filters if _is_for_ours(each)), "default")
    with _filters_kept(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.simplefilter(own, DynfixWarning)  # type: ignore[arg-type]
        yield


def _is_for_ours(each: Any) -> bool:
    _, text, category, module, line = each
    return issubclass(DynfixWarning, category) and not (text or module or line)


@contextlib.contextmanager
def _filters_kept() -> Iterator[None]:
    """torch changes the filters for a moment: that has every place of the program warn once more.
    Not here."""
    global _within, _mutated
    with _lock:
        if _within == 0:
            _mutated = vars(warnings).get("_filters_mutated")
            if _mutated is not None:
                vars(warnings)["_filters_mutated"] = lambda: None
        _within += 1
    try:
        yield
    finally:
        with _lock:
            _within -= 1
            if _within == 0 and _mutated is not None:
                vars(warnings)["_filters_mutated"] = _mutated
