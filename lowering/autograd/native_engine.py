"""The native autograd node of compiled functions (`runtime/native/autograd_node.cpp`): built once,
in the background, while Python's serves, which goes on where it cannot be built."""

import functools
import threading
from types import ModuleType

from ...runtime import build
from ...runtime.errors import BuildError
from ...runtime.report import log
from ...runtime.torch_headers import torch_flags

PATIENCE = 128  # calls with gradients, after which it is worth its compiler


class _Engine:
    native: ModuleType | None = None
    patience: int | None = None


def native_part() -> ModuleType | None:
    """The native part, if it is there; called where it would have served a call, it is loaded or
    built after some such calls."""
    if _Engine.native is None:
        _count()
    return _Engine.native


def _count() -> None:
    if _Engine.patience is None:
        _Engine.patience = _first_patience()
    _Engine.patience -= 1
    if _Engine.patience == 0:
        start()


def _first_patience() -> int:
    try:
        return 1 if build.find_extension("autograd_node", **_flags()) is not None else PATIENCE
    except (BuildError, OSError) as error:
        log.info("autograd nodes are Python's: %s", error)
        return 0


def _flags() -> dict[str, tuple[str, ...]]:
    """Those of a source that calls torch's Python bindings, too."""
    flags = torch_flags()
    return {**flags, "link": (*flags["link"], "-ltorch_python")}


@functools.cache
def start() -> threading.Thread:
    """Begin to load the native part, or to build it, beside what goes on."""
    # A daemon: a process that ends does not wait for the compiler.
    thread = threading.Thread(target=_load_gently, name="dynfix-autograd", daemon=True)
    thread.start()
    return thread


def _load_gently() -> None:
    build.be_gentle()  # torch's headers take a compiler some twenty seconds
    load()


def load() -> None:
    """Load the native part, or build it."""
    if _Engine.native is not None:
        return
    try:
        path = build.build_extension("autograd_node", **_flags())
        _Engine.native = build.load_extension("autograd_node", path)
    except (BuildError, ImportError, OSError) as error:
        log.info("autograd nodes are Python's: %s", error)
