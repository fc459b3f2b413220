"""Building against the headers of the torch that is installed; the extension that is built so for
autograd nodes and products (`native/torch_parts.cpp`): once, in the background, while Python
serves, which goes on where it cannot be built. `DYNFIX_NATIVE_NODES=0` keeps it away."""

import contextlib
import functools
import os
import sys
import threading
import weakref
from pathlib import Path
from types import ModuleType
from typing import Protocol

import torch

from . import background_budget, build, compilers
from .errors import WorkerStopped

MIN_CALLS_BEFORE_BUILD = (
    128  # calls with gradients, after which the native parts are worth their compiler
)

# Processor seconds of the compiler, for one that importing torch takes.
TORCH_PARTS = 16.0


def torch_flags() -> dict[str, tuple[str, ...]]:
    """What `build_extension` needs for a source that includes torch's headers."""
    home = Path(torch.__file__).parent
    abi = int(torch._C._GLIBCXX_USE_CXX11_ABI)
    flags = ("-std=c++20", "-w", f"-isystem{home / 'include'}", f"-D_GLIBCXX_USE_CXX11_ABI={abi}")
    link = (f"-L{home / 'lib'}", "-ltorch_cpu", "-lc10", f"-Wl,-rpath,{home / 'lib'}")
    return {
        "flags": flags,
        "link": link,
        "salt": (torch.__version__, str(torch.version.git_version)),
    }


class Waiting(Protocol):
    """What can make use of the native parts."""

    def use(self, native: ModuleType) -> None:
        """They are there."""


class _Parts:
    native: ModuleType | None = None
    patience: int | None = None
    stored = False
    lock = threading.Lock()


_waiting: "weakref.WeakSet[Waiting]" = weakref.WeakSet()


def torch_parts() -> ModuleType | None:
    """The native parts, if they are there; called where they would have served a call, they are
    loaded or built after some such calls."""
    if _Parts.native is None:
        _count()
    return _Parts.native


def give_parts(user: Waiting) -> None:
    """Call `user.use` with the native parts: now, or once they are there."""
    with _Parts.lock:
        native = _Parts.native
        if native is None:
            _waiting.add(user)
    if native is not None:
        user.use(native)


def _count() -> None:
    if _Parts.patience is None:
        _Parts.patience = _first_patience()
    _Parts.patience -= 1
    if _Parts.patience == 0:
        if _Parts.stored or background_budget.is_affordable(TORCH_PARTS):
            start()
        else:
            _Parts.patience = MIN_CALLS_BEFORE_BUILD


def _enabled() -> bool:
    has_gil = getattr(sys, "_is_gil_enabled", lambda: True)()
    return bool(has_gil) and os.environ.get("DYNFIX_NATIVE_NODES", "1") != "0"


def _first_patience() -> int:
    if not _enabled():
        return 0
    find = lambda: build.find_extension("torch_parts", **_flags()) is not None  # noqa: E731
    stored = build.built_or(None, "autograd nodes are Python's", find)
    _Parts.stored = bool(stored)
    return 0 if stored is None else 1 if stored else MIN_CALLS_BEFORE_BUILD


def _flags() -> dict[str, tuple[str, ...]]:
    """Those of a source that calls torch's Python bindings, too."""
    flags = torch_flags()
    return {**flags, "link": (*flags["link"], "-ltorch_python")}


@functools.cache
def start() -> threading.Thread | None:
    """Begin to load the native parts, or to build them, beside what goes on."""
    return build.begun("dynfix-torch-parts", _load_gently)


def _load_gently() -> None:
    compilers.be_gentle()  # torch's headers take a compiler some twenty seconds
    with contextlib.suppress(WorkerStopped):
        load()


def load() -> None:
    """Load the native parts, or build them."""
    if _Parts.native is not None or not _enabled():
        return
    native = build.built_extension("torch_parts", "autograd nodes are Python's", **_flags())
    if native is None:
        return
    with _Parts.lock:
        _Parts.native = native
        waiting = list(_waiting)
        _waiting.clear()
    for user in waiting:
        user.use(native)
