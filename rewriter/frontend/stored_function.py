"""A compiled function whose calls stored recordings serve. The recorder, which takes a fifth of a
second to load, is loaded for the first call that none serves."""

import functools
import importlib
import os
import sys
from collections.abc import Callable
from typing import Any

from ...lowering.autograd.double_backward import Differentiable
from ...lowering.stored_recordings import Loaded, StoredRecordings
from ...runtime.environment.supported_torch import warn_if_untested
from ...runtime.guards.guard import is_transformed, is_watched
from ...runtime.options import Options
from ...runtime.programs.dispatch import Dispatcher

_RECORDER = f"{__package__}.compiled_function"
# Whose state says how calls are served, or who sees them.
_WATCHING = (_RECORDER, f"{__package__}.stances", f"{__package__}.compile_logs")


def compiled_function(fn: Callable[..., Any], options: Options) -> Any:
    """What serves calls of `fn`: a CompiledFunction, at once or when one is needed."""
    stored = os.environ.get("DYNFIX_STORED_RECORDINGS", "1") != "0"
    if options.backend != "native" or not stored or _is_recorder_needed():
        return _recorder().CompiledFunction(fn, options)
    return StoredFunction(fn, options)


def _is_recorder_needed() -> bool:
    return bool(os.environ.get("DYNFIX_LOGS")) or any(name in sys.modules for name in _WATCHING)


def _recorder() -> Any:
    return importlib.import_module(".compiled_function", __package__)


class StoredFunction:
    """Stands for a CompiledFunction: whatever is asked of it but a call makes one, which takes over
    what was loaded."""

    __slots__ = ("__weakref__", "_entries", "_found", "_function", "fn", "options", "stored")

    def __init__(self, fn: Callable[..., Any], options: Options) -> None:
        warn_if_untested()
        self.fn, self.options = fn, options
        self.stored = StoredRecordings(fn, options)
        self._found: list[Loaded] = []
        self._entries = Dispatcher(self._missed, options.recompile_limit)
        self._function: Any = None

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        if self._function is not None or _is_recorder_needed():
            return self._whole()(*args, **kwargs)
        if is_watched():
            return self.fn(*args, **kwargs)
        return self._entries(args, kwargs)

    def _missed(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        found = None
        if not is_transformed() and len(self._found) < self.options.recompile_limit:
            found = self.stored.load(args, kwargs, self.fn)
        if found is None:
            return self._whole()(*args, **kwargs)
        self._found.append(found)
        for step in found[1].plan.steps:
            if isinstance(step.program, Differentiable):
                step.program.when_seen = functools.partial(self._differentiated, found[1])
        self._entries.add(found[1])
        return self._entries(args, kwargs)

    def _differentiated(self, entry: Any) -> None:
        self._whole().double_backward(entry)

    def _whole(self) -> Any:
        if self._function is None:
            made = _recorder().CompiledFunction(self.fn, self.options)
            made.take_over(self.stored, self._found)
            self._function = made
        return self._function

    def __getattr__(self, name: str) -> Any:
        return getattr(self._whole(), name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in StoredFunction.__slots__:
            object.__setattr__(self, name, value)
        else:
            setattr(self._whole(), name, value)
