"""Special methods that C code calls by itself (`==` of lists, `in`, `sum`, a dict's lookup): where
they are Python code of the user's, the call is unseen."""

import types
from collections.abc import Callable
from typing import Any

from .. import catalogue
from ..capture.guarded_kinds import is_constant
from ..capture.nested import concretize
from ..capture.numbers.scalars import TRACED, concretize_scalar
from ..capture.trace import Recorder
from .calls import field_methods
from .lookup import PLAIN_TYPES, SpecialMethod, is_stable, on_class, special_method

MAX_WALKED_OBJECTS = 20_000


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
    found = special_method(on_class(cls, name))
    if isinstance(found, SpecialMethod):
        return not is_stable(cls)
    return found is not None and not is_stable(found) and not is_generated(found)


def given(rec: Recorder, ask: Callable[[Any], Any], owner: Any, name: str, answer: Any) -> Any:
    """`ask(owner)`, whose special method `name` gave `answer`: Python's own check of that."""
    plain = concretize_scalar(answer) if type(answer) in TRACED else answer
    stand_in: Any = type(type(owner).__name__, (), {name: lambda self: plain})
    try:
        return ask(stand_in())
    except Exception as error:
        rec.of_user = error
        raise


# What the methods that C code calls may ask of the fields that they read.
_OF_FIELDS = ("__eq__", "__hash__", "__len__", "__bool__", *field_methods.TEXTS)
_READING = frozenset((*_OF_FIELDS, "__ne__", "__lt__", "__le__", "__gt__", "__ge__"))


def check(rec: Recorder, names: tuple[str, ...], *values: Any) -> None:
    """C code is about to call the special methods `names` of `values` and of what is in them: those
    that do more than read fields would do it unseen."""
    if not names:
        return
    rest, seen, asked, classes = list(values), set(), list[tuple[type, str]](), set[type]()
    texts = any(name in field_methods.TEXTS for name in names)
    while rest:
        obj = rest.pop()
        if is_constant(obj) or id(obj) in seen:
            continue
        seen.add(id(obj))
        cls = type(obj)
        classes.add(cls)
        found = [(cls, name) for name in names if runs_python(cls, name)]
        if found and len(seen) < MAX_WALKED_OBJECTS:
            names = tuple(dict.fromkeys((*names, *_OF_FIELDS)))
            asked += found
            fields = field_methods.fields_of(obj)
            rest.extend(concretize(fields) if texts else fields)  # C drops what is traced
        if isinstance(obj, list | tuple | set | frozenset) and len(seen) < MAX_WALKED_OBJECTS:
            rest.extend(obj)
        elif isinstance(obj, slice):
            rest.extend((obj.start, obj.stop, obj.step))
        elif isinstance(obj, dict) and len(seen) < MAX_WALKED_OBJECTS:
            rest.extend((*dict.keys(obj), *dict.values(obj)))
    for cls, name in dict.fromkeys(asked):
        if name not in _READING or not field_methods.reads_fields(
            rec, cls, name, frozenset(classes)
        ):
            rec.stop(catalogue.UNSUPPORTED, f"{cls.__name__}.{name} may be called by C code")
            return
