"""Frozen, interned nodes: two nodes with equal fields are one object, so identity is equality and
sharing is free."""

import dataclasses
import threading
import weakref
from _weakref import _remove_dead_weakref  # type: ignore[attr-defined]
from collections.abc import Callable
from functools import partial
from typing import Any, Generic, TypeVar

from typing_extensions import dataclass_transform

_T = TypeVar("_T")
_Key = tuple[Any, ...]
_table: "dict[_Key, weakref.ref[Any]]" = {}
_lock = threading.Lock()


def _forget(key: _Key, dead: "weakref.ref[Any]") -> None:
    _remove_dead_weakref(_table, key)  # at once: another thread may have put a live one there


class Interned(type):
    """Metaclass: construction returns the live node with the same fields, if there is one."""

    _names: tuple[str, ...] | None = None  # of the fields, where they are the key themselves

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        names = cls._names
        if names is None or kwargs or len(args) != len(names):
            other = super().__call__(*args, **kwargs)
            return _interned((cls, other._key()), other)
        key = (cls, args)
        found = _table.get(key)
        known = None if found is None else found()
        if known is not None:
            return known
        made: Any = object.__new__(cls)  # type: ignore[arg-type]
        made.__dict__.update(zip(names, args, strict=True))
        return _interned(key, made)


def _interned(key: _Key, made: Any) -> Any:
    """The live node of that key: another one, or this."""
    with _lock:
        found = _table.get(key)
        known = None if found is None else found()
        if known is None:
            _table[key] = weakref.ref(made, partial(_forget, key))
        return made if known is None else known


class Lazy(Generic[_T]):
    """A property that is computed once: `functools.cached_property` without the lock that it takes
    before Python 3.12."""

    def __init__(self, compute: Callable[[Any], _T]) -> None:
        self.compute, self.name = compute, compute.__name__
        self.__doc__ = compute.__doc__

    def __get__(self, node: Any, owner: type | None = None) -> _T:
        made = node.__dict__[self.name] = self.compute(node)
        return made


class Node(metaclass=Interned):
    """Base of every node. Fields must be hashable: numbers, strings, dtypes, other nodes, tuples of
    them."""

    def _key(self) -> _Key:
        return tuple(getattr(self, name) for name in self.__dataclass_fields__)  # type: ignore[attr-defined]


@dataclass_transform(frozen_default=True, eq_default=False)
def node(cls: type[_T]) -> type[_T]:
    """Class decorator: a frozen dataclass compared and hashed by identity."""
    made: Any = dataclasses.dataclass(frozen=True, eq=False)(cls)
    if made._key is Node._key:
        made._names = tuple(made.__dataclass_fields__)
    return made  # type: ignore[no-any-return]
