"""Functions that answer something else at every call and touch nothing of the program's: random
numbers of the host, the clock.

They are called for real at every call, where they stood; the answer is a traced scalar.
"""

import contextvars
import os
import random
import threading
import time
import types
from typing import Any

import torch

from ....runtime.guards.guard import Obj
from ....runtime.programs.host_generators import GENERATORS
from ....runtime.programs.recipes import Apply, ConstRecipe, HostCall, Input
from ....runtime.programs.undo import version_of
from ... import catalogue
from ...capture.effects import SideEffect
from ...capture.guarded_kinds import is_constant
from ...capture.nested import concretize
from ...capture.numbers import scalars
from ...capture.trace import Recorder
from ..lookup import owner_of

CLOCKS = frozenset(
    {
        time.time,
        time.time_ns,
        time.perf_counter,
        time.perf_counter_ns,
        time.monotonic,
        time.monotonic_ns,
        time.process_time,
        time.process_time_ns,
        time.thread_time,
    }
)
# Asking twice does no harm.
ANSWERS = CLOCKS | {time.sleep, os.getpid, os.getppid, threading.get_ident, threading.get_native_id}
_NUMBERS = (int, float, str, bool, type(None))


def takes(function: Any) -> bool:
    """A listed function, or a method of a host generator."""
    if isinstance(function, types.BuiltinFunctionType) and function in ANSWERS:
        return True
    owner = owner_of(function)
    return isinstance(owner, GENERATORS) and not isinstance(owner, random.SystemRandom)


def fits(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether the arguments are numbers and texts, which no call can change."""
    return all(
        is_constant(value) or type(value) in scalars.TRACED for value in (*args, *kwargs.values())
    )


def call(rec: Recorder, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Made now, and at every later call at the same place between the outcomes. A clock cuts the
    graph: it may time what stands before."""
    if isinstance(function, types.BuiltinFunctionType) and function in CLOCKS:
        rec.breaks(catalogue.OPAQUE_CALL, getattr(function, "__name__", "a clock"))
        rec.cut()
    rec.before_change()
    keywords = {name: scalars.recipe_of(value) for name, value in kwargs.items()}
    recipes = tuple(scalars.recipe_of(value) for value in args)
    with rec.paused():
        named = {name: scalars.plain(value) for name, value in kwargs.items()}
        result = rec.once(function, tuple(map(scalars.plain, args)), named)
    if type(result) not in _NUMBERS:
        rec.stop(
            catalogue.OPAQUE_CALL,
            f"{getattr(function, '__qualname__', function)} gave a {type(result).__name__}",
        )
        return result
    return rec.host_call(HostCall(function, recipes, keywords), result)


def takes_variable(function: Any) -> bool:
    return isinstance(owner_of(function), contextvars.ContextVar)


def use_variable(
    rec: Recorder, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """`get`, `set` and `reset` of a context variable. What the call sets and takes back is no
    effect of it."""
    variable, name = owner_of(function), function.__name__
    mine = [each for each in rec.variables if each[0] is variable]
    if name == "get" and mine:
        return mine[-1][1]
    if name == "get" and fits(args, kwargs):
        return _read_variable(rec, function, args)
    if name == "set":
        token = rec.once(function, args, kwargs)
        effect = SideEffect(_set_variable, (variable, *args))
        rec.effects.append(effect)
        rec.variables.append((variable, args[0], token, effect))
        return token
    if name == "reset" and mine and mine[-1][2] is args[0]:
        rec.variables[:] = [each for each in rec.variables if each is not mine[-1]]
        rec.effects[:] = [each for each in rec.effects if each is not mine[-1][3]]
    else:
        rec.stop(catalogue.OPAQUE_CALL, f"{name}() of a context variable")
    return rec.once(function, args, kwargs)


def _set_variable(variable: contextvars.ContextVar[Any], value: Any) -> None:
    variable.set(value)


def _read_variable(rec: Recorder, function: Any, args: tuple[Any, ...]) -> Any:
    """Asked again, and compared, at every later call."""
    result = function(*concretize(args))
    if not is_constant(result):
        rec.outcome(Apply(lambda *given: function(*given) is result, _constants(args)), True)
        rec.known.register(result, Obj(result, f"what {owner_of(function).name} holds"))
        return result
    return rec.outcome(Apply(function, _constants(args)), result)


def _constants(args: tuple[Any, ...]) -> tuple[ConstRecipe, ...]:
    return tuple(map(ConstRecipe, concretize(args)))


def version(rec: Recorder, tensor: torch.Tensor) -> Any:
    """`t._version`: of an input it is asked at each call, before the call writes it; writes of the
    call's own add to it what they added here."""
    with rec.paused():
        value, now = rec.value(tensor), tensor._version
        inputs = [each for each in rec.tracker.sharing(tensor) if rec.tracker.is_input(each)]
        written = any(value in segment.written for segment in rec.segments)
    if not inputs:
        return now
    if value not in rec.versions:
        if written or len(inputs) > 1 or inputs[0] is not tensor:
            rec.stop(catalogue.UNSUPPORTED, "the version of an input, or its view, once written")
            return now
        asked = HostCall(version_of, (Input(value.index),), {})
        rec.versions[value] = rec.host_call(asked, now), now
    number, then = rec.versions[value]
    return number + (now - then) if now != then else number
