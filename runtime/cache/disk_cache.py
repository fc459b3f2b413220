"""Files kept between processes: content-addressed, owner-only, written by atomic rename, checked by
hash when read. No pickle.

They lie under `$DYNFIX_CACHE_DIR`, else `$XDG_CACHE_HOME/dynfix`, else `~/.cache/dynfix`: in that
folder itself if it was empty or is marked as made here, else in a folder of its own inside. Each
folder and file is checked when it is opened (`private_files`). Where one cannot be made, or
somebody else could have written it, it is left alone, and the process works in a temporary folder.
"""

import atexit
import contextlib
import hashlib
import itertools
import os
import re
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from ..diagnostics import log, warn_once
from .private_files import Folder, Unsafe, loader_path, refusal

_MARK = ".dynfix-cache"  # in a folder that this package made, or found empty
_OWN = "dynfix-1"  # in a folder with files of the user's
_WORK = "work"  # has a marked folder for each process that writes
_MADE = re.compile(r"\d+-(new|made|probe)[.\w-]*")  # what that holds
_STORED = re.compile(r"([0-9a-f]{64})(\.[\w.]+)")
_DAY = 86_400.0
# What means nothing on other machines: how long runs took, code and graphs for this interpreter.
RUNS, CODE, GRAPH = ".runs", ".code", ".graph.program"

_lock = threading.Lock()
_homes: dict[str, tuple[str, bool]] = {}  # by the folder that was asked for; whether it is `_OWN`
_works: dict[tuple[str, int], str] = {}  # names, by the home and the process
_numbers = itertools.count()
used: dict[tuple[str, str], None] = {}  # (key, suffix) of what this process stored or found


def _wanted() -> str:
    chosen = os.environ.get("DYNFIX_CACHE_DIR")
    if chosen:
        return os.path.abspath(chosen)
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return os.path.abspath(os.path.join(base, "dynfix"))


# ---- the folder


def _home() -> Folder:
    """The cache folder, made if need be. Raises OSError where there is not even a temporary one."""
    wanted = _wanted()
    found = _homes.get(wanted)
    try:
        if found is not None:
            return _opened(*found)
    except FileNotFoundError:  # it was deleted
        pass
    except Unsafe as error:
        _work_elsewhere(wanted, error)
    with _lock:
        if _homes.get(wanted) == found:
            _homes[wanted] = _chosen(wanted)
        return _opened(*_homes[wanted])


def _opened(path: str, inside: bool) -> Folder:
    if not inside:
        return Folder(path)
    with Folder(path) as outer:
        return outer.folder(_OWN)


def _chosen(wanted: str) -> tuple[str, bool]:
    try:
        path = _resolved(wanted)
        os.makedirs(path, mode=0o700, exist_ok=True)
        with Folder(path) as folder:
            if not os.access(path, os.W_OK | os.X_OK):
                raise Unsafe(f"{path} cannot be written")
            inside = not _marked(folder)
        if inside:
            with Folder(path) as folder, folder.folder(_OWN, make=True) as own:
                if not _marked(own):
                    raise Unsafe(f"{own.path} was not made by dynfix")
        with _opened(path, inside) as home:
            _sweep(home)
    except OSError as error:
        return _temporary(wanted, error)
    return path, inside


def _resolved(wanted: str) -> str:
    """Where it leads if it is a link of this user's, or of root's."""
    if not os.path.islink(wanted):
        return wanted
    info = os.lstat(wanted)
    if info.st_uid != 0 and (reason := refusal(info)) is not None:
        raise Unsafe(f"the link {wanted} {reason}")
    return os.path.realpath(wanted)


def _marked(folder: Folder) -> bool:
    """Whether the folder is marked; an empty one is marked now."""
    names = folder.names()
    if not names:
        with contextlib.suppress(FileExistsError):
            folder.create(_MARK)
    elif _MARK not in names:
        return False
    folder.read(_MARK)  # raises if it is another's
    return True


def _work_elsewhere(wanted: str, error: OSError) -> None:
    """From now on in a temporary folder, and say why."""
    with _lock:
        _homes[wanted] = _temporary(wanted, error)


def _temporary(wanted: str, error: OSError) -> tuple[str, bool]:
    reason = str(error) if isinstance(error, Unsafe) else f"it cannot be made ({error.strerror})"
    warn_once(
        "cache",
        f"the cache folder {wanted} is not used: {reason}; kernels are kept for this process only",
        wanted,
    )
    path = tempfile.mkdtemp(prefix="dynfix-")
    atexit.register(_remove_temporary, path, os.getpid())
    return path, False


def _remove_temporary(path: str, process: int) -> None:
    if os.getpid() == process:  # no child that was forked
        shutil.rmtree(path, ignore_errors=True)


def root() -> Path:
    """The cache folder, made if need be, with mode 0700."""
    with contextlib.suppress(Unsafe):
        _home().close()
    path, inside = _homes[_wanted()]
    return Path(path, _OWN) if inside else Path(path)


# ---- a folder of each process, for what is being made


@contextlib.contextmanager
def workspace() -> Iterator[Folder]:
    """A folder of this process alone, on the disk of the cache. Raises OSError."""
    try:
        work = _work()
    except Unsafe as error:
        _work_elsewhere(_wanted(), error)
        work = _work()
    with work:
        yield work


def _work() -> Folder:
    with _home() as home, home.folder(_WORK, make=True) as works:
        with _lock:
            name = _works.get((home.path, os.getpid()))
            if name is None:
                name = _works[home.path, os.getpid()] = f"{os.getpid()}-{os.urandom(6).hex()}"
                atexit.register(_end_work, home.path, name, os.getpid())
        work = works.folder(name, make=True)
    with contextlib.suppress(FileExistsError):
        work.create(_MARK)
    return work


@contextlib.contextmanager
def made_in(work: Folder, kind: str) -> Iterator[str]:
    """A new name in the `workspace`, "made.so" for instance; its file is removed after."""
    name = f"{next(_numbers)}-{kind}"
    try:
        yield name
    finally:
        with contextlib.suppress(OSError):
            work.remove(name)


def _end_work(home: str, name: str, process: int) -> None:
    if os.getpid() == process:
        with contextlib.suppress(OSError), Folder(home) as folder, folder.folder(_WORK) as works:
            _remove_work(works, name)


def _remove_work(works: Folder, name: str) -> None:
    """Remove a marked folder with what is made there; whatever else is in it stays."""
    with works.folder(name) as folder:
        folder.read(_MARK)
        for each in folder.names():
            if _MADE.fullmatch(each):
                folder.remove(each)
        if folder.names() == [_MARK]:
            folder.remove(_MARK)
            works.remove_folder(name)


def _sweep(home: Folder) -> None:
    """Remove the marked folders that killed processes left more than a day ago."""
    with contextlib.suppress(OSError), home.folder(_WORK) as works:
        for name in works.names():
            with contextlib.suppress(OSError):
                if time.time() - works.status(name).st_mtime > _DAY:
                    _remove_work(works, name)


# ---- files


def key(*parts: str | bytes) -> str:
    """A name for the content made from `parts`: 64 hexadecimal digits; parts are told apart by
    position and length."""
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        digest.update(f"{type(part).__name__}:{len(data)}:".encode())
        digest.update(data)
    return digest.hexdigest()


def path_for(key: str, suffix: str) -> Path:
    """Where the file of `key` lies, whether or not it is there."""
    return root() / key[:2] / f"{key}{suffix}"


def _hash_of(name: str) -> str:
    """The name of the file with its hash."""
    return f"{name}.sha256"


@contextlib.contextmanager
def _folder_of(key: str, make: bool = False) -> Iterator[Folder]:
    """The folder with the files of `key`. Raises OSError."""
    with _home() as home, home.folder(key[:2], make) as folder:
        yield folder


def put(key: str, suffix: str, data: bytes) -> Path:
    """Store `data` and return its path. What is stored already, undamaged, stays. Raises OSError if
    the disk is full."""
    return get(key, suffix) or replace(key, suffix, data)


def replace(key: str, suffix: str, data: bytes) -> Path:
    """Store `data` in place of what was stored before. Raises OSError."""
    try:
        return _stored(key, suffix, data)
    except Unsafe as error:
        _work_elsewhere(_wanted(), error)
        return _stored(key, suffix, data)


def _stored(key: str, suffix: str, data: bytes) -> Path:
    name = key + suffix
    parts = (
        (_hash_of(name), hashlib.sha256(data).hexdigest().encode()),
        (name, data),  # last: a file without its hash is never believed
    )
    with workspace() as work, _folder_of(key, make=True) as folder:
        for target, part in parts:
            with made_in(work, "new") as made:
                work.create(made, part)
                folder.replace(target, work, made)
        used[key, suffix] = None
        return Path(folder.path, name)


def _checked(folder: Folder, name: str, data: bytes) -> bool:
    """Whether the file is what was stored; a damaged one is removed."""
    if hashlib.sha256(data).hexdigest().encode() == folder.read(_hash_of(name)):
        return True
    for damaged in (name, _hash_of(name)):
        folder.remove(damaged)
    return False


def _found(key: str, suffix: str, touched: bool = False) -> tuple[Path, bytes] | None:
    name = key + suffix
    try:
        with _folder_of(key) as folder:
            data = folder.read(name)
            if not _checked(folder, name, data):
                return None
            if touched:
                folder.touch(name)
            used[key, suffix] = None
            return Path(folder.path, name), data
    except FileNotFoundError:
        return None
    except OSError as error:
        log.info("a stored file is not used: %s", error)
        return None


def get(key: str, suffix: str) -> Path | None:
    """The path of what was stored, or None. A damaged file is removed."""
    found = _found(key, suffix)
    return None if found is None else found[0]


def read(key: str, suffix: str, touched: bool = False) -> bytes | None:
    """The bytes that were stored, or None. What is checked is what is returned. `touched`: note the
    time for `stored`."""
    found = _found(key, suffix, touched)
    return None if found is None else found[1]


def forget(key: str, suffix: str) -> None:
    """Remove what was stored."""
    name = key + suffix
    with contextlib.suppress(OSError), _folder_of(key) as folder:
        for each in (name, _hash_of(name)):
            folder.remove(each)


def stored(ending: str) -> list[tuple[float, int, str, str]]:
    """(time, bytes, key, suffix) of each file that was stored with such a suffix."""
    found = []
    with contextlib.suppress(OSError), _home() as home:
        for prefix in home.names():
            if len(prefix) == 2:
                with contextlib.suppress(OSError), home.folder(prefix) as folder:
                    for match in filter(None, map(_STORED.fullmatch, folder.names())):
                        if match[2].endswith(ending):
                            info = folder.status(match[0])
                            found.append((info.st_mtime, info.st_size, match[1], match[2]))
    return found


@contextlib.contextmanager
def loading(path: Path) -> Iterator[str]:
    """What the dynamic loader has to be given to load what was stored at `path`, as it is checked
    here. Raises OSError."""
    with Folder(str(path.parent)) as folder:
        handle = folder.open(path.name)
        try:
            with open(handle, "rb", buffering=0, closefd=False) as file:
                if not _checked(folder, path.name, file.readall()):
                    raise Unsafe(f"{path} is damaged")
            yield loader_path(handle, str(path))
        finally:
            os.close(handle)
