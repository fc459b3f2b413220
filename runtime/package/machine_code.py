"""Code of a package for a kind of processor: which processors run it, and loading it from memory,
where nobody can change it between the check of its hash and its use."""

import contextlib
import os
import platform
import re
import sysconfig
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..cache.private_files import DESCRIPTORS, loader_path

# Extensions that a compiler makes use of under -march=native.
_USED = re.compile(
    r"sse\w*|ssse3|avx\w*|fma\w*|f16c|bmi[12]|abm|lzcnt|popcnt|movbe|amx\w*|vaes|vpclmulqdq|gfni"
    r"|aes|sha_ni|pclmulqdq|adx|rdrnd|rdseed|xsave\w*|clflushopt|clwb"
    r"|asimd\w*|sve\w*|fp|fphp|atomics|crc32|i8mm|bf16|lrcpc|dcpop|pmull"
)


NATIVE, PORTABLE = "native", "x86-64-v3"
_OF_PORTABLE = "abm avx avx2 bmi1 bmi2 f16c fma movbe popcnt sse4_1 sse4_2 ssse3 xsave".split()


def targets() -> list[dict[str, Any]]:
    """What code is built for here, the best first: this processor, and those of ten years before.
    Each with what it needs."""
    here = {"system": platform.system(), "machine": platform.machine()}
    found = [{"name": NATIVE, **here, "flags": sorted(filter(_USED.fullmatch, _flags()))}]
    if platform.machine() == "x86_64":
        found.append({"name": PORTABLE, **here, "flags": _OF_PORTABLE})
    return found


def flags_for(name: str) -> tuple[str, ...]:
    """What a compiler is told, after the flags of kernels."""
    return () if name == NATIVE else (f"-march={name}", "-mtune=generic")


def python() -> str:
    """What extension modules have to be built for."""
    return str(sysconfig.get_config_var("SOABI"))


def fitting(offered: list[dict[str, Any]]) -> tuple[str | None, str]:
    """The name of the first of `targets()` of another machine that runs here, and why others do
    not."""
    reasons = []
    for wanted in offered:
        reason = _lacking(wanted)
        if reason is None:
            return wanted["name"], ""
        reasons.append(reason)
    return None, reasons[-1] if reasons else "it has no kernels"


def _lacking(wanted: dict[str, Any]) -> str | None:
    if (wanted["system"], wanted["machine"]) != (platform.system(), platform.machine()):
        return f"it is for {wanted['system']} on {wanted['machine']}"
    missing = sorted({*wanted["flags"]} - _flags())
    return f"it needs a processor with {', '.join(missing)}" if missing else None


def _flags() -> set[str]:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return set()
    found = (line.split(":", 1)[1] for line in lines if line.startswith(("flags", "Features")))
    return set(next(found, "").split())


@contextlib.contextmanager
def loadable(data: bytes) -> Iterator[str]:
    """A path by which the dynamic loader finds these very bytes. Raises OSError."""
    create = getattr(os, "memfd_create", None)
    if create is None or not os.path.isdir(DESCRIPTORS):
        with tempfile.TemporaryDirectory(prefix="dynfix-") as folder:
            place = os.path.join(folder, "kernels.so")
            Path(place).write_bytes(data)
            yield place
        return
    handle = create("dynfix-kernels", os.MFD_CLOEXEC)
    try:
        with open(handle, "wb", closefd=False) as file:
            file.write(data)
        yield loader_path(handle, "")
    finally:
        os.close(handle)
