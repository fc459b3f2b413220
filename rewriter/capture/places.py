"""Which line of the user's code is running."""

import dataclasses
import functools
import inspect
import linecache
import os
import sys
import types
from collections.abc import Callable, Container, Mapping
from typing import Any

import torch

_ENTRY_FILE = os.path.join("dynfix", "rewriter", "frontend", "module_class.py")
Codes = Mapping[int, Callable[[], types.CodeType | None]]
_rewritten: list[Codes] = [{}]
_files: list[Container[str]] = [()]


def use(rewritten: Codes, files: Container[str]) -> None:
    """Tell which code is rewritten, by its identity, and the files that it is from; the rewriter
    calls this once."""
    _rewritten[:], _files[:] = [rewritten], [files]


def _is_rewritten(code: types.CodeType) -> bool:
    known = _rewritten[0].get(id(code))
    return known is not None and known() is code


def place_of(frame: types.FrameType | None) -> tuple[str, int, str]:
    """(file, line, source line) of the innermost rewritten frame outside of torch and the standard
    library, else of the innermost rewritten frame."""
    # asked of some thirty frames for each operator, and hooks for auditing hear of each `id`
    inner, known, files = None, _rewritten[0].get, _files[0]
    while frame is not None:
        code = frame.f_code
        found = known(id(code)) if code.co_filename in files else None
        if found is not None and found() is code:
            whose = _whose(code.co_filename)
            if whose == _USERS:
                return _with_text(code.co_filename, frame.f_lineno)
            if whose == _LIBRARYS and inner is None:
                inner = (code.co_filename, frame.f_lineno)
        frame = frame.f_back
    return _with_text(*(inner or ("<unknown>", 0)))


def here() -> str:
    """The line of the user's that runs now: "model.py:41"."""
    file, line, _ = place_of(sys._getframe(1))
    return f"{file}:{line}"


_USERS, _LIBRARYS, _OURS = range(3)
_STANDARD_LIBRARY = os.path.dirname(os.__file__) + os.sep
_INSTALLED = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")


@functools.lru_cache(maxsize=1 << 12)
def _whose(file: str) -> int:
    if file.endswith(_ENTRY_FILE):
        return _OURS
    standard = file.startswith(_STANDARD_LIBRARY) and not any(part in file for part in _INSTALLED)
    if f"{os.sep}torch{os.sep}" in file or standard or is_own_file(file):
        return _LIBRARYS
    return _USERS


def _is_entry(code: types.CodeType) -> bool:
    """Whether it is this package's own: what is compiled for a module, or a part of it."""
    return _whose(code.co_filename) == _OURS


@dataclasses.dataclass(frozen=True)
class Reached:
    """The `line` that a rewritten function got to; it is known by its file and first line, and by
    the identity of the module that it is a method of (0: of none). `variables`: the identities of
    its local variables then."""

    file: str
    first_line: int
    owner: int
    line: int
    variables: dict[str, int]


def locals_of(frame: types.FrameType) -> dict[str, Any]:
    """The variables of a function's frame. Before Python 3.13 a frame keeps what it was asked for,
    and so alive: it is emptied."""
    shown = frame.f_locals
    variables = dict(shown)
    if _KEEPS_LOCALS and frame.f_code.co_flags & inspect.CO_OPTIMIZED:
        shown.clear()
    return variables


_KEEPS_LOCALS = sys.version_info < (3, 13)


def reached_lines(frame: types.FrameType | None) -> tuple[Reached, ...]:
    """Where each function of the rewritten code that runs has got to, the innermost first."""
    found = []
    while frame is not None:
        code = frame.f_code
        if _is_rewritten(code):
            local = locals_of(frame)
            owner = local.get(code.co_varnames[0]) if code.co_argcount else None
            known = id(owner) if isinstance(owner, torch.nn.Module) else 0
            variables = {name: id(value) for name, value in local.items()}
            found.append(
                Reached(code.co_filename, code.co_firstlineno, known, frame.f_lineno, variables)
            )
        frame = frame.f_back
    return tuple(found)


def definition_of(fn: Any, args: tuple[Any, ...]) -> tuple[str, int, str]:
    """File, line and text of where a function is defined; of a module's `forward`, where a module
    is what is called."""
    code = getattr(fn, "__code__", None)
    module = next((each for each in args if isinstance(each, torch.nn.Module)), None)
    if code is not None and _is_entry(code) and module is not None:
        fn = getattr(type(module).forward, "__wrapped__", type(module).forward)
        code = getattr(fn, "__code__", None)
    return (
        ("<unknown>", 0, "") if code is None else _with_text(code.co_filename, code.co_firstlineno)
    )


def _with_text(file: str, line: int) -> tuple[str, int, str]:
    return shown(file), line, linecache.getline(file, line).strip()


def shown(file: str) -> str:
    """A file as messages name it."""
    return _shown_in(os.getcwd(), file)


@functools.lru_cache(maxsize=1 << 12)
def _shown_in(folder: str, file: str) -> str:
    below = os.path.isabs(file) and file.startswith(folder + os.sep)
    return os.path.relpath(file) if below else file


_HERE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
_OWN = (os.path.join(_HERE, "rewriter"), os.path.join(_HERE, "runtime"))


def is_own_file(file: str) -> bool:
    return file.startswith(_OWN)


def user_frame(frame: types.FrameType | None, level: int) -> types.FrameType:
    """The frame that `stacklevel=level` means to the user: frames of this package are not
    counted."""
    last = frame
    while frame is not None:
        if not is_own_file(frame.f_code.co_filename):
            last, level = frame, level - 1
            if level <= 0:
                break
        frame = frame.f_back
    assert last is not None
    return last
