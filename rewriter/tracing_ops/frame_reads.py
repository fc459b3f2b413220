"""Functions that read the frames of who calls them: they are given the user's frames, without those
of this package between."""

import collections
import dataclasses
import dis
import enum
import inspect
import sys
import types
import typing
from collections.abc import Callable
from typing import Any

from .. import catalogue
from ..capture.places import is_own_file, user_frame
from ..capture.trace import Recorder
from ..instrument import emit
from ..source.live_source import NotRewritable

_NAMES = frozenset({"_getframe", "currentframe", "stack", "f_back", "extract_stack"})


def _frame(depth: int = 0) -> types.FrameType:
    return user_frame(sys._getframe(), depth + 1)


def _stack(context: int = 1) -> list[inspect.FrameInfo]:
    return [each for each in inspect.stack(context) if not is_own_file(each.filename)]


def _module() -> str:
    return str(user_frame(sys._getframe(), 1).f_globals.get("__name__", "__main__"))


def _namedtuple(*args: Any, **kwargs: Any) -> Any:
    """It takes the name of its module from the frame."""
    return collections.namedtuple(*args, **{"module": _module(), **kwargs})


def _typed_tuple(*args: Any, **kwargs: Any) -> Any:
    make: Any = typing.NamedTuple
    made = make(*args, **kwargs)
    made.__module__ = _module()
    return made


def _dataclass(*args: Any, **kwargs: Any) -> Any:
    if sys.version_info >= (3, 12):
        kwargs = {"module": _module(), **kwargs}
    return dataclasses.make_dataclass(*args, **kwargs)


def new_class(name: str, bases: Any, table: Any, **kwargs: Any) -> Any:
    """`type(name, bases, table)`, which takes the name of its module from the frame, too."""
    return type(name, bases, {"__module__": _module(), **table}, **kwargs)


_READERS: dict[Any, Callable[..., Any]] = {
    sys._getframe: _frame,
    inspect.currentframe: _frame,
    inspect.stack: _stack,
    collections.namedtuple: _namedtuple,
    typing.NamedTuple: _typed_tuple,
    dataclasses.make_dataclass: _dataclass,
}


def takes(function: Any) -> bool:
    plain = isinstance(function, types.BuiltinFunctionType | types.FunctionType)
    return (plain and function in _READERS) or _makes_enumerations(function)


def _makes_enumerations(function: Any) -> bool:
    """An enumeration without members, a call of which is another one."""
    return isinstance(function, enum.EnumMeta) and not function.__members__


def read(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if _makes_enumerations(function):
        return function(*args, **{"module": _module(), **kwargs})
    return _READERS[function](*args, **kwargs)


def call(rec: Recorder, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """No later call can make a frame again."""
    rec.stop(catalogue.UNSUPPORTED, f"{function.__qualname__} reads a frame")
    return read(function, args, kwargs)


def attribute(frame: types.FrameType, name: str) -> Any:
    """An attribute of a frame, as where this package does not run."""
    found = getattr(frame, name)
    if name == "f_back":
        while found is not None and is_own_file(found.f_code.co_filename):
            found = found.f_back
    elif name == "f_locals" and emit.is_rewritten(frame.f_code):
        found = {key: value for key, value in found.items() if key != emit.OPERATORS}
    return found


def rewritten(function: Any, forms: Any) -> Any:
    """A form of the function in which its reads of frames are seen, if it has such; else None."""
    if not isinstance(function, types.FunctionType) or _NAMES.isdisjoint(
        function.__code__.co_names
    ):
        return None
    try:
        return emit.rewrite(function, forms)
    except NotRewritable:
        return None


def looks_around(code: types.CodeType) -> bool:
    """Whether the code reads names that no operator sees; a method that is called `eval` does
    not."""
    if not _LOOKING.isdisjoint(code.co_names):
        read = (each for each in dis.get_instructions(code) if each.opname in _LOADS)
        if any(each.argval in _LOOKING for each in read):
            return True
    return any(looks_around(const) for const in code.co_consts if isinstance(const, types.CodeType))


_LOADS = ("LOAD_GLOBAL", "LOAD_NAME")
_LOOKING = frozenset({"globals", "eval", "exec"})
