"""Access paths: how a value is reached again from the arguments of a call or from an object that
outlives it.

A path is frozen and interned (equal paths are one object), so a trie of paths is built by identity.
Roots are `Arg`, `Kwarg` and `Obj`; every other kind reads one thing from its base. `fetch` may
raise whatever the read raises: the guard that asked then does not match.
"""

import struct
import threading
import weakref
from collections.abc import Hashable, Mapping
from itertools import islice
from typing import Any

import torch

_interned: "weakref.WeakValueDictionary[tuple[Any, ...], Path]" = weakref.WeakValueDictionary()
_lock = threading.RLock()  # re-entrant: a collection inside the lock may run code that makes paths
_BY_VALUE = frozenset((int, bool, str, bytes, type(None), type(Ellipsis)))


def token(value: object) -> Hashable:
    """A hashable stand-in: equal for two values of the same exact type and value (floats by bits),
    else by identity.

    The holder of a token made by identity must hold the value too.
    """
    kind = type(value)
    if kind in _BY_VALUE:
        return (kind, value)
    if kind is float:
        return (kind, struct.pack("d", value))
    if kind is complex:
        return (kind, struct.pack("dd", value.real, value.imag))  # type: ignore[attr-defined]
    if kind in (tuple, frozenset):
        return (kind, tuple(token(item) for item in value))  # type: ignore[attr-defined]
    if kind is slice:
        return (kind, token(value.start), token(value.stop), token(value.step))  # type: ignore[attr-defined]
    return (kind, "id", id(value))


class Path:
    """One access path. `base` is None for a root, `arg` is what the kind needs; `source` is how a
    person would write it."""

    __slots__ = ("__weakref__", "arg", "base", "source")
    base: "Path | None"
    arg: Any
    source: str

    def __new__(cls, *parts: Any) -> Any:
        base, arg = cls._split(*parts)
        key = (cls, base and id(base), token(arg))
        with _lock:
            found = _interned.get(key)
            if found is None:
                found = object.__new__(cls)
                found._fill(base, arg)
                _interned[key] = found
            return found

    @staticmethod
    def _split(base: "Path", arg: Any) -> "tuple[Path | None, Any]":
        return base, arg

    def _fill(self, base: "Path | None", arg: Any) -> None:
        set_field = object.__setattr__
        set_field(self, "base", base)
        set_field(self, "arg", arg)
        set_field(self, "source", self._spell())

    def _spell(self) -> str:
        raise NotImplementedError

    def root(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """The value of a root for one call."""
        raise TypeError(f"{self!r} is not a root")

    def fetch(self, base: Any) -> Any:
        """Read this step from the value of its base."""
        raise TypeError(f"{self!r} is a root")

    def value(self, args: tuple[Any, ...] = (), kwargs: "Mapping[str, Any] | None" = None) -> Any:
        """Walk the whole path for one call. Raises what the walk raises."""
        if self.base is None:
            return self.root(args, kwargs or {})
        return self.fetch(self.base.value(args, kwargs))

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError("a Path is frozen")

    def __repr__(self) -> str:
        return f"{type(self).__name__}<{self.source}>"

    def __reduce__(self) -> Any:
        raise TypeError("a Path names live objects and cannot be pickled")

    def __copy__(self) -> "Path":
        return self

    def __deepcopy__(self, memo: object) -> "Path":
        return self


class _Root(Path):
    __slots__ = ()

    @staticmethod
    def _split(arg: Any) -> "tuple[Path | None, Any]":  # type: ignore[override]
        return None, arg


class Arg(_Root):
    """`args[index]` of the call."""

    __slots__ = ()

    def _spell(self) -> str:
        return f"args[{self.arg}]"

    def root(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        return args[self.arg]


class Kwarg(_Root):
    """`kwargs[name]` of the call."""

    __slots__ = ()

    def _spell(self) -> str:
        return str(self.arg)

    def root(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        return kwargs[self.arg]


class Obj(Path):
    """A fixed object (module, globals dict, class, function), held strongly; interned by the
    object's identity and its label."""

    __slots__ = ("label",)
    label: str

    def __new__(cls, value: object, label: str) -> "Obj":
        key = (cls, id(value), label)
        with _lock:
            found = _interned.get(key)
            if found is None:
                found = object.__new__(cls)
                object.__setattr__(found, "label", label)
                found._fill(None, value)
                _interned[key] = found
            return found  # type: ignore[return-value]

    def _spell(self) -> str:
        return self.label

    def root(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        return self.arg


class Attr(Path):
    """`getattr(base, name)`."""

    __slots__ = ()

    def _spell(self) -> str:
        return f"{self.base.source}.{self.arg}"  # type: ignore[union-attr]

    def fetch(self, base: Any) -> Any:
        return getattr(base, self.arg)


class InstDict(Path):
    """`object.__getattribute__(base, "__dict__")`, the dict object itself, whatever the class says
    of it."""

    __slots__ = ()

    @staticmethod
    def _split(base: Path) -> "tuple[Path | None, Any]":  # type: ignore[override]
        return base, None

    def _spell(self) -> str:
        return f"{self.base.source}.__dict__"  # type: ignore[union-attr]

    def fetch(self, base: Any) -> Any:
        return object.__getattribute__(base, "__dict__")


def _spelled(key: Any) -> str:
    """A key as source has it, or which object it is: no `__repr__` of the user's runs, nor a
    tensor's."""
    if type(key) is tuple:
        return f"({', '.join(map(_spelled, key))}{',' * (len(key) == 1)})"
    if type(key) in (int, str, bool, float, bytes, type(None), slice, complex):
        return repr(key)
    return f"<{type(key).__name__} at {id(key):#x}>"


class Item(Path):
    """`base[key]`. The key is compared by exact type and value, or by identity, when paths are
    interned."""

    __slots__ = ()

    def _spell(self) -> str:
        base = self.base
        if (
            isinstance(base, Obj)
            and isinstance(base.arg, dict)
            and "__builtins__" in base.arg
            and isinstance(self.arg, str)
        ):
            return self.arg
        return f"{base.source}[{_spelled(self.arg)}]"  # type: ignore[union-attr]

    def fetch(self, base: Any) -> Any:
        if isinstance(base, dict) and not dict.__contains__(base, self.arg):
            raise KeyError(self.arg)  # a defaultdict would store what is asked for
        return base[self.arg]


class Stored(Path):
    """`dict.__getitem__(base, key)`: what a dict of a class with its own `__getitem__` holds."""

    __slots__ = ()

    def _spell(self) -> str:
        return f"dict.__getitem__({self.base.source}, {_spelled(self.arg)})"  # type: ignore[union-attr]

    def fetch(self, base: Any) -> Any:
        return dict.__getitem__(base, self.arg)


class DictKey(Path):
    """`list(base)[index]`, for dict keys that are objects."""

    __slots__ = ()

    def _spell(self) -> str:
        return f"list({self.base.source})[{self.arg}]"  # type: ignore[union-attr]

    def fetch(self, base: Any) -> Any:
        return next(islice(iter(base), self.arg, None))


class Cell(Path):
    """`base.__closure__[index].cell_contents`: a variable that the function `base` closes over."""

    __slots__ = ()

    def _spell(self) -> str:
        base = self.base
        code = getattr(base.arg, "__code__", None) if isinstance(base, Obj) else None
        if code is not None and self.arg < len(code.co_freevars):
            return str(code.co_freevars[self.arg])
        return f"{base.source}.__closure__[{self.arg}].cell_contents"  # type: ignore[union-attr]

    def fetch(self, base: Any) -> Any:
        return base.__closure__[self.arg].cell_contents


class TypeOf(Path):
    """`type(base)`."""

    __slots__ = ()

    @staticmethod
    def _split(base: Path) -> "tuple[Path | None, Any]":  # type: ignore[override]
        return base, None

    def _spell(self) -> str:
        return f"type({self.base.source})"  # type: ignore[union-attr]

    def fetch(self, base: Any) -> Any:
        return type(base)


class OnArray(Path):
    """`torch.from_numpy(base)`: a tensor on the memory of an array that may be written."""

    __slots__ = ()

    @staticmethod
    def _split(base: Path) -> "tuple[Path | None, Any]":  # type: ignore[override]
        return base, None

    def _spell(self) -> str:
        return f"from_numpy({self.base.source})"  # type: ignore[union-attr]

    def fetch(self, base: Any) -> Any:
        if not base.flags.writeable:  # of which torch warns, where it does not copy
            raise ValueError("a read-only array")
        return torch.from_numpy(base)


class AsTensor(Path):
    """A tensor of a subclass as a plain one: an alias, in the same memory and with its history."""

    __slots__ = ()

    @staticmethod
    def _split(base: Path) -> "tuple[Path | None, Any]":  # type: ignore[override]
        return base, None

    def _spell(self) -> str:
        return f"{self.base.source}.as_subclass(torch.Tensor)"  # type: ignore[union-attr]

    def fetch(self, base: Any) -> Any:
        with torch._C.DisableTorchFunctionSubclass():
            return base.as_subclass(torch.Tensor)


class Referent(Path):
    """`base()`: what a weak reference leads to, None once that is gone."""

    __slots__ = ()

    @staticmethod
    def _split(base: Path) -> "tuple[Path | None, Any]":  # type: ignore[override]
        return base, None

    def _spell(self) -> str:
        return f"{self.base.source}()"  # type: ignore[union-attr]

    def fetch(self, base: Any) -> Any:
        return weakref.ref.__call__(base)
