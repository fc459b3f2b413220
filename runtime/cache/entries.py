"""Programs' files in the cache: JSON under the key of their graph.

They are bounded: beyond `MOST` bytes, those that were used longest ago are removed.
"""

import json
from typing import Any

from . import disk_cache

SUFFIX = ".program"
MAX_STORED_BYTES = 1 << 28  # bytes of all programs' files
used: set[str] = set()  # what this process found or wrote


def read(key: str, part: str = "") -> dict[str, Any] | None:
    """What was written under the key, or None. `part`: of what is found out about it later."""
    data = disk_cache.read(key, part + SUFFIX, touched=True)
    if data is None:
        return None
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        return None
    used.add(key + part)
    return found


def write(key: str, value: dict[str, Any], part: str = "") -> None:
    """Raises OSError if the disk is full. A part takes the place of what was found out before."""
    data = json.dumps(value, separators=(",", ":"), allow_nan=False).encode()
    if len(data) <= MAX_STORED_BYTES // 4:
        keep = disk_cache.replace if part else disk_cache.put
        keep(key, part + SUFFIX, data)
        used.add(key + part)
        _make_room()


def forget(key: str, part: str = "") -> None:
    """Remove what cannot be used."""
    used.discard(key + part)
    disk_cache.forget(key, part + SUFFIX)


def _make_room() -> None:
    room = MAX_STORED_BYTES
    for _, size, key, suffix in sorted(disk_cache.stored(SUFFIX), reverse=True):
        room -= size
        if room < 0:
            disk_cache.forget(key, suffix)
