"""Binaries of Triton's kernels, of this process or an earlier one: loaded by the driver.

Such a binary serves native launches. Triton's own launch, for each signature a C file that is
compiled, is made when it is asked for; of an earlier process's binary Triton builds the kernel
again for it, which its own cache makes short.
"""

from __future__ import annotations

import ctypes
import dataclasses
import functools
import importlib.metadata
import json
import threading
from collections.abc import Callable
from typing import Any

import torch

from ..cache import disk_cache
from ..diagnostics import log
from .native_launch import DRIVER

TOOL = "binary-1"
_CODE, _FACTS = ".cubin", ".facts.json"
_PLAIN_SHARED = 49152  # bytes of shared memory that a kernel need not ask for
_MAX_DYNAMIC_SHARED = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES


@dataclasses.dataclass(frozen=True)
class _Target:
    backend: str
    arch: int


@dataclasses.dataclass(frozen=True)
class BinaryMetadata:
    """What launches ask of a binary's metadata, by Triton's names."""

    name: str
    target: _Target
    num_warps: int
    num_ctas: int
    shared: int
    global_scratch_size: int
    profile_scratch_size: int
    launch_cooperative_grid: bool
    launch_pdl: bool


class Loaded:
    """A binary whose `function` the driver loaded; what Triton's launch needs is built when it is
    asked for."""

    def __init__(self, metadata: BinaryMetadata, function: int, build: Callable[[], Any]) -> None:
        self.metadata, self.function = metadata, function
        self._build, self._built, self._lock = build, None, threading.Lock()

    @property
    def run(self) -> Any:
        return self._whole().run

    @property
    def packed_metadata(self) -> Any:
        return self._whole().packed_metadata

    def _whole(self) -> Any:
        with self._lock:
            if self._built is None:
                self._built = self._build()
            return self._built


@functools.cache
def triton_version() -> str:
    try:
        return importlib.metadata.version("triton")
    except importlib.metadata.PackageNotFoundError:
        return ""


def key_of(device: torch.device, *parts: object) -> str:
    """The key of a kernel's binary; `parts`: everything that Triton is given."""
    found = torch.cuda.get_device_properties(device)
    where = found.name, found.major, found.minor, torch.version.cuda
    return disk_cache.key(TOOL, triton_version(), repr(where), repr(parts))


def _facts(binary: Any) -> BinaryMetadata | None:
    """None where not all is known of what `build` made, or it is for no CUDA device."""
    data = binary.metadata
    names = [field.name for field in dataclasses.fields(BinaryMetadata) if field.name != "target"]
    try:
        target = _Target(data.target.backend, int(data.target.arch))
        return BinaryMetadata(target=target, **{name: getattr(data, name) for name in names})
    except (AttributeError, TypeError, ValueError):
        return None


def keep(key: str, binary: Any) -> None:
    """Store what `build` made, if all that `Facts` ask for is known of it."""
    facts = _facts(binary)
    if facts is None or facts.target.backend != "cuda":
        return
    try:
        text = json.dumps(dataclasses.asdict(facts)).encode()
        disk_cache.put(key, _CODE, binary.kernel)
        disk_cache.put(key, _FACTS, text)
    except (TypeError, ValueError, OSError) as error:
        log.debug("a binary is not kept: %r", error)


def load(binary: Any, device: torch.device) -> Any:
    """What `build` made, ready to launch: loaded by the driver, or else by Triton. Raises Triton's
    OutOfResources."""
    facts = _facts(binary)
    if facts is not None and facts.target.backend == "cuda":
        try:
            return Loaded(facts, _function(binary.kernel, facts, device), lambda: binary)
        except OSError as error:
            log.info("Triton loads a binary: %r", error)
    binary.run  # noqa: B018
    return binary


def find(key: str, device: torch.device, build: Callable[[], Any]) -> Loaded | None:
    """The stored binary, loaded on the device; None where there is none, or it cannot be."""
    facts, code = disk_cache.read(key, _FACTS), disk_cache.read(key, _CODE)
    if facts is None or code is None:
        return None
    try:
        values = json.loads(facts)
        metadata = BinaryMetadata(**{**values, "target": _Target(**values["target"])})
        return Loaded(metadata, _function(code, metadata, device), build)
    except (OSError, TypeError, ValueError, KeyError) as error:
        log.info("a stored binary cannot be used: %r", error)
        return None


@functools.cache
def _driver() -> Any:
    return ctypes.CDLL(DRIVER)


def _function(code: bytes, facts: BinaryMetadata, device: torch.device) -> int:
    """The driver's handle. Raises OSError."""
    index = device.index if device.index is not None else torch.cuda.current_device()
    module, function = ctypes.c_void_p(), ctypes.c_void_p()
    _make_current(index)
    _check(_driver().cuModuleLoadData(ctypes.byref(module), code))
    name = facts.name.encode()
    _check(_driver().cuModuleGetFunction(ctypes.byref(function), module, name))
    if facts.shared > _PLAIN_SHARED:
        _check(_driver().cuFuncSetAttribute(function, _MAX_DYNAMIC_SHARED, facts.shared))
    assert function.value is not None
    return function.value


def _make_current(index: int) -> None:
    """The device's own context, which torch's calls use, for this thread, which may have none."""
    _check(_driver().cuCtxSetCurrent(_context(index)))


@functools.cache
def _context(index: int) -> ctypes.c_void_p:
    context, device = ctypes.c_void_p(), ctypes.c_int()
    _check(_driver().cuDeviceGet(ctypes.byref(device), index))
    _check(_driver().cuDevicePrimaryCtxRetain(ctypes.byref(context), device))
    return context


def _check(status: int) -> None:
    if status:
        raise OSError(f"the driver says {status}")
