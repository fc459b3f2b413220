"""Callables for compiled loops, native ones, or ctypes where no extension can be built; and for
products by the library."""

import contextlib
import ctypes
import dataclasses
import functools
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

import torch

from .. import build
from ..cache import disk_cache
from .result_memory import reinterpreted


class CtypesKernel:
    """What the native `Kernel` does, in Python."""

    def __init__(self, address: int, name: str, threads: Callable[[], int] | None) -> None:
        self.name = name
        self._threads = threads
        # CFUNCTYPE releases the GIL
        maker = ctypes.PYFUNCTYPE if threads is None else ctypes.CFUNCTYPE
        self._loop = maker(ctypes.c_int64, ctypes.c_void_p, ctypes.c_int64)(address)

    def __call__(self, *args: Any) -> None:
        pointers = [arg if type(arg) is int else arg.data_ptr() for arg in args]
        array = (ctypes.c_void_p * len(pointers))(*pointers)
        threads = 1 if self._threads is None else self._threads()
        if self._loop(ctypes.addressof(array), threads):
            raise IndexError(f"index out of range in self (kernel {self.name})")


LAUNCH = "launch"  # the extension


@functools.cache
def kernel_type() -> Callable[[int, str, Callable[[], int] | None], Callable[..., None]]:
    """The native kernel class, or `CtypesKernel`."""
    module = build.built_extension(LAUNCH, "kernels are launched through ctypes")
    return CtypesKernel if module is None else module.Kernel


@dataclasses.dataclass(frozen=True)
class Place:
    """Where a kernel comes from: the library's file name in the cache, its name there, and whether
    it is worth more than one thread."""

    file: str
    name: str
    big: bool


_places: dict[int, tuple[Any, Place]] = {}  # by the identity of what launches


def place_of(launch: Callable[..., None]) -> Place | None:
    """Where the kernel comes from; None for what no library gave."""
    found = _places.get(id(launch))
    return found[1] if found is not None and found[0] is launch else None


class Library:
    """A loaded library of kernels; `kernel(name, big)` gives a callable that takes tensors or
    addresses. `place`: what the loader finds the file by, if not by its path in the cache."""

    def __init__(self, path: Path, place: str | None = None) -> None:
        self._file = path.name
        found = disk_cache.loading(path) if place is None else contextlib.nullcontext(place)
        with found as place:
            self._library = ctypes.CDLL(place)

    def kernel(self, name: str, big: bool) -> Callable[..., None]:
        address = ctypes.cast(getattr(self._library, name), ctypes.c_void_p).value
        assert address is not None
        made = kernel_type()(address, name, torch.get_num_threads if big else None)
        _places[id(made)] = made, Place(self._file, name, big)
        return made


@dataclasses.dataclass(frozen=True)
class Product:
    """A product of matrices by the library. `layouts`: of the operands, and of where the result is
    placed, if it is: (shape, strides, offset) of a view, or None for the whole tensor."""

    NAMES: ClassVar = ("mm", "bmm", "addmm", "baddbmm")

    name: str
    layouts: tuple[tuple[tuple[int, ...], tuple[int, ...], int] | None, ...]
    placed: bool

    def __call__(self, *operands: torch.Tensor) -> torch.Tensor | None:
        given = [
            tensor if layout is None else reinterpreted(tensor, *layout)
            for tensor, layout in zip(operands, self.layouts, strict=True)
        ]
        target: Any = getattr(torch, self.name)
        made = target(*given[:-1], out=given[-1]) if self.placed else target(*given)
        return None if self.placed else made

    def native(self, module: ModuleType) -> Callable[..., Any]:
        """The same by `native/products.h`."""
        return module.Product(self.name, self.layouts, self.placed)  # type: ignore[no-any-return]

    def __str__(self) -> str:
        taken = (layout or "as it is" for layout in self.layouts)
        return f"operands {', '.join(map(str, taken))}"
