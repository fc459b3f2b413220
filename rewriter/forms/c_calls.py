"""Special methods that C code calls by itself (`==` of lists, `in`, `sum`, a dict's lookup): where
they are Python code of the user's, the call is unseen."""

import types
from typing import Any

from .. import catalogue
from ..capture.guarded_kinds import is_constant
from ..capture.numbers.scalars import TRACED
from ..capture.trace import Recorder
from .lookup import PLAIN_TYPES, is_stable, on_class

MOST = 20_000


def is_generated(function: Any) -> bool:
    """A method that dataclass or namedtuple wrote from the fields alone."""
    return isinstance(function, types.FunctionType) and function.__code__.co_filename.startswith(
        "<"
    )


def runs_python(cls: type, name: str) -> bool:
    """Whether `name` of instances of `cls` is Python code, other than a library's or one that only
    reads fields."""
    if cls in PLAIN_TYPES or cls in TRACED:
        return False
    found = on_class(cls, name)
    return (
        isinstance(found, types.FunctionType) and not is_stable(found) and not is_generated(found)
    )


def check(rec: Recorder, names: tuple[str, ...], *values: Any) -> None:
    """C code is about to call the special methods `names` of `values` and of what is in them."""
    rest, seen = list(values), set()
    while rest:
        obj = rest.pop()
        if is_constant(obj) or id(obj) in seen:
            continue
        seen.add(id(obj))
        cls = type(obj)
        for name in names:
            if runs_python(cls, name):
                rec.stop(catalogue.UNSUPPORTED, f"{cls.__name__}.{name} is called by C code")
                return
        if isinstance(obj, list | tuple | set | frozenset) and len(seen) < MOST:
            rest.extend(obj)
        elif isinstance(obj, dict) and len(seen) < MOST:
            rest.extend((*dict.keys(obj), *dict.values(obj)))
