"""Warnings of torch in a call that is recorded: they name the user's code, not the operators of
this package that called torch."""

import contextlib
import sys
import types
import warnings
from collections.abc import Iterator
from typing import Any

from .tracebacks import is_own

_FROM_MODES = ("handle_torch_function",)  # torch's, between a public function and a mode


@contextlib.contextmanager
def named() -> Iterator[None]:
    """A warning that names code of this package names the code that it runs for, and is told there
    as often as Python tells one."""
    show = warnings.showwarning

    def showwarning(
        message: Any, category: Any, filename: str, lineno: int, *more: Any, **given: Any
    ) -> None:
        frame = _frame_at(filename, lineno)
        users = frame and _users(frame)
        if frame is None or users is None or users is frame:
            return show(message, category, filename, lineno, *more, **given)
        if _is_new(str(message), category, frame, users):
            show(message, category, users.f_code.co_filename, users.f_lineno, *more, **given)
        return None

    warnings.showwarning = showwarning
    try:
        yield
    finally:
        if warnings.showwarning is showwarning:  # the user's code may have set another one
            warnings.showwarning = show


def _frame_at(filename: str, lineno: int) -> types.FrameType | None:
    frame: types.FrameType | None = sys._getframe()
    while frame is not None:
        if frame.f_lineno == lineno and frame.f_code.co_filename == filename:
            return frame
        frame = frame.f_back
    return None


def _users(frame: types.FrameType | None) -> types.FrameType | None:
    """The frame that called in eager: none of ours, nor those by which torch asks a mode."""
    while frame is not None:
        if frame.f_code.co_name in _FROM_MODES and frame.f_back is not None:
            frame = frame.f_back.f_back  # the public function is called once more below
        elif is_own(frame.f_code.co_filename):
            frame = frame.f_back
        else:
            return frame
    return None


def _is_new(text: str, category: Any, frame: types.FrameType, users: types.FrameType) -> bool:
    """Whether the user's place has not told that yet, where a filter has each place tell it once:
    then Python has noted it at the other place, which is undone for others to come by."""
    noted = frame.f_globals.get("__warningregistry__", {})
    if noted.pop((text, category, frame.f_lineno), None) is None:
        return True
    registry = users.f_globals.setdefault("__warningregistry__", {})
    if registry.get("version") != noted.get("version"):  # the filters have changed since
        registry.clear()
        registry["version"] = noted.get("version")
    key = (text, category, users.f_lineno)
    if registry.get(key):
        return False
    registry[key] = True
    return True
