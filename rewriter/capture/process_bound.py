"""What a call did that another process would see otherwise, though nothing is guarded: addresses,
hashes, and the order of a set. Such a recording is not stored."""

import types
from typing import Any

_BY_ADDRESS = (id, hash)
# What does not look at the order of a set.
_ORDERLESS = (len, isinstance, type, bool, set, frozenset, any, all, max, min, sorted, id, hash)
_ADDRESS = " at 0x"


def note_call(rec: Any, function: Any, args: tuple[Any, ...], result: Any) -> None:
    """The call gave `result`."""
    if rec.only_here:
        return
    owner = function.__self__ if isinstance(function, types.BuiltinMethodType) else None
    if _is_one_of(function, _BY_ADDRESS) and not (args and type(args[0]) is int):
        rec.only_here = f"what {function.__name__}() gives"
    elif type(owner) is set:
        if function.__name__ == "pop":
            note_order(rec, {*owner, result})
    elif not _is_one_of(function, _ORDERLESS):
        for each in args:
            note_order(rec, each)
    note_text(rec, result)


def note_order(rec: Any, values: Any) -> None:
    """The values are gone through, in the order of a set that is no input: those are guarded."""
    if type(values) not in (set, frozenset) or rec.known.path_of(values) is not None:
        return
    if len(values) > 1 and any(type(each) is not int for each in values):
        rec.only_here = "the order of a set"


def note_text(rec: Any, text: Any) -> None:
    """Text of objects may say where they lie."""
    if isinstance(text, str) and str.__contains__(text, _ADDRESS):
        rec.only_here = "the address of an object"


def _is_one_of(function: Any, functions: tuple[Any, ...]) -> bool:
    return any(function is each for each in functions)
