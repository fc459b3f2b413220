"""Which line of the user's code is running."""

import linecache
import os
import types
from collections.abc import Callable

_is_rewritten: list[Callable[[types.CodeType], bool]] = []


def use(is_rewritten: Callable[[types.CodeType], bool]) -> None:
    """Tell how rewritten code is known; the rewriter calls this once."""
    _is_rewritten[:] = [is_rewritten]


def place_of(frame: types.FrameType | None) -> tuple[str, int, str]:
    """(file, line, source line) of the innermost rewritten frame outside torch, else of the
    innermost rewritten frame."""
    inner = None
    while frame is not None:
        code = frame.f_code
        if _is_rewritten and _is_rewritten[0](code):
            here = (code.co_filename, frame.f_lineno)
            inner = inner or here
            if f"{os.sep}torch{os.sep}" not in code.co_filename:
                return _with_text(*here)
        frame = frame.f_back
    return _with_text(*(inner or ("<unknown>", 0)))


def _with_text(file: str, line: int) -> tuple[str, int, str]:
    return shown(file), line, linecache.getline(file, line).strip()


def shown(file: str) -> str:
    """A file as messages name it."""
    return os.path.relpath(file) if _is_below(file) else file


def _is_below(file: str) -> bool:
    return os.path.isabs(file) and file.startswith(os.getcwd() + os.sep)


def user_frame(frame: types.FrameType | None, level: int) -> types.FrameType:
    """The frame that `stacklevel=level` means to the user: frames of this package are not
    counted."""
    here = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    last = frame
    while frame is not None:
        if not frame.f_code.co_filename.startswith(
            (os.path.join(here, "rewriter"), os.path.join(here, "runtime"))
        ):
            last, level = frame, level - 1
            if level <= 0:
                break
        frame = frame.f_back
    assert last is not None
    return last
