"""Putting a file back: by atomic rename, and only where it still is what was read."""

from __future__ import annotations

import contextlib
import errno
import os
import tempfile
import time
from pathlib import Path

_MARK = ".dynfix-"
_STALE = 60.0  # seconds after which a temporary file is nobody's


def write(path: str, raw: bytes, before: bytes) -> None:
    """Put `raw` into the file, its mode kept; a link keeps pointing where it pointed. OSError where
    it is read-only, or is not `before` any more."""
    target = Path(os.path.realpath(path))
    mode = target.stat().st_mode
    if not mode & 0o222 or not os.access(target, os.W_OK):
        raise PermissionError(errno.EACCES, "the file is read-only", path)
    _sweep(target.parent)
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}{_MARK}")
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(raw)
        os.chmod(name, mode & 0o7777)
        if target.read_bytes() not in (before, raw):  # another run may have written the same
            raise OSError(errno.EBUSY, "the file was changed meanwhile, and is left as it is", path)
        os.replace(name, target)
    except BaseException:
        os.unlink(name)
        raise


def _sweep(folder: Path) -> None:
    """Removes what a run that was killed has left behind."""
    for left in folder.glob(f".*{_MARK}*"):
        with contextlib.suppress(OSError):  # another run may sweep as well
            if time.time() - left.stat().st_mtime > _STALE:
                left.unlink()
