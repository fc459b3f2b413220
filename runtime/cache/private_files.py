"""Folders and files that nobody but this user can have written.

What is loaded as code is checked when it is opened, at the open descriptor: it belongs to this
user, nobody else may write it, it has no second name, and no link was followed to it. An open
folder stays what it is, whatever is put into its place, and what is in it is opened by it. Without
such descriptors (Windows) paths are used; profile folders are private there. Loads no torch.
"""

import contextlib
import errno
import itertools
import os
import stat
from types import TracebackType

_BY_DESCRIPTOR = os.open in os.supports_dir_fd
_NO_LINK = getattr(os, "O_NOFOLLOW", 0)
_FOLDER = getattr(os, "O_DIRECTORY", 0) | _NO_LINK
# a pipe without a writer would be waited for
_FILE = os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_NONBLOCK", 0) | _NO_LINK
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0) | _NO_LINK
DESCRIPTORS = "/proc/self/fd"
_SHOWN = _BY_DESCRIPTOR and os.path.isdir(DESCRIPTORS)
# of a link, a socket, a file where a folder should be, and what another user keeps closed
_FOREIGN = {errno.ELOOP, errno.ENXIO, errno.ENOTDIR, errno.EACCES, errno.EPERM}


class Unsafe(OSError):
    """Somebody else can have written it, or it is not what it should be."""


def refusal(info: os.stat_result) -> str | None:
    """Why what `info` describes cannot be trusted, or None."""
    if not hasattr(os, "geteuid"):
        return None
    if info.st_uid != os.geteuid():
        return f"belongs to user {info.st_uid}"
    if info.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        mode = 700 if stat.S_ISDIR(info.st_mode) else 600
        return f"can be written by others (chmod {mode} mends it)"
    return None


def file_refusal(info: os.stat_result) -> str | None:
    """The same of a file that is to be read or replaced."""
    if stat.S_ISLNK(info.st_mode):
        return "is a link"
    if not stat.S_ISREG(info.st_mode):
        return "is no file"
    return refusal(info) or ("has another name elsewhere" if info.st_nlink > 1 else None)


def _opened(place: str, flags: int, above: int | None, path: str) -> int:
    try:
        return os.open(place, flags, dir_fd=above)
    except OSError as error:
        if error.errno not in _FOREIGN:
            raise
        kind = "a link, or no folder" if error.errno == errno.ENOTDIR else error.strerror
        raise Unsafe(f"{path} cannot be opened: {kind}") from error


class Folder(contextlib.AbstractContextManager["Folder"]):
    """A folder that is open, and was checked: by its path, or by its name `within` another.

    `make`: it is made, if need be, with mode 0700. Raises Unsafe, or the OSError of the system.
    """

    def __init__(self, name: str, within: "Folder | None" = None, make: bool = False) -> None:
        self.path: str = name if within is None else os.path.join(within.path, name)
        self.descriptor = -1
        place = self.path if within is None else within._place(name)
        above = None if within is None else within._above
        try:
            info = self._opened(place, above)
        except FileNotFoundError:
            if not make:
                raise
            with contextlib.suppress(FileExistsError):
                os.mkdir(place, 0o700, dir_fd=above)
            info = self._opened(place, above)
        reason = "is no folder" if not stat.S_ISDIR(info.st_mode) else refusal(info)
        if reason is not None:
            self.close()
            raise Unsafe(f"{self.path} {reason}")

    def _opened(self, place: str, above: int | None) -> os.stat_result:
        if not _BY_DESCRIPTOR:
            return os.lstat(place)
        self.descriptor = _opened(place, _FOLDER, above, self.path)
        return os.fstat(self.descriptor)

    def folder(self, name: str, make: bool = False) -> "Folder":
        """One inside."""
        return Folder(name, self, make)

    @property
    def _above(self) -> int | None:
        return self.descriptor if _BY_DESCRIPTOR else None

    def _place(self, name: str) -> str:
        """The name for calls that are given `_above`."""
        return name if _BY_DESCRIPTOR else os.path.join(self.path, name)

    def __exit__(
        self,
        kind: type[BaseException] | None = None,
        error: BaseException | None = None,
        trace: TracebackType | None = None,
    ) -> None:
        self.close()

    def close(self) -> None:
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1

    def reach(self, name: str) -> str:
        """A path to the file for other programs, which have to be given the descriptor, too."""
        if _SHOWN:
            return f"{DESCRIPTORS}/{self.descriptor}/{name}"
        return os.path.join(self.path, name)

    def open(self, name: str) -> int:
        """A descriptor of the file, to be read and closed. Raises FileNotFoundError, Unsafe."""
        handle = _opened(self._place(name), _FILE, self._above, os.path.join(self.path, name))
        reason = file_refusal(os.fstat(handle))
        if reason is None:
            return handle
        os.close(handle)
        raise Unsafe(f"{self.path}/{name} {reason}")

    def read(self, name: str) -> bytes:
        """What is in the file. Raises as `open`."""
        with open(self.open(name), "rb", buffering=0) as file:
            return file.readall()

    def status(self, name: str) -> os.stat_result:
        """Of what has the name; of a link itself. Raises FileNotFoundError."""
        return os.stat(self._place(name), dir_fd=self._above, follow_symlinks=False)

    def create(self, name: str, data: bytes = b"") -> None:
        """A new file of mode 0600. Raises FileExistsError, and OSError if the disk is full."""
        handle = os.open(self._place(name), _NEW, 0o600, dir_fd=self._above)
        with open(handle, "wb", buffering=0) as file:
            while data:
                data = data[file.write(data) :]

    def replace(self, name: str, source: "Folder", made: str) -> None:
        """Give the file `made` of `source` this name: a reader sees the old one or the new one.
        Raises Unsafe where something else than a file of this user's has the name."""
        with contextlib.suppress(FileNotFoundError):
            reason = file_refusal(self.status(name))
            if reason is not None:
                raise Unsafe(f"{self.path}/{name} {reason}")
        os.replace(source.reach(made), self.reach(name))

    def remove(self, name: str) -> None:
        """Remove a file of this user's alone, if it is there: what else has the name stays."""
        with contextlib.suppress(FileNotFoundError):
            if file_refusal(self.status(name)) is None:
                os.unlink(self._place(name), dir_fd=self._above)

    def remove_folder(self, name: str) -> None:
        """Raises OSError where anything is in it."""
        os.rmdir(self._place(name), dir_fd=self._above)

    def touch(self, name: str) -> None:
        """Give a file the time of now."""
        links = os.utime not in os.supports_follow_symlinks
        os.utime(self._place(name), dir_fd=self._above, follow_symlinks=links)

    def names(self) -> list[str]:
        return os.listdir(self.descriptor if _BY_DESCRIPTOR else self.path)


_loads = itertools.count(1)


def loader_path(handle: int, path: str) -> str:
    """A path by which the dynamic loader finds just the open file, whatever has its path now.

    The loader takes a library that it has loaded by the same text for the same one, so that each
    text is another: its slashes count. Debuggers find the library in the memory map by its own
    path. Where descriptors have no paths, it is `path`.
    """
    if not _SHOWN:
        return path
    slashes = "".join("/./" if digit == "1" else "//" for digit in f"{next(_loads):b}")
    return f"{DESCRIPTORS}{slashes}{handle}"
