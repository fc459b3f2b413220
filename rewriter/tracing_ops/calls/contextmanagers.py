"""`contextlib.contextmanager` while recording: the generator behind it runs rewritten."""

import contextlib
import types
from typing import Any

from ....runtime.guards.guard import Obj
from ...capture.trace import Recorder


def takes(function: Any) -> bool:
    return function is contextlib._GeneratorContextManager


def make(rec: Recorder, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """`_GeneratorContextManager(func, args, kwds)` over the rewritten generator function."""
    generator, *rest = args
    if isinstance(generator, types.FunctionType) and not rec.rewriter.made_in_call(rec, generator):
        if rec.rewriter.is_rewritten(generator.__code__):
            generator = rec.rewriter.original_of(generator)
            rec.known.register(generator, Obj(generator, generator.__qualname__))
        generator = rec.rewriter.rewrite(generator)
    return function(generator, *rest, **kwargs)
