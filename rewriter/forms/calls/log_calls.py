"""Log calls and warnings while recording: later calls make the same record again, at the user's own
line, with the values of that call."""

import logging
import sys
import warnings
from collections.abc import Callable
from typing import Any

from ....runtime.replay.recipes import Const
from ... import catalogue
from ...capture.effects import Effect
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


def takes(function: Any) -> bool:
    """A method of Logger, bound or not, a function of `logging` that logs to the root, or
    `warnings.warn`."""
    target = getattr(function, "__func__", function)
    return function is warnings.warn or (callable(target) and _known(target))


def _known(target: Any) -> bool:
    try:
        return target in LEVELS or target in ROOT or target is logging.Logger.log
    except TypeError:
        return False


def call(rec: Recorder, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if kwargs.get("exc_info") or kwargs.get("stack_info"):
        rec.stop(catalogue.UNSUPPORTED, "a log record that shows an exception or a stack")
        return function(*args, **kwargs)
    if function is warnings.warn:
        return _warning(rec, *args, **kwargs)
    return _log(rec, *_normal(function, args), kwargs)


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
        rec, _emit, (Const(logger), Const(level), Const(place), Const(kwargs.get("extra"))), message
    )


def _show(
    rec: Recorder, function: Callable[..., Any], fixed: tuple[Const, ...], shown: tuple[Any, ...]
) -> None:
    rec.effects.append(
        Effect(function, (*fixed, *(texts.text_recipe(rec, value) for value in shown)))
    )
    with rec.paused():
        function(*(part.value for part in fixed), *plain_in(shown))


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
    _show(rec, _warn, (Const(kind), Const(where), Const(registry)), (message,))


def _warn(kind: Any, where: tuple[str, int, str], registry: Any, message: Any) -> None:
    file, line, module = where
    warnings.warn_explicit(message, kind, file, line, module, registry)
