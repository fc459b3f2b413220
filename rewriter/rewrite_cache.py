"""Rewritten code objects on disk, so that a second process needs neither the source nor LibCST.

An entry is named by everything that it follows from: the live code object (bytecode, constants,
names, file, lines), this package's version and the text of its rewriter, and the interpreter. It is
marshalled *code*: nothing is loaded from a folder or file that somebody else could have written.
"""

import functools
import hashlib
import importlib.util
import marshal
import os
import stat
import sys
import tempfile
from pathlib import Path
from types import CodeType

from .. import __version__
from ..runtime import cache

_DIGEST = 32


@functools.cache
def _tool() -> bytes:
    """Version of the tool: number, text of the rewriter, interpreter."""
    here = Path(__file__).parent
    digest = hashlib.sha256(
        f"{__version__} {sys.version} {sys.flags.optimize}".encode() + importlib.util.MAGIC_NUMBER
    )
    parts = [here / f"{name}.py" for name in ("live_source", "scope", "emit", "linetable")]
    for path in sorted([*parts, *here.glob("constructs/*.py")]):
        digest.update(path.read_bytes())
    return digest.digest()


def key(code: CodeType) -> str:
    # Format 2 has no back references, which depend on reference counts.
    return hashlib.sha256(_tool() + marshal.dumps(code, 2)).hexdigest()


def folder() -> str:
    """In the cache folder of the kernels, whose owner and mode have been checked."""
    return os.path.join(cache.root(), "rewrite")


def load(name: str) -> CodeType | None:
    """The code object, or None when there is none, it is damaged, or it is not safely ours."""
    if not _is_ours(place := folder()):
        return None
    try:
        handle = os.open(os.path.join(place, name), os.O_RDONLY | getattr(os, "O_BINARY", 0))
    except OSError:
        return None
    try:
        facts = os.fstat(handle)
        data = os.read(handle, facts.st_size) if _private(facts) else b""
    finally:
        os.close(handle)
    if hashlib.sha256(data[_DIGEST:]).digest() != data[:_DIGEST]:
        return None
    try:
        code = marshal.loads(data[_DIGEST:])
    except (EOFError, ValueError, TypeError):
        return None
    return code if isinstance(code, CodeType) else None


def store(name: str, code: CodeType) -> None:
    """Best effort: without a folder of our own, nothing is kept."""
    data = marshal.dumps(code)
    try:
        os.makedirs(place := folder(), mode=0o700, exist_ok=True)
        if not _is_ours(place):
            return
        handle, temporary = tempfile.mkstemp(dir=place)
        with os.fdopen(handle, "wb") as file:
            file.write(hashlib.sha256(data).digest() + data)
        os.replace(temporary, os.path.join(place, name))
    except OSError:
        return


def _is_ours(path: str) -> bool:
    try:
        facts = os.lstat(path)
    except OSError:
        return False
    return stat.S_ISDIR(facts.st_mode) and _private(facts)


def _private(facts: os.stat_result) -> bool:
    """Owned by this user, and writable by nobody else. (Windows has no such modes; its profile
    folders are private.)"""
    if not hasattr(os, "getuid"):
        return True
    return facts.st_uid == os.getuid() and not facts.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
