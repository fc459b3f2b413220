"""Where torch is too old, importing this module raises ImportError. Modules that compile import it
ahead of what an old torch lacks, which would fail in ways that nobody understands."""

import functools

import torch

from ..diagnostics import warn_once
from .torch_versions import too_old, untested

_version = str(torch.__version__)
if _trouble := too_old(_version):
    raise ImportError(_trouble)


@functools.cache
def warn_if_untested() -> None:
    """Called when something is to be compiled: warns of a newer torch, once in a process."""
    if message := untested(_version):
        warn_once("torch version", message)
