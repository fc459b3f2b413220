"""Tracebacks as the user knows them: frames of this package are taken out."""

import os
import types
from pathlib import Path

_OWN = os.path.join(Path(__file__).absolute().parents[1], "")


def without_own_frames(error: BaseException) -> BaseException:
    """Take our frames out of the traceback of `error` and of every exception that it was raised
    from or during."""
    seen: set[int] = set()
    todo: list[BaseException | None] = [error]
    while todo:
        one = todo.pop()
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        one.__traceback__ = _kept(one.__traceback__)
        todo += [one.__cause__, one.__context__, *getattr(one, "exceptions", ())]
    return error


def _kept(tb: types.TracebackType | None) -> types.TracebackType | None:
    frames = []
    while tb is not None:
        frames.append(tb)
        tb = tb.tb_next
    kept: types.TracebackType | None = None
    for one in reversed(frames):
        if not one.tb_frame.f_code.co_filename.startswith(_OWN):
            kept = types.TracebackType(kept, one.tb_frame, one.tb_lasti, one.tb_lineno)
    return kept
