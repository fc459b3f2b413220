"""Reading and writing files whose names others chose: nothing but regular files is read, and no
link is followed where one is written."""

from __future__ import annotations

import errno
import os
import stat
import tempfile

_NO_LINK = getattr(os, "O_NOFOLLOW", 0)
# a pipe that nobody writes to would hold up the call that opens it
_READ = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)


LARGEST = 64 << 20  # bytes; of source, more is none that a person wrote


def read(path: str, limit: int = LARGEST, *, links: bool = True) -> bytes:
    """The bytes of a regular file; OSError where it is none, has more than `limit` bytes, or, with
    `links=False`, is a link."""
    handle = os.open(path, _READ | (0 if links else _NO_LINK))
    with os.fdopen(handle, "rb") as stream:
        about = os.fstat(handle)
        if not stat.S_ISREG(about.st_mode):
            raise OSError(errno.EINVAL, f"not a regular file, but {kind(about.st_mode)}", path)
        raw = b"" if about.st_size > limit else stream.read(limit + 1)
        if about.st_size > limit or len(raw) > limit:  # what says 0 may hold more, in /proc
            raise OSError(errno.EFBIG, f"the file is larger than {limit >> 20} MB", path)
    return raw


def kind(mode: int) -> str:
    """What the mode of a file says it is, in words."""
    kinds = {
        stat.S_IFDIR: "a folder",
        stat.S_IFIFO: "a named pipe",
        stat.S_IFSOCK: "a socket",
        stat.S_IFCHR: "a device",
        stat.S_IFBLK: "a device",
        stat.S_IFLNK: "a link",
    }
    return kinds.get(stat.S_IFMT(mode), "something else")


def is_folder(path: str) -> bool:
    """Whether a folder itself stands there, and no link to one."""
    try:
        return stat.S_ISDIR(os.lstat(path).st_mode)
    except OSError:
        return False


def replace(path: str, raw: bytes) -> None:
    """Put `raw` at `path` by atomic rename: a link there is replaced, what it points to is left
    alone."""
    folder, name = os.path.split(path)
    handle, temporary = tempfile.mkstemp(dir=folder, prefix=f".{name}."[:64], suffix=".tmp")
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(raw)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def create(path: str, raw: bytes) -> None:
    """Put `raw` into a file that is not there yet; FileExistsError where anything is, a link
    too."""
    with open(path, "xb") as stream:
        stream.write(raw)
