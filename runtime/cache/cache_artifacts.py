"""The kernels of a process in one file, as `save_cache_artifacts` of torch.compiler makes it."""

import dataclasses
import hashlib
import io
import re
import zipfile

from ..errors import DynfixError
from . import disk_cache

_NAME = re.compile(r"[0-9a-f]{64}[\w.]{0,80}")
LARGEST = 1 << 30  # bytes of one file in it


@dataclasses.dataclass(frozen=True)
class CacheInfo:
    """The names of the files that were saved, or loaded."""

    artifacts: tuple[str, ...]

    def empty(self) -> bool:
        """Whether there are none."""
        return not self.artifacts


def save_cache_artifacts() -> tuple[bytes, CacheInfo] | None:
    """What this process built or found in its cache, as one zip archive, and what is in it; None if
    there is nothing. It holds source text and machine code, for this kind of processor and
    compiler."""
    packed, names = io.BytesIO(), []
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for key, suffix in list(disk_cache.used):
            data = (
                None
                if suffix in (disk_cache.RUNS, disk_cache.CODE, disk_cache.GRAPH)
                else disk_cache.read(key, suffix)
            )
            if data is not None:
                names.append(f"{key}{suffix}")
                digest = hashlib.sha256(data).hexdigest()
                archive.writestr(f"{key}{suffix}/{digest}", data)
    return (packed.getvalue(), CacheInfo(tuple(names))) if names else None


def load_cache_artifacts(serialized_artifacts: bytes) -> CacheInfo | None:
    """Put what `save_cache_artifacts` gave into this machine's cache folder; None if nothing is in
    it. What was built for another processor or compiler is never used. Load only what you trust: it
    is code. Raises DynfixError for damaged data."""
    try:
        with zipfile.ZipFile(io.BytesIO(serialized_artifacts)) as archive:
            found = [_checked(archive, info) for info in archive.infolist()]
    except (zipfile.BadZipFile, OSError, ValueError) as error:
        raise DynfixError(f"these are no cache artifacts: {error}") from error
    for name, data in found:
        disk_cache.put(name[:64], name[64:], data)
    return CacheInfo(tuple(name for name, _ in found)) if found else None


def _checked(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> tuple[str, bytes]:
    name, _, digest = info.filename.partition("/")
    if not _NAME.fullmatch(name) or ".." in name or info.file_size > LARGEST:
        raise ValueError(f"{info.filename!r} has no place in a cache")
    data = archive.read(info)
    if hashlib.sha256(data).hexdigest() != digest:
        raise ValueError(f"{name} is damaged")
    return name, data
