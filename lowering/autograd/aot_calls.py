"""What AOTAutograd builds around compiled graphs, seen while it does so."""

import dataclasses
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from .aot_parts import runtime_wrappers

RuntimeWrapper = runtime_wrappers.RuntimeWrapper


@dataclasses.dataclass(frozen=True)
class Wrapped:
    """What one call of AOTAutograd built. `call`: the last wrapper, which takes a list; `made_of`:
    what it calls; `differentiates`: whether that is an autograd function."""

    call: Callable[..., Any]
    made_of: Any
    metadata: Any
    detached: list[int]
    differentiates: bool
    without_autocast: bool


class _Watched(threading.local):
    found: list[Wrapped] | None = None


_watched = _Watched()
post_compile = RuntimeWrapper.post_compile  # unseen


def _noted(
    self: Any, compiled_fn: Callable[..., Any], aot_config: Any, *, runtime_metadata: Any
) -> Callable[..., Any]:
    call = post_compile(self, compiled_fn, aot_config, runtime_metadata=runtime_metadata)
    if _watched.found is not None:
        facts = self.indices_of_inps_to_detach, self.trace_joint, self.disable_amp
        _watched.found.append(Wrapped(call, compiled_fn, runtime_metadata, *facts))
    return call


RuntimeWrapper.post_compile = _noted  # type: ignore[method-assign]


@contextmanager
def watched() -> Iterator[list[Wrapped]]:
    """The wrappers that this thread's AOTAutograd makes inside."""
    before, _watched.found = _watched.found, []
    try:
        yield _watched.found
    finally:
        _watched.found = before
