"""What a program follows from besides its graph: versions, processor, compiler, and the global
state of torch, as text."""

import functools
import hashlib
import importlib.metadata
import os
import platform
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch._functorch import config as functorch_config

from ... import __version__
from ..build import find_compiler, isa
from ..guards.guard_state import _READERS, function_modes
from .named_functions import Unnamed

FORMAT = "program-2"
_SOURCES = ("lowering", "runtime")
_LOADED = time.time()  # seconds
_FLAGS = (
    *("_get_flash_sdp_enabled", "_get_mem_efficient_sdp_enabled", "_get_math_sdp_enabled"),
    *("_get_cudnn_sdp_enabled", "_get_cudnn_enabled", "_get_cudnn_benchmark"),
    *("_get_mkldnn_enabled", "_get_onednn_allow_tf32", "_get_nnpack_enabled"),
)


@functools.cache
def of_process() -> str:
    """What stays as it is while the process runs. Raises Unnamed where a file of this package was
    written since it was loaded."""
    return repr(
        (
            *(FORMAT, __version__, _sources().hex(), torch.__version__, torch.version.git_version),
            *(sys.version, platform.machine(), torch.backends.cpu.get_cpu_capability(), isa()),
            find_compiler(),
        )
    )


def _sources() -> bytes:
    """A digest of every file of this package that a program follows from."""
    package = str(Path(__file__).parents[2])
    digest = hashlib.sha256()
    for path in sorted(_files(package)):
        with open(path, "rb") as file:
            if os.fstat(file.fileno()).st_mtime > _LOADED:
                name = os.path.basename(path)
                raise Unnamed(f"{name}, which was written since it was loaded")
            data = file.read()
        digest.update(f"{path[len(package) :]}:{len(data)}:".encode() + data)
    return digest.digest()


def _files(package: str) -> Iterator[str]:
    for part in _SOURCES:
        for folder, _, names in os.walk(os.path.join(package, part)):
            for name in names:
                if name.endswith((".py", ".h", ".cpp")):
                    yield os.path.join(folder, name)


def of_call() -> str:
    """Modes, defaults and flags of the calling thread. Raises Unnamed under torch function modes,
    which may change what any function is."""
    if function_modes():
        raise Unnamed("a torch function mode is active")
    state = [(title, read()) for title, read in _READERS]
    flags = [(name, read()) for name in _FLAGS if (read := getattr(torch._C, name, None))]
    return repr((state, flags, sorted(_functorch_settings())))


def of_gpus() -> str:
    """What kernels for GPUs follow from: the devices, Triton's version, and whether it
    interprets."""
    try:
        triton = importlib.metadata.version("triton")
    except importlib.metadata.PackageNotFoundError:
        triton = ""
    devices = []
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        for number in range(torch.cuda.device_count()):
            found = torch.cuda.get_device_properties(number)
            devices.append((found.name, found.major, found.minor, found.multi_processor_count))
    interpreted = os.environ.get("TRITON_INTERPRET", "0")
    return repr((triton, torch.version.cuda, torch.version.hip, devices, interpreted))


def _functorch_settings() -> Iterator[tuple[str, str]]:
    """AOTAutograd's settings, as far as they are plain values."""
    settings: Any = functorch_config
    for name, value in settings.get_config_copy().items():
        parts = value if isinstance(value, list | tuple) else (value,)
        if not all(part is None or isinstance(part, bool | int | float | str) for part in parts):
            raise Unnamed(f"the setting {name}")
        yield name, repr(value)
