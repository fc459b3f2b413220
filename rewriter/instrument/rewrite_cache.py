"""Rewritten code objects on disk, so that a second process needs neither the source nor LibCST.

An entry is named by everything that it follows from: the live code object (bytecode, constants,
names, file, lines), this package's version and the text of its rewriter, and the interpreter. It is
marshalled *code*: the cache reads nothing that somebody else could have written.
"""

import contextlib
import functools
import hashlib
import importlib.util
import marshal
import sys
from pathlib import Path
from types import CodeType

from ... import __version__
from ...runtime.cache import disk_cache


@functools.cache
def _tool() -> bytes:
    """Version of the tool: number, text of the rewriter, interpreter."""
    here = Path(__file__).parents[1]
    digest = hashlib.sha256(
        f"{__version__} {sys.version} {sys.flags.optimize}".encode() + importlib.util.MAGIC_NUMBER
    )
    parts = [here / "source" / f"{name}.py" for name in ("live_source", "scope", "line_table")]
    for path in sorted([*parts, *here.glob("instrument/*.py")]):
        digest.update(path.read_bytes())
    return digest.digest()


def key(code: CodeType) -> str:
    # Format 2 has no back references, which depend on reference counts.
    return hashlib.sha256(_tool() + marshal.dumps(code, 2)).hexdigest()


def load(name: str) -> CodeType | None:
    """The code object, or None when there is none, it is damaged, or it is not safely ours."""
    data = disk_cache.read(name, disk_cache.CODE)
    try:
        code = None if data is None else marshal.loads(data)
    except (EOFError, ValueError, TypeError):
        return None
    return code if isinstance(code, CodeType) else None


def store(name: str, code: CodeType) -> None:
    """Best effort: without a folder of our own, nothing is kept."""
    with contextlib.suppress(OSError):
        disk_cache.replace(name, disk_cache.CODE, marshal.dumps(code))
