"""Functions of the standard library whose source Python freezes away, written out, so that they can
be rewritten: the mixin methods of collections.abc, os.environ
(https://docs.python.org/3/library/collections.abc.html)."""

import collections.abc as abc
import os
import sys
from typing import Any

_marker: Any = object()
_ENCODING = sys.getfilesystemencoding()


def _contains_key(self: Any, key: Any) -> bool:
    try:
        self[key]
    except KeyError:
        return False
    return True


def _get(self: Any, key: Any, default: Any = None) -> Any:
    try:
        return self[key]
    except KeyError:
        return default


def _keys(self: Any) -> Any:
    return dict.fromkeys(self).keys()


def _values(self: Any) -> Any:
    return [self[key] for key in self]


def _items(self: Any) -> Any:
    return [(key, self[key]) for key in self]


def _equal_mappings(self: Any, other: Any) -> Any:
    return (
        dict(self.items()) == dict(other.items())
        if isinstance(other, abc.Mapping)
        else NotImplemented
    )


def _pop(self: Any, key: Any, default: Any = _marker) -> Any:
    try:
        value = self[key]
    except KeyError:
        if default is _marker:
            raise
        return default
    del self[key]
    return value


def _setdefault(self: Any, key: Any, default: Any = None) -> Any:
    try:
        return self[key]
    except KeyError:
        self[key] = default
    return default


def _update(self: Any, other: Any = (), /, **kwds: Any) -> None:
    if isinstance(other, abc.Mapping) or hasattr(other, "keys"):
        keys = other.keys()
        for key in keys:
            self[key] = other[key]
    else:
        for key, value in other:
            self[key] = value
    for key, value in kwds.items():
        self[key] = value


def _iterate(self: Any) -> Any:
    index = 0
    try:
        while True:
            yield self[index]
            index += 1
    except IndexError:
        return


def _contains_value(self: Any, value: Any) -> bool:
    return any(each is value or each == value for each in self)


def _reversed(self: Any) -> Any:
    for index in reversed(range(len(self))):
        yield self[index]


def _count(self: Any, value: Any) -> int:
    return sum(1 for each in self if each is value or each == value)


def _environment_item(self: Any, key: Any) -> Any:
    try:
        value = self._data[key.encode(_ENCODING, "surrogateescape")]
    except KeyError:
        raise KeyError(key) from None
    return value.decode(_ENCODING, "surrogateescape")


def _getenv(key: Any, default: Any = None) -> Any:
    return os.environ.get(key, default)


STAND_INS: dict[Any, Any] = {
    os.getenv: _getenv,
    type(os.environ).__getitem__: _environment_item,
    abc.Mapping.__contains__: _contains_key,
    abc.Mapping.get: _get,
    abc.Mapping.keys: _keys,
    abc.Mapping.values: _values,
    abc.Mapping.items: _items,
    abc.Mapping.__eq__: _equal_mappings,
    abc.MutableMapping.pop: _pop,
    abc.MutableMapping.setdefault: _setdefault,
    abc.MutableMapping.update: _update,
    abc.Sequence.__iter__: _iterate,
    abc.Sequence.__contains__: _contains_value,
    abc.Sequence.__reversed__: _reversed,
    abc.Sequence.count: _count,
}
