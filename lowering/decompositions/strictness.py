"""Decompositions that refuse arguments which the operator itself takes: torch's are written for
tests of types, and know less than its kernels do."""

from collections.abc import Callable
from functools import wraps
from typing import Any

from ...runtime.diagnostics import log

_REFUSALS = (ValueError, TypeError, RuntimeError, AssertionError, LookupError, AttributeError)


def or_whole(decomposed: Callable[..., Any]) -> Callable[..., Any]:
    """The decomposition; where it raises, the operator stays whole. If that cannot be either, it
    says so itself."""

    @wraps(decomposed)
    def made(*args: Any, **kwargs: Any) -> Any:
        try:
            return decomposed(*args, **kwargs)
        except _REFUSALS as error:
            log.debug("an operator stays whole: %r: %r", decomposed, error)
            return NotImplemented

    return made
