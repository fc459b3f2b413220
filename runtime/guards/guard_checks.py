"""What a guard asks of the value at a path. Checks are frozen; equal ones (by exact type and value,
else identity) compare equal."""

import enum
import itertools
import types
from collections.abc import Hashable
from typing import Any

import torch

from .access_paths import token
from .tensor_meta import TensorMeta

_missing = object()


class _Absent:
    def __repr__(self) -> str:
        return "ABSENT"


ABSENT = _Absent()
"""For `ClassAttr(name, ABSENT)`: no class in the MRO defines `name`."""


class Check:
    """Base of the checks. `expected` is what stands in the message of a failure."""

    __slots__ = ("arg", "mark")
    arg: Any
    mark: Hashable

    def __init__(self, arg: Any) -> None:
        object.__setattr__(self, "arg", arg)
        object.__setattr__(self, "mark", self._mark())

    def _mark(self) -> Hashable:
        return token(self.arg)

    def passes(self, value: Any) -> bool:
        """Whether `value` is as expected. May raise what reading it raises, which the caller counts
        as a failure."""
        raise NotImplementedError

    def difference(self, value: Any) -> str:
        """A phrase for a value that does not pass: 'was 2.0, is 3.0'."""
        raise NotImplementedError

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError("a Check is frozen")

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and self.mark == other.mark

    def __hash__(self) -> int:
        return hash((type(self), self.mark))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({_short(self.arg)})"


def _short(value: object, limit: int = 80) -> str:
    """A repr that runs no tensor operation and stays on one line."""
    try:
        text = _text(value)
    except Exception as error:
        text = f"<{type(value).__name__}, repr raises {type(error).__name__}>"
    text = " ".join(text.split())
    return text if len(text) <= limit else text[: limit - 1] + "…"


_PARTS = 40  # of a container that are looked at


def _text(value: object) -> str:
    if isinstance(value, torch.Tensor):
        return f"<{type(value).__name__}>"
    if type(value) is dict:
        few = itertools.islice(value.items(), _PARTS)
        return "{" + ", ".join(f"{_text(key)}: {_text(part)}" for key, part in few) + "}"
    if type(value) is list or (type(value) is tuple and len(value) > 1):
        parts = ", ".join(map(_text, value[:_PARTS]))
        return f"[{parts}]" if type(value) is list else f"({parts})"
    return repr(value)


class Is(Check):
    """The value is this very object (held strongly)."""

    __slots__ = ()

    def _mark(self) -> Hashable:
        return id(self.arg)

    def passes(self, value: Any) -> bool:
        return value is self.arg

    def difference(self, value: Any) -> str:
        was, now = _short(self.arg), _short(value)
        return (
            f"was {was}, is {now}"
            if was != now
            else f"was {was} at {id(self.arg):#x}, is another object like it"
        )


class TypeIs(Check):
    """The value's exact type."""

    __slots__ = ()

    def _mark(self) -> Hashable:
        return id(self.arg)

    def passes(self, value: Any) -> bool:
        return type(value) is self.arg

    def difference(self, value: Any) -> str:
        return f"was of type {self.arg.__qualname__}, is of type {type(value).__qualname__}"


_SIMPLE = frozenset(
    (int, bool, str, bytes, type(None), type(Ellipsis), type(NotImplemented), float, complex)
)
_BY_EQ = frozenset((torch.device, torch.dtype, torch.layout, torch.memory_format))
_BY_IDENTITY = (enum.Enum, type, types.FunctionType, types.BuiltinFunctionType, types.ModuleType)


def is_placement(value: object) -> bool:
    """Whether it says how a DTensor lies on its mesh: nobody writes to one."""
    return type(value).__module__ == "torch.distributed.tensor.placement_types"


def constant_token(value: object) -> Hashable:
    """A hashable stand-in that is equal exactly for constants of one type and value. Raises
    TypeError for what is no constant."""
    kind = type(value)
    if kind in _SIMPLE:
        return token(value)
    if kind in (
        tuple,
        frozenset,
        torch.Size,
    ):  # a frozenset by its order, too: a loop over it sees the order
        return (kind, tuple(constant_token(item) for item in value))  # type: ignore[attr-defined]
    # equal ranges differ in their bounds: range(0, 3, 2) == range(0, 4, 2)
    if kind is slice or kind is range:
        return (kind, *(constant_token(part) for part in (value.start, value.stop, value.step)))  # type: ignore[attr-defined]
    if kind in _BY_EQ or is_placement(value):
        return (kind, value)
    if isinstance(value, _BY_IDENTITY):
        return (kind, "id", id(value))
    raise TypeError(
        f"a {kind.__qualname__} is not a constant that Equals can compare: guard it with Is, or its"
        " parts one by one"
    )


class Equals(Check):
    """The value's exact type and value: bool and int told apart, floats by bits, tuples, frozensets
    and slices part by part.

    Raises TypeError for a value that is no constant (`Equals.supports` tells).
    """

    __slots__ = ()

    def _mark(self) -> Hashable:
        return constant_token(self.arg)

    @staticmethod
    def supports(value: object) -> bool:
        """Whether `Equals(value)` can be made."""
        try:
            constant_token(value)
        except TypeError:
            return False
        return True

    def passes(self, value: Any) -> bool:
        if value is self.arg:
            return True
        return (
            type(value) is type(self.arg)
            and self.supports(value)
            and constant_token(value) == self.mark
        )

    def difference(self, value: Any) -> str:
        was, now = _short(self.arg), _short(value)
        if type(value) is not type(self.arg):
            return (
                f"was {was} ({type(self.arg).__qualname__}), is {now} ({type(value).__qualname__})"
            )
        return f"was {was}, is {now}"


class Length(Check):
    """`len(value)`."""

    __slots__ = ()

    def passes(self, value: Any) -> bool:
        return bool(len(value) == self.arg)

    def difference(self, value: Any) -> str:
        return f"had length {self.arg}, has length {len(value)}"


class Keys(Check):
    """The keys of a dict, all of them, in order: constants by exact type and value, other keys by
    identity (held strongly)."""

    __slots__ = ()

    def __init__(self, arg: "tuple[Any, ...]") -> None:
        super().__init__(tuple(arg))

    def passes(self, value: Any) -> bool:
        return len(value) == len(self.arg) and token(tuple(value)) == self.mark

    def difference(self, value: Any) -> str:
        return f"had keys {_short(list(self.arg))}, has keys {_short(list(value))}"


class Members(Keys):
    """The members of a set, all of them, in the order in which a loop sees them: constants by type
    and value, others by identity."""

    __slots__ = ()

    def difference(self, value: Any) -> str:
        return f"had members {_short(list(self.arg))}, has members {_short(list(value))}"


class ArrayContent(Check):
    """What a NumPy array holds, byte by byte, with its dtype and shape; arrays of objects, and
    large ones, are not supported."""

    __slots__ = ()
    MOST = 1 << 16  # bytes

    @classmethod
    def supports(cls, value: Any) -> bool:
        """Whether `Content.of(value)` can be made."""
        plain = type(value).__name__ == "ndarray" and type(value).__module__ == "numpy"
        return plain and not value.dtype.hasobject and value.nbytes <= cls.MOST

    @classmethod
    def of(cls, array: Any) -> "ArrayContent":
        """The check for what `array` holds now."""
        return cls((array.dtype.str, array.shape, array.strides, array.tobytes()))

    def content(self) -> Any:
        """An array that holds the same."""
        import numpy as np

        dtype, shape, _, held = self.arg
        return np.frombuffer(held, dtype).reshape(shape)

    def passes(self, value: Any) -> bool:
        return self.supports(value) and self.of(value).mark == self.mark

    def difference(self, value: Any) -> str:
        return "is an array that holds something else"


class HasKey(Check):
    """Whether a dict has this key, a constant."""

    __slots__ = ("present",)
    present: bool

    def __init__(self, key: object, present: bool) -> None:
        object.__setattr__(self, "present", present)
        super().__init__(key)

    def _mark(self) -> Hashable:
        return (token(self.arg), self.present)

    def passes(self, value: Any) -> bool:
        return (self.arg in value) is self.present

    def difference(self, value: Any) -> str:
        was, now = ("had", "lacks") if self.present else ("lacked", "has")
        return f"{was} the key {_short(self.arg)}, {now} it"

    def __repr__(self) -> str:
        return f"HasKey({_short(self.arg)}, {self.present})"


class HasIndex(HasKey):
    """Whether a sequence has an element at this index."""

    __slots__ = ()

    def passes(self, value: Any) -> bool:
        return (-len(value) <= self.arg < len(value)) is self.present

    def difference(self, value: Any) -> str:
        was, now = ("had", "lacks") if self.present else ("lacked", "has")
        return f"{was} an element at {self.arg}, {now} it"

    def __repr__(self) -> str:
        return f"HasIndex({self.arg}, {self.present})"


class Missing(Check):
    """The object's own `__dict__` has no such name (an object without `__dict__` has none)."""

    __slots__ = ()

    def passes(self, value: Any) -> bool:
        try:
            return self.arg not in object.__getattribute__(value, "__dict__")
        except AttributeError:
            return True

    def difference(self, value: Any) -> str:
        held = object.__getattribute__(value, "__dict__")[self.arg]
        return f"had no {self.arg!r} of its own, has {_short(held)}"


class ClassAttr(Check):
    """Looking `name` up through `type(value).__mro__` gives exactly this object (held strongly), or
    ABSENT."""

    __slots__ = ("name",)
    name: str

    def __init__(self, name: str, value: object) -> None:
        object.__setattr__(self, "name", name)
        super().__init__(value)

    def _mark(self) -> Hashable:
        return (self.name, id(self.arg))

    def _found(self, value: object) -> object:
        for cls in type(value).__mro__:
            found = cls.__dict__.get(self.name, _missing)
            if found is not _missing:
                return found
        return ABSENT

    def passes(self, value: Any) -> bool:
        return self._found(value) is self.arg

    def difference(self, value: Any) -> str:
        was, now = _short(self.arg), _short(self._found(value))
        return f"had class attribute {self.name!r} = {was}, has {now}"

    def __repr__(self) -> str:
        return f"ClassAttr({self.name!r}, {_short(self.arg)})"


class Tensor(Check):
    """A tensor's metadata; its values are free."""

    __slots__ = ()

    def __init__(self, meta: TensorMeta) -> None:
        super().__init__(meta)

    def _mark(self) -> Hashable:
        return self.arg  # type: ignore[no-any-return]

    def passes(self, value: Any) -> bool:
        return bool(self.arg.matches(value))

    def difference(self, value: Any) -> str:
        return "has " + ", ".join(self.arg.differences(value))
