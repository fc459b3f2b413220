"""Containers and objects made in the call, taken apart and put together below their classes.

No code of the user's runs: what a subclass does in `__new__`, `__init__` or `append` is not done
twice.
"""

import collections
import copyreg
import dataclasses
import functools
from collections.abc import Callable, Iterable
from typing import Any


@dataclasses.dataclass(frozen=True)
class Fields:
    """The attributes and the slots of an object."""

    attributes: dict[str, Any]
    slots: dict[str, Any]

    def put(self, obj: Any) -> None:
        if self.attributes:
            obj.__dict__.update(self.attributes)
        for name, value in self.slots.items():
            object.__setattr__(obj, name, value)


def c_base(cls: type) -> type:
    """The class written in C that keeps what is not in attributes or slots."""
    return next(base for base in cls.__mro__ if not base.__flags__ & _HEAP_TYPE or _is_of_c(base))


# Py_TPFLAGS_HEAPTYPE: made by a class statement, or by C code that keeps nothing a subclass could
# not; but Python 3.12 and later make so some classes that do keep something, as
# Py_TPFLAGS_IMMUTABLETYPE.
_HEAP_TYPE, _IMMUTABLE = 1 << 9, 1 << 8
_CONVERTED = frozenset(("collections", "decimal", "itertools", "_io"))


def _is_of_c(cls: type) -> bool:
    return bool(cls.__flags__ & _IMMUTABLE) and cls.__module__ in _CONVERTED


def slots_of(obj: Any) -> dict[str, Any]:
    names = [name for name in copyreg._slotnames(type(obj)) if isinstance(name, str)]  # type: ignore[attr-defined]
    return {name: getattr(obj, name) for name in names if hasattr(obj, name)}


EXACT = (
    object,
    list,
    dict,
    set,
    collections.OrderedDict,
    collections.defaultdict,
    collections.deque,
    int,
    float,
    str,
)
HOLDING = (list, set, collections.deque)


def made_by(obj: Any, base: type) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """What makes an empty object like `obj`, or one with its value, and from what."""
    cls = type(obj)
    if base in (int, float, str):
        return functools.partial(_of_value, cls, base), (base(obj),)
    if base is collections.defaultdict:
        return functools.partial(_with_factory, cls), (obj.default_factory,)
    if base is collections.deque:
        return functools.partial(_bounded, cls), (obj.maxlen,)
    return functools.partial(_empty, cls, base), ()


def can_make(obj: Any, base: type) -> bool:
    """Whether Python lets `base` make objects of the class: no other code written in C has a say
    in it."""
    if base is not object:
        return True
    try:
        object.__new__(type(obj))
    except TypeError:
        return False
    return True


def _empty(cls: type, base: Any) -> Any:
    return base.__new__(cls)


def _of_value(cls: type, base: Any, value: Any) -> Any:
    return base.__new__(cls, value)


def of_parts(cls: type, base: Any, *parts: Any) -> Any:
    """An object of `cls`, a tuple or frozenset below its own constructor."""
    return base.__new__(cls, parts)


def of_sequence(cls: Any, *parts: Any) -> Any:
    """What a class makes of one sequence."""
    return cls(parts)


def _with_factory(cls: type, factory: Any) -> Any:
    made: Any = dict.__new__(cls)
    collections.defaultdict.__init__(made, factory)
    return made


def _bounded(cls: type, most: int | None) -> Any:
    made: Any = collections.deque.__new__(cls)
    collections.deque.__init__(made, (), most)
    return made


# What recipes make objects by, where it is no class itself.
MAKERS = (_empty, _of_value, _with_factory, _bounded, of_parts, of_sequence)


def items_of(obj: Any) -> list[Any]:
    kind = next(kind for kind in HOLDING if isinstance(obj, kind))
    return list(kind.__iter__(obj))


def pairs_of(obj: Any) -> list[tuple[Any, Any]]:
    """Keys and values in the order in which the mapping shows them."""
    if isinstance(obj, collections.OrderedDict):
        return list(collections.OrderedDict.items(obj))
    return list(dict.items(obj))


Pairs = Iterable[tuple[Any, Any]]


def _fill_ordered(result: Any, items: list[Any], pairs: Pairs) -> None:
    for key, value in pairs:
        collections.OrderedDict.__setitem__(result, key, value)


def _fill_mapping(result: Any, items: list[Any], pairs: Pairs) -> None:
    for key, value in pairs:
        dict.__setitem__(result, key, value)


def by_methods(result: Any, items: list[Any], pairs: Pairs) -> None:
    """As the pickle protocol fills."""
    for item in items:
        result.append(item)
    for key, value in pairs:
        result[key] = value


FILLS: tuple[tuple[type, Callable[[Any, list[Any], Pairs], None]], ...] = (
    (collections.OrderedDict, _fill_ordered),
    (dict, _fill_mapping),
    (list, lambda result, items, pairs: list.extend(result, items)),
    (set, lambda result, items, pairs: set.update(result, items)),
    (
        collections.deque,
        lambda result, items, pairs: collections.deque.extend(result, items),
    ),
)
