"""Printed Triton kernels: their source in the cache, their binaries ahead of time.

A kernel takes pointers; a size that is known is a number in its text, one that only a call knows an
argument. So one binary serves every call, but for pointers that are not 16-byte aligned and for
sizes that are not (or are) multiples of 16, which get a binary of their own when they first come.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import linecache
import os
import sys
import threading
from types import ModuleType
from typing import Any

import torch

from ..cache import disk_cache
from ..errors import BuildError

ALIGNMENT = 16
TOOL = "triton-1"
WAIT = "m.after_earlier()"  # what a kernel begins with


@dataclasses.dataclass(frozen=True)
class TritonKernel:
    """One printed kernel: `text` defines `name` and takes one pointer for each of `arguments`.

    arguments: positions in the group's buffers (then its scratch); types: Triton pointer types
    ("*fp32"); sizes: elements of each; programs: the grid; warps: of one program. numbers: the
    recorded call's values of the sizes that the kernel takes after its pointers, n0, n1, …; if
    there are any: grid, Python over them in place of `programs`; reach: what 32 bits have to hold;
    wide: whether it counts in 64; wider: the same kernel that does. contracts: whether a product
    may be added before it is rounded, and denormals be zeros, which the loops' kernels never do.
    """

    name: str
    text: str
    arguments: tuple[int, ...]
    types: tuple[str, ...]
    sizes: tuple[int, ...]
    programs: int
    warps: int
    numbers: tuple[int, ...] = ()
    grid: str = ""
    reach: str = ""
    wide: bool = False
    wider: TritonKernel | None = None
    contracts: bool = False

    @property
    def options(self) -> dict[str, bool]:
        """What Triton is told of arithmetic. libdevice keeps denormals, as eager's functions do;
        integers wrap as in eager. A product is rounded before it is added, as eager's is: `y - y`
        is zero for a product `y`, too."""
        return {
            "enable_reflect_ftz": self.contracts,
            "sanitize_overflow": False,
            "enable_fp_fusion": self.contracts,
        }

    @property
    def checks(self) -> bool:
        """Whether the kernel stops at a position out of range."""
        return "tl.device_assert" in self.text

    @property
    def waits(self) -> bool:
        """Whether it waits by itself for the kernel before it."""
        return WAIT in self.text


@dataclasses.dataclass(frozen=True)
class TritonGroup:
    """Kernels to launch in order.

    variants[k]: the candidates for kernel k, the likeliest best first; scratch: dtype and number of
    elements of buffers that only these kernels see; header: stands before the kernel in its file.
    """

    name: str
    variants: tuple[tuple[TritonKernel, ...], ...]
    scratch: tuple[tuple[torch.dtype, int], ...]
    header: str


def interpreted() -> bool:
    """Whether Triton was loaded under TRITON_INTERPRET=1: kernels then run on CPU tensors."""
    return os.environ.get("TRITON_INTERPRET", "0") == "1"


@functools.cache
def triton() -> ModuleType:
    try:
        return importlib.import_module("triton")
    except ImportError as error:
        raise BuildError("the Triton target needs triton: pip install 'dynfix[torch]'") from error


_modules: dict[str, ModuleType] = {}
_modules_lock = threading.Lock()


def load_source(text: str, name: str) -> ModuleType:
    """Kernel source as a module. Triton asks `linecache` for a kernel's source: it is given this
    text, whatever becomes of the file in the cache, which is for debuggers."""
    key = disk_cache.key(TOOL, text)
    with _modules_lock:
        if key not in _modules:
            path = str(disk_cache.put(key, ".py", text.encode()))
            module = ModuleType(f"dynfix_kernels.{name}_{key[:12]}")
            module.__file__ = path
            linecache.cache[path] = (len(text), None, text.splitlines(keepends=True), path)
            sys.modules[module.__name__] = module
            exec(compile(text, path, "exec"), vars(module))
            _modules[key] = module
        return _modules[key]


def target_of(device: torch.device) -> Any:
    """Triton's name of a device, for which it would build its own C extension; None where that is
    left to it."""
    if device.type != "cuda" or torch.version.hip:
        return None
    properties = torch.cuda.get_device_properties(device)
    made_by = importlib.import_module("triton.backends.compiler")
    return made_by.GPUTarget("cuda", properties.major * 10 + properties.minor, 32)


def build(
    kernel: TritonKernel,
    function: Any,
    target: Any = None,
    aligned: bool = True,
    even: tuple[bool, ...] = (),
) -> Any:
    """The `triton.compiler.CompiledKernel` for `target`, or for the current device. even: which
    sizes are multiples of 16. Raises BuildError."""
    made_by = triton()
    names, pointers = list(function.arg_names), len(kernel.types)
    divisible = [*range(pointers * aligned), *(pointers + k for k, so in enumerate(even) if so)]
    attributes = {(k,): [["tt.divisibility", ALIGNMENT]] for k in divisible}
    integers = ("i64" if kernel.wide else "i32",) * len(kernel.numbers)
    source = made_by.compiler.ASTSource(
        fn=function,
        signature=dict(zip(names, (*kernel.types, *integers), strict=True)),
        constexprs={},
        attrs=attributes,
    )
    try:
        options = {"num_warps": kernel.warps, "debug": kernel.checks, **kernel.options}
        return made_by.compile(source, target=target, options=options)
    except Exception as error:
        raise BuildError(f"Triton could not build {kernel.name}: {error}\n{kernel.text}") from error
