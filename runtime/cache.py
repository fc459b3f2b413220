"""Files kept between processes: content-addressed, owner-only, written by atomic rename, checked by
hash when read. No pickle.

They lie under `$DYNFIX_CACHE_DIR`, else `$XDG_CACHE_HOME/dynfix`, else `~/.cache/dynfix`. A folder
that cannot be made, or that someone else could write to, is not used: the process then works in a
temporary folder of its own.
"""

import atexit
import contextlib
import hashlib
import os
import shutil
import stat
import tempfile
import threading
import time
from pathlib import Path

from .report import warn_once

_lock = threading.Lock()
_roots: dict[str, Path] = {}
used: dict[tuple[str, str], None] = {}  # (key, suffix) of what this process stored or found


def _wanted() -> str:
    chosen = os.environ.get("DYNFIX_CACHE_DIR")
    if chosen:
        return os.path.abspath(chosen)
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return os.path.abspath(os.path.join(base, "dynfix"))


def _unsafe(folder: str) -> str | None:
    """Why files in `folder` cannot be trusted, or None."""
    info = os.stat(folder)
    if info.st_uid != os.geteuid():
        return f"belongs to user {info.st_uid}"
    if stat.S_IMODE(info.st_mode) & 0o022:
        return "can be written by others (chmod 700 mends it)"
    return None


def _sweep(folder: Path, age: float = 86_400.0) -> None:
    """Remove the working folders that killed builds left more than `age` seconds ago."""
    for left in (*folder.glob("build-*"), *folder.glob("probe-*")):
        with contextlib.suppress(OSError):
            if time.time() - left.stat().st_mtime > age:
                shutil.rmtree(left, ignore_errors=True)


def _own_folder(wanted: str) -> Path:
    try:
        os.makedirs(wanted, mode=0o700, exist_ok=True)
        trouble = _unsafe(wanted) or (
            None if os.access(wanted, os.W_OK | os.X_OK) else "cannot be written"
        )
    except OSError as error:
        trouble = f"cannot be made ({error.strerror})"
    if trouble is None:
        _sweep(Path(wanted))
        return Path(wanted)
    warn_once(
        "cache",
        f"the cache folder {wanted} {trouble}: kernels are kept for this process only",
        wanted,
    )
    folder = tempfile.mkdtemp(prefix="dynfix-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)


def root() -> Path:
    """The cache folder, made if need be, with mode 0700."""
    wanted = _wanted()
    with _lock:
        found = _roots.get(wanted)
        if found is None or not found.is_dir():
            found = _roots[wanted] = _own_folder(wanted)
        return found


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


def _sidecar(path: Path) -> Path:
    return path.with_name(path.name + ".sha256")


def _replace(path: Path, data: bytes) -> None:
    """Write `path` so that a reader sees all of it or nothing."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".new-")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        os.chmod(temporary, 0o600)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


def put(key: str, suffix: str, data: bytes) -> Path:
    """Store `data` and return its path. What is stored already, undamaged, stays. Raises OSError if
    the disk is full."""
    found = get(key, suffix)
    if found is not None:
        return found
    path = path_for(key, suffix)
    path.parent.mkdir(mode=0o700, exist_ok=True)
    _replace(
        _sidecar(path), hashlib.sha256(data).hexdigest().encode()
    )  # first: a file without its hash is never believed
    _replace(path, data)
    used[key, suffix] = None
    return path


def get(key: str, suffix: str) -> Path | None:
    """The path of what was stored, or None. A damaged file is removed."""
    path = path_for(key, suffix)
    try:
        data = path.read_bytes()
        expected = _sidecar(path).read_bytes()
    except OSError:
        return None
    if hashlib.sha256(data).hexdigest().encode() == expected:
        used[key, suffix] = None
        return path
    for damaged in (path, _sidecar(path)):
        with contextlib.suppress(OSError):
            damaged.unlink()
    return None


def read(key: str, suffix: str) -> bytes | None:
    """The bytes that were stored, or None. What is checked is what is returned."""
    path = get(key, suffix)
    return None if path is None else path.read_bytes()
