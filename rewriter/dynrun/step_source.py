"""Drivers of training steps in the texts that run: the script, and the modules of the user's that
it imports. What is installed with Python stays as it is."""

import builtins
import functools
import os
import sys
import sysconfig
import types
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import Any

from ... import __getattr__ as public
from ...runtime.diagnostics import log
from ..graph_breaks.step_protocol import DRIVER
from . import as_python
from .session import Session
from .step_calls import Steps

_INSTALLED = tuple(
    os.path.join(folder, "")
    for folder in {
        *(sysconfig.get_path(name) for name in ("stdlib", "platstdlib")),
        str(Path(__file__).absolute().parents[2]),
    }
)
_LIBRARIES = ("site-packages", "dist-packages")


def install(session: Session, eager_calls: int) -> None:
    """From now on the texts that are loaded have drivers, which ask `session.steps`."""
    if sys.gettrace() is not None:
        return  # a debugger, or coverage: it is to see the user's own code
    session.steps = Steps(session, eager_calls)
    setattr(builtins, DRIVER, session.steps)
    as_python.code_from(functools.partial(_code_of, session.steps))
    original = SourceFileLoader.get_code
    SourceFileLoader.get_code = _GetCode(original, session.steps)  # type: ignore[assignment, method-assign]


def _code_of(steps: Steps, text: bytes, file: str) -> types.CodeType | None:
    """None also where this package is at fault: the file runs as it is."""
    if b".backward(" not in text:
        return None
    try:
        with_drivers: Any = public("with_drivers")
        return with_drivers(text, file, steps.register)  # type: ignore[no-any-return]
    except Exception as error:
        log.debug("no training step is looked for in %s", file, exc_info=error)
        return None


class _GetCode:
    """The loaders' `get_code`, as they have it for every file without a step: no frame of ours
    stands in a traceback."""

    def __init__(self, original: Any, steps: Steps) -> None:
        self._original, self._steps = original, steps

    def __get__(self, loader: Any, owner: type) -> Any:
        if loader is not None and is_users(loader.path):
            code = self._code(loader)
            if code is not None:
                return lambda name: code
        return self._original.__get__(loader, owner)

    def _code(self, loader: Any) -> types.CodeType | None:
        try:
            return _code_of(self._steps, loader.get_data(loader.path), loader.path)
        except OSError:
            return None


def is_users(path: str) -> bool:
    """Whether a file is the user's own, not of an installed package."""
    inside = any(f"{os.sep}{name}{os.sep}" in path for name in _LIBRARIES)
    return not inside and not path.startswith(_INSTALLED)
