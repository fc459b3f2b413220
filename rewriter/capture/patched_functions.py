"""Functions of torch whose name the user has given to another function.

torch's own function passes itself on by its name (`handle_torch_function(relu, …)`), which then is
the user's; and that one calls torch's.
"""

import sys
import types
from typing import Any

from torch.overrides import handle_torch_function

_ASKS = handle_torch_function.__code__


def original(func: Any) -> Any:
    """The function of torch that stands behind what it passed on; `func` itself where that is
    torch's, or it cannot be told."""
    if not isinstance(func, types.FunctionType) or _is_torchs(func.__globals__):
        return func
    frame = sys._getframe(1)
    while frame is not None and frame.f_code is not _ASKS:
        frame = frame.f_back  # type: ignore[assignment]
    asking = frame.f_back if frame is not None else None
    if asking is None or asking.f_code.co_freevars or not _is_torchs(asking.f_globals):
        return func  # the user's own may be written to be overridden
    names = dict(asking.f_globals)  # in which it has its own name again
    made = types.FunctionType(asking.f_code, names, asking.f_code.co_name)
    names.update({key: made for key, value in asking.f_globals.items() if value is func})
    made.__module__ = __name__  # a graph has it by itself, not by the name that is the user's
    return made


def _is_torchs(names: dict[str, Any]) -> bool:
    return str(names.get("__name__", "")).partition(".")[0] == "torch"
