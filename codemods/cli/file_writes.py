"""Putting a file back: by atomic rename, and only where it still is what was read."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import stat
import tempfile
import time
from pathlib import Path

from ...rewriter.source.regular_files import kind, read

_LEFT = re.compile(r"\.[^/]+\.dynfix-[a-z0-9_]{8}\.tmp", re.DOTALL)
_STALE = 60.0  # seconds after which a temporary file is nobody's
_NAME = 200  # bytes of a file's name that its temporary file shows; a name has room for 255
_ELSEWHERE = "a link leads from here out of this checkout: left as it is; name the file itself"


def write(path: str, raw: bytes, before: bytes, within: str = "") -> None:
    """Put `raw` into the file, with its mode, owner and attributes; a link keeps pointing where it
    pointed. OSError where it is read-only, is not `before` any more, has other names (hard links),
    or is reached by a link, one of a folder maybe, that leads out of the folder `within`."""
    target = Path(os.path.realpath(path))
    linked = os.path.abspath(path) != str(target)
    if within and linked and not target.is_relative_to(within):
        raise OSError(errno.EPERM, _ELSEWHERE, path)
    about = os.lstat(target)
    _refuse(about, target)
    _sweep(target.parent)
    shown = os.fsdecode(os.fsencode(target.name)[:_NAME])
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{shown}.dynfix-", suffix=".tmp")
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(raw)
            stream.flush()
            os.fsync(handle)  # or a crash may leave the new name with nothing in it
        _keep(name, target, about)
        if read(str(target)) not in (before, raw):  # another run may have written the same
            raise OSError(
                errno.EBUSY, "the file changed while dynfix ran, and is left as it is", path
            )
        os.replace(name, target)
    except BaseException:
        os.unlink(name)
        raise


def checkout(path: str, root: str) -> str:
    """The repository around a path that was named, where it has none the folder of the settings;
    what a link leads to does not count as around."""
    is_folder = os.path.isdir(path) and not os.path.islink(path.rstrip(os.sep))
    start = Path(os.path.realpath(path if is_folder else os.path.dirname(path)))
    above = Path(root) if start.is_relative_to(root) else start
    return str(next((f for f in (above, *above.parents) if (f / ".git").exists()), above))


def _refuse(about: os.stat_result, target: Path) -> None:
    """OSError where the file cannot be replaced without a loss."""
    if not stat.S_ISREG(about.st_mode):
        raise OSError(errno.EINVAL, f"not a regular file, but {kind(about.st_mode)}")
    if not about.st_mode & 0o222 or not os.access(target, os.W_OK):
        raise PermissionError(errno.EACCES, "the file is read-only")
    if about.st_nlink > 1:
        what = f"the file has {about.st_nlink} names (hard links), which a fix would part"
        raise OSError(errno.EMLINK, f"{what}: left as it is")


def _keep(name: str, target: Path, about: os.stat_result) -> None:
    """Give the temporary file the owner, the attributes (access lists are some) and the mode of the
    one that it will replace; the owner as far as this user may."""
    mode = about.st_mode & 0o7777
    if hasattr(os, "chown"):
        for owner in ((about.st_uid, -1), (-1, about.st_gid)):
            try:
                os.chown(name, *owner)
            except OSError:
                mode &= 0o1777  # nobody may run it as another than its owner
    for attribute in os.listxattr(target) if hasattr(os, "listxattr") else ():
        _copy_attribute(attribute, str(target), name)
    os.chmod(name, mode)


def _copy_attribute(attribute: str, source: str, target: str) -> None:
    """OSError where a user's attribute, or an access list, would be lost."""
    try:
        os.setxattr(target, attribute, os.getxattr(source, attribute))
    except OSError:
        if attribute.startswith(("user.", "system.posix_acl")):
            raise
        # the others belong to the system, which gives the new file its own


def _sweep(folder: Path) -> None:
    """Removes what a run that was killed has left behind."""
    with contextlib.suppress(OSError):
        for left in filter(lambda f: _LEFT.fullmatch(f.name), os.scandir(folder)):
            with contextlib.suppress(OSError):  # another run may sweep as well
                about = left.stat(follow_symlinks=False)
                if stat.S_ISREG(about.st_mode) and time.time() - about.st_mtime > _STALE:
                    os.unlink(left)
