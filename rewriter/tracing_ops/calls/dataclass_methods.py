"""The methods that `dataclass` generates, written out: they have no source of their own
(https://docs.python.org/3/library/dataclasses.html)."""

import dataclasses
import functools
import operator
import sys
import types
import weakref
from collections.abc import Callable
from typing import Any

Method = Callable[..., Any]


def _equal(cls: Any, names: tuple[str, ...]) -> Method:
    def equal(self: Any, other: Any) -> Any:
        if other.__class__ is self.__class__:
            mine = tuple([getattr(self, name) for name in names])
            return mine == tuple([getattr(other, name) for name in names])
        return NotImplemented

    return equal


def _equal_one_by_one(cls: Any, names: tuple[str, ...]) -> Method:
    """Since Python 3.13."""

    def equal(self: Any, other: Any) -> Any:
        if self is other:
            return True
        if other.__class__ is not self.__class__:
            return NotImplemented
        same = True
        for name in names:
            if not same:
                break
            same = getattr(self, name) == getattr(other, name)
        return same

    return equal


def _ordered(compare: Method, cls: Any, names: tuple[str, ...]) -> Method:
    def ordered(self: Any, other: Any) -> Any:
        if other.__class__ is self.__class__:
            mine = tuple([getattr(self, name) for name in names])
            return compare(mine, tuple([getattr(other, name) for name in names]))
        return NotImplemented

    return ordered


def _hashed(cls: Any, names: tuple[str, ...]) -> Method:
    def hashed(self: Any) -> int:
        return hash(tuple([getattr(self, name) for name in names]))

    return hashed


def _frozen_store(cls: Any, names: tuple[str, ...]) -> Method:
    def store(self: Any, name: str, value: Any) -> None:
        if type(self) is cls or name in names:
            raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")
        super(cls, self).__setattr__(name, value)

    return store


def _frozen_delete(cls: Any, names: tuple[str, ...]) -> Method:
    def delete(self: Any, name: str) -> None:
        if type(self) is cls or name in names:
            raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")
        super(cls, self).__delattr__(name)

    return delete


_COMPARED: dict[str, Any] = {
    "__eq__": _equal if sys.version_info < (3, 13) else _equal_one_by_one,
    "__lt__": functools.partial(_ordered, operator.lt),
    "__le__": functools.partial(_ordered, operator.le),
    "__gt__": functools.partial(_ordered, operator.gt),
    "__ge__": functools.partial(_ordered, operator.ge),
}
_FROZEN: dict[str, Any] = {"__setattr__": _frozen_store, "__delattr__": _frozen_delete}
_made: "weakref.WeakKeyDictionary[types.FunctionType, Any]" = weakref.WeakKeyDictionary()


def written_out(function: types.FunctionType, args: tuple[Any, ...]) -> Any:
    """A function with source that does what `function` does, if it is a generated method of the
    class of `args[0]`."""
    if not args or not function.__code__.co_filename.startswith("<"):
        return None
    if function not in _made:
        _made[function] = _written(function, type(args[0]))
    return _made[function]


def _written(function: types.FunctionType, cls: type) -> Any:
    name = function.__name__
    owners = (base for base in cls.__mro__ if base.__dict__.get(name) is function)
    owner: Any = next(owners, None)
    if owner is None or "__dataclass_fields__" not in vars(owner):
        return None
    fields = dataclasses.fields(owner)
    if name in _FROZEN:
        return _FROZEN[name](owner, tuple(field.name for field in fields))
    if name in _COMPARED:
        return _COMPARED[name](owner, tuple(field.name for field in fields if field.compare))
    if name == "__hash__":
        hashed = (f for f in fields if (f.compare if f.hash is None else f.hash))
        return _hashed(owner, tuple(field.name for field in hashed))
    return None
