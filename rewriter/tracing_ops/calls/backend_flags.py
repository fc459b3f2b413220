"""The flags of `torch.backends`, whose Python code runs rewritten: what a call reads is compared
ahead of later calls, what it sets is set at each."""

import types
from typing import Any

from ....runtime.programs.recipes import Apply, ConstRecipe
from ... import catalogue
from ...capture.effects import SideEffect
from ...capture.library_flags import READERS, SETTERS, snapshot
from ...capture.nested import concretize
from ...capture.trace import Recorder


def takes(function: Any) -> bool:
    known = isinstance(function, types.BuiltinFunctionType)
    return known and (function in READERS or function in SETTERS)


def call(rec: Recorder, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    given = concretize(args)
    if function in SETTERS:
        return _set(rec, function, given)
    question = (function, given)
    value = function(*given)
    before = rec.flags_before
    if before is not None and question not in before:
        rec.stop(catalogue.UNSUPPORTED, f"{function.__name__} after another flag was set")
    elif question not in rec.flags_read:
        rec.flags_read.add(question)
        seen = value if before is None else before[question]
        rec.outcomes.append((0, Apply(function, tuple(map(ConstRecipe, given))), seen))
    return value


def _set(rec: Recorder, function: Any, args: tuple[Any, ...]) -> Any:
    """Set now and at the end of each later call; an operator that would need it earlier ends the
    recording."""
    rec.before_change()
    if rec.flags_before is None:
        rec.flags_before = snapshot()
    function(*args)
    rec.effects.append(SideEffect(function, tuple(map(ConstRecipe, args))))
