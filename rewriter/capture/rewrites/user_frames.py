"""Which function of the user's is at work."""

import types
from collections.abc import Callable

from .. import places


def function_frame(
    frame: types.FrameType | None, is_rewritten: Callable[[types.CodeType], bool]
) -> types.FrameType | None:
    """The innermost frame of a rewritten function, past the lambdas that its operands became: its
    operators stand in it as `__df`. None outside of one."""
    while frame is not None:
        operators = is_rewritten(frame.f_code) and places.locals_of(frame).get("__df")
        if operators:
            code = operators.fn.__code__
            same = frame.f_code.co_firstlineno == code.co_firstlineno
            if same and frame.f_code.co_name == code.co_name:
                return frame
        frame = frame.f_back
    return None
