"""Log calls and warnings while recording: later calls make the same record again, at the user's own
line, with the values of that call."""

import functools
import logging
import sys
import types
import warnings
from collections.abc import Callable
from typing import Any

from ....runtime.programs.recipes import Apply, ConstRecipe
from ... import catalogue
from ...capture.effects import SideEffect
from ...capture.nested import plain_in
from ...capture.places import user_frame
from ...capture.trace import Recorder
from .. import texts

LEVELS: dict[Any, int] = {
    logging.Logger.debug: logging.DEBUG,
    logging.Logger.info: logging.INFO,
    logging.Logger.warning: logging.WARNING,
    logging.Logger.error: logging.ERROR,
    logging.Logger.critical: logging.CRITICAL,
}
ROOT: dict[Any, Any] = {
    logging.debug: logging.Logger.debug,
    logging.info: logging.Logger.info,
    logging.warning: logging.Logger.warning,
    logging.error: logging.Logger.error,
    logging.critical: logging.Logger.critical,
}


_ASKS = (logging.Logger.isEnabledFor, logging.Logger.getEffectiveLevel, logging.Logger.hasHandlers)
_FUNCTIONS = (types.FunctionType, types.MethodType)
_OTHERS = (logging.Logger.log, *_ASKS)
_NAMES = frozenset("debug info warning error critical exception log".split())


def looks_for_its_line(function: Any) -> bool:
    """Whether a call of it tells the line that it stands on: one of `logging`, or
    `warnings.warn`."""
    if type(function) not in _FUNCTIONS:
        return function is warnings.warn
    return function.__name__ in _NAMES and function.__module__ == "logging"


def at_its_line(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The call, unrecorded, with the line of the user's for its own: frames of this package are
    not counted."""
    placed = function is warnings.warn and len(args) > _LEVEL
    level = args[_LEVEL] if placed else kwargs.get("stacklevel", 1)
    if type(level) is not int:
        return function(*args, **kwargs)
    level = _steps(level) + (sys.version_info < (3, 11) and type(function) is types.FunctionType)
    if placed:
        return function(*args[:_LEVEL], level, *args[_LEVEL + 1 :], **kwargs)
    return function(*args, **{**kwargs, "stacklevel": level})


_LEVEL = 2  # the place of `stacklevel` among the arguments of `warnings.warn`


def _steps(level: int) -> int:
    """The stack level, for whom the caller of this function calls, of what `level` means to the
    user."""
    frame: Any = sys._getframe(1)
    wanted, steps = user_frame(frame, level), 1
    while frame is not wanted:
        frame, steps = frame.f_back, steps + 1
    return steps


def takes(function: Any) -> bool:
    """A method of Logger, bound or not, a function of `logging` that logs to the root, or
    `warnings.warn`."""
    return looks_for_its_line(function) or _known(function)


def _known(function: Any) -> bool:
    target = function.__func__ if isinstance(function, types.MethodType) else function
    if not isinstance(target, types.FunctionType):
        return False  # an object of the user's, whose hash is not asked
    return target in LEVELS or target in ROOT or target in _OTHERS


def call(rec: Recorder, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    told = function is warnings.warn or _known(function)
    if kwargs.get("exc_info") or kwargs.get("stack_info") or not told:
        rec.stop(catalogue.UNSUPPORTED, "a log record that shows an exception or a stack")
        return rec.once(at_its_line, (function, args, kwargs))
    if getattr(function, "__func__", function) in _ASKS:
        return _asked(rec, function, plain_in(args), plain_in(kwargs))
    if function is warnings.warn:
        return _warning(rec, *args, **kwargs)
    return _log(rec, *_normal(function, args), kwargs)


def _asked(rec: Recorder, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What a logger answers is compared at later calls, whose loggers may have other levels."""
    ask = functools.partial(function, *args, **kwargs)
    with rec.paused():
        answer = ask()
    return rec.outcome(Apply(ask, ()), answer)


def _normal(function: Any, args: tuple[Any, ...]) -> tuple[logging.Logger, int, tuple[Any, ...]]:
    """(logger, level, message and its arguments)."""
    if function in ROOT:
        if not logging.root.handlers:
            logging.basicConfig()
        return logging.root, LEVELS[ROOT[function]], args
    target = getattr(function, "__func__", function)
    given = args if target is function else (function.__self__, *args)
    if target is logging.Logger.log:
        return given[0], given[1], given[2:]
    return given[0], LEVELS[target], given[1:]


def _log(
    rec: Recorder,
    logger: logging.Logger,
    level: int,
    message: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> None:
    frame = user_frame(sys._getframe(), kwargs.get("stacklevel", 1))
    place = (frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name)
    _show(
        rec,
        _emit,
        (
            ConstRecipe(logger),
            ConstRecipe(level),
            ConstRecipe(place),
            ConstRecipe(kwargs.get("extra")),
        ),
        message,
    )


def _show(
    rec: Recorder,
    function: Callable[..., Any],
    fixed: tuple[ConstRecipe, ...],
    shown: tuple[Any, ...],
) -> None:
    rec.effects.append(
        SideEffect(function, (*fixed, *(texts.text_recipe(rec, value) for value in shown)))
    )
    with rec.paused():
        rec.once(function, (*(part.value for part in fixed), *plain_in(shown)))


def _emit(
    logger: logging.Logger,
    level: int,
    place: tuple[str, int, str],
    extra: Any,
    message: Any,
    *args: Any,
) -> None:
    """As Logger._log, for a place that is not on the stack."""
    if logger.isEnabledFor(level):
        file, line, function = place
        logger.handle(
            logger.makeRecord(
                logger.name, level, file, line, message, args, None, function, extra, None
            )
        )


def _warning(
    rec: Recorder,
    message: Any,
    category: Any = None,
    stacklevel: int = 1,
    source: Any = None,
    **kwargs: Any,
) -> None:
    frame = user_frame(sys._getframe(), stacklevel)
    kind = type(message) if isinstance(message, Warning) else category or UserWarning
    registry = frame.f_globals.setdefault("__warningregistry__", {})
    where = (frame.f_code.co_filename, frame.f_lineno, frame.f_globals.get("__name__", "<string>"))
    _show(rec, _warn, (ConstRecipe(kind), ConstRecipe(where), ConstRecipe(registry)), (message,))


def _warn(kind: Any, where: tuple[str, int, str], registry: Any, message: Any) -> None:
    file, line, module = where
    warnings.warn_explicit(message, kind, file, line, module, registry)
