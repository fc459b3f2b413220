"""Frozen, interned nodes: two nodes with equal fields are one object, so identity is equality and
sharing is free."""

import dataclasses
import threading
from typing import Any, TypeVar
from weakref import WeakValueDictionary

from typing_extensions import dataclass_transform

_T = TypeVar("_T")
_table: "WeakValueDictionary[Any, Any]" = WeakValueDictionary()
_lock = threading.Lock()


class Interned(type):
    """Metaclass: construction returns the live node with the same fields, if there is one."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        plain = not kwargs and cls._key is Node._key  # type: ignore[attr-defined]
        if plain and len(args) == len(cls.__dataclass_fields__):  # type: ignore[attr-defined]
            known = _table.get((cls, args))
            if known is not None:
                return known
        made = super().__call__(*args, **kwargs)
        key = (cls, made._key())
        with _lock:
            return _table.setdefault(key, made)


class Node(metaclass=Interned):
    """Base of every node. Fields must be hashable: numbers, strings, dtypes, other nodes, tuples of
    them."""

    def _key(self) -> tuple[Any, ...]:
        return tuple(getattr(self, name) for name in self.__dataclass_fields__)  # type: ignore[attr-defined]


@dataclass_transform(frozen_default=True, eq_default=False)
def node(cls: type[_T]) -> type[_T]:
    """Class decorator: a frozen dataclass compared and hashed by identity."""
    return dataclasses.dataclass(frozen=True, eq=False)(cls)
