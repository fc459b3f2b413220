"""Tracebacks as the user knows them: frames of this package are taken out, and a module that was
called by a compiled form was called as in eager."""

import dis
import os
import sys
import types
from pathlib import Path

_OWN = os.path.join(Path(__file__).absolute().parents[2], "")


def is_own(file: str) -> bool:
    """Whether the file is one of this package."""
    return file.startswith(_OWN)


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
    frames: list[types.TracebackType] = []
    while tb is not None:
        if is_own(tb.tb_frame.f_code.co_filename) and _asks_a_mode(frames):
            del frames[-2:]  # the public function, which is called once more below
        frames.append(tb)
        tb = tb.tb_next
    kept: types.TracebackType | None = None
    for one in reversed(frames):
        if not is_own(one.tb_frame.f_code.co_filename):
            place = _eager_call(one.tb_frame.f_code) or (one.tb_lasti, one.tb_lineno)
            kept = types.TracebackType(kept, one.tb_frame, *place)
    return kept


def _asks_a_mode(frames: list[types.TracebackType]) -> bool:
    return bool(frames) and frames[-1].tb_frame.f_code.co_name == "handle_torch_function"


def _eager_call(code: types.CodeType) -> tuple[int, int] | None:
    """Where `nn.Module.__call__` calls a module as it is, if this is its code: the instruction and
    the line."""
    torch = sys.modules.get("torch")
    if torch is None or code is not torch.nn.Module.__call__.__code__:
        return None
    lines = {offset: line for offset, line in dis.findlinestarts(code) if line}
    line, asked = code.co_firstlineno, False
    for step in dis.get_instructions(code):
        line = lines.get(step.offset, line)
        asked = asked or step.argval == "_call_impl"
        if asked and step.opname.startswith("CALL"):
            return step.offset, line
    return None
