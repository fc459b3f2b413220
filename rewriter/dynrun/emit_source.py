"""`dynrun --emit-source DIR`: the rewritten text of every function that is reached, one readable
file each; where patterns changed it first, what they made stands beside it."""

import os
import re
from types import FunctionType

from ..instrument import emit
from ..source import live_source


def emit_source(folder: str) -> None:
    """From now on write what the rewriter makes to `folder`, which is made if it is not there."""
    os.makedirs(folder, exist_ok=True)
    written: set[tuple[int, str]] = set()

    def watch(fn: FunctionType, source: live_source.Source | None) -> None:
        key = id(fn.__code__), source.text if source is not None else ""
        if key not in written:
            written.add(key)
            write(fn, folder, source)

    emit.watchers.append(watch)


def write(fn: FunctionType, folder: str, source: live_source.Source | None = None) -> str:
    """Write the rewritten text of `fn`; the path, which holds its module, name and line. `source`:
    what patterns made of it, written beside as `…changed.py`, and rewritten as `…recorded.py`."""
    if source is not None:
        _write(fn, folder, "changed", "as patterns changed it", source.text)
    kind, text = ("", "") if source is None else ("recorded", " after patterns changed it")
    return _write(
        fn,
        folder,
        kind,
        f"as it runs while it is recorded{text}",
        emit.rewritten_source(fn, source),
    )


def _write(fn: FunctionType, folder: str, kind: str, what: str, text: str) -> str:
    code = fn.__code__
    parts = (fn.__module__, fn.__qualname__, str(code.co_firstlineno), kind, "py")
    path = os.path.join(folder, re.sub(r"[^\w.-]", "_", ".".join(filter(None, parts))))
    with open(path, "w", encoding="utf-8") as file:
        file.write(f"# {code.co_filename}:{code.co_firstlineno}, {what}\n")
        file.write(text.rstrip("\n") + "\n")
    return path
