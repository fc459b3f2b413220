"""Numbers and text that come from tensors: plain to Python, but they remember how a later call makes them again."""

import math
import operator
from typing import Any

import torch

from . import state
from .recipes import Apply, Const, Recipe


def is_live(value: Any) -> bool:
    """Whether `value` is a traced scalar or text of the recording now at work; one kept from an earlier call is a plain value."""
    recorder = state.recorder()
    return recorder is not None and type(value) in TRACED and value.recording is recorder and recorder.active


def live_in(recorder: Any, value: Any) -> bool:
    """Whether `value` is a traced scalar of `recorder`."""
    return type(value) in TRACED and value.recording is recorder


def recipe_of(value: Any) -> Recipe:
    """The recipe of a traced value, or the constant that a plain one is."""
    return value.recipe if is_live(value) else Const(plain(value))


def plain(value: Any) -> Any:
    """The exact Python number or text."""
    exact = _EXACT.get(type(value))
    return value if exact is None else exact(value)


def size_form(value: Any) -> Any:
    """The form (see `sizes`) of a traced number that follows from sizes, else None."""
    form = getattr(value, "form", None) if type(value) in TRACED else None
    return form if form is not None and hasattr(form, "seen") else None


def traced(value: Any, recipe: Recipe, form: Any = None, recorder: Any = None) -> Any:
    """`value` with its recipe, and the form in which a graph can hold it, if a subclass can
    carry it (a bool cannot: its outcome is recorded instead)."""
    recorder = recorder or state.recorder()
    if type(value) is bool:
        return recorder.outcome(recipe, value)
    cls = {float: TracedFloat, int: TracedInt, str: TracedStr}.get(type(value))
    if cls is None:
        return recorder.outcome(recipe, value)
    result = cls(value)
    result.recording, result.recipe, result.form = recorder, recipe, form
    recorder.scalars.append(result)
    return result


def apply(function: Any, *args: Any) -> Any:
    """`function(*args)` on the plain values; traced again if any argument is traced."""
    result = function(*map(plain, args))
    if result is NotImplemented or not any(map(is_live, args)):
        return result
    recorder = state.recorder()
    return traced(result, Apply(function, tuple(map(recipe_of, args))), recorder.form_of_call(function, args))


def settle(value: Any) -> Any:
    """The plain value, with its outcome recorded: Python is about to depend on it."""
    return value.recording.outcome(value.recipe, plain(value)) if is_live(value) else plain(value)


def _binary(function: Any) -> Any:
    def method(self: Any, other: Any) -> Any:
        if not isinstance(other, int | float):
            return NotImplemented
        return apply(function, self, other)

    return method


def _reflected(function: Any) -> Any:
    def method(self: Any, other: Any) -> Any:
        if not isinstance(other, int | float):
            return NotImplemented
        return apply(function, other, self)

    return method


def _unary(function: Any) -> Any:
    return lambda self: apply(function, self)


def _settled(function: Any) -> Any:
    return lambda self, *args: function(settle(self), *args)


def _arithmetic() -> dict[str, Any]:
    methods: dict[str, Any] = {}
    for name in "add sub mul truediv floordiv mod pow and or xor lshift rshift".split():
        function = getattr(operator, name, None) or getattr(operator, f"{name}_")
        methods[f"__{name}__"] = _binary(function)
        methods[f"__r{name}__"] = _reflected(function)
    methods["__divmod__"], methods["__rdivmod__"] = _binary(divmod), _reflected(divmod)
    for name in "lt le gt ge eq ne".split():
        methods[f"__{name}__"] = _binary(getattr(operator, name))
    for name, function in {"neg": operator.neg, "pos": operator.pos, "abs": abs, "invert": operator.invert}.items():
        methods[f"__{name}__"] = _unary(function)
    methods["__bool__"] = _settled(bool)
    methods["__round__"] = lambda self, *digits: apply(round, self, *digits)
    methods["__format__"] = lambda self, spec: apply(format, self, spec)
    methods["__str__"] = _settled(str)
    methods["__repr__"] = _settled(repr)
    methods["__hash__"] = _settled(hash)
    methods["__copy__"] = lambda self: self
    methods["__deepcopy__"] = lambda self, memo: self
    methods["__reduce_ex__"] = lambda self, protocol: plain(self).__reduce_ex__(protocol)
    return methods


_UNTRACED: dict[str, Any] = {
    "recording": None,
    "recipe": None,
    "form": None,
}  # what a scalar of a finished recording is

TracedFloat = type("TracedFloat", (float,), {**_UNTRACED, **_arithmetic(), "__int__": _settled(int), "__trunc__": _settled(math.trunc),
                                             "is_integer": _settled(float.is_integer)})  # fmt: skip
TracedInt = type("TracedInt", (int,), {**_UNTRACED, **_arithmetic(), "__index__": _settled(operator.index), "__int__": _settled(int),
                                       "__float__": _settled(float)})  # fmt: skip


class TracedStr(str):
    """Text made of traced values; only what prints or stores it can make it again."""

    recording: Any = None
    recipe: Any = None
    form: Any = None

    def __add__(self, other: str) -> Any:
        return apply(operator.add, self, other) if isinstance(other, str) else NotImplemented

    def __radd__(self, other: str) -> Any:
        return apply(operator.add, other, self) if isinstance(other, str) else NotImplemented

    def __eq__(self, other: object) -> Any:
        return settle(self) == plain(other)

    def __ne__(self, other: object) -> Any:
        return settle(self) != plain(other)

    def __hash__(self) -> int:
        return hash(settle(self))


TRACED = (TracedFloat, TracedInt, TracedStr)
_EXACT: dict[type, Any] = {
    TracedFloat: float.__float__,
    TracedInt: int.__int__,
    TracedStr: lambda text: str.__str__(text),
}


def release(made: list[Any]) -> None:
    """The recording is over: its scalars are plain numbers from now on, and keep nothing alive."""
    for value in made:
        value.__dict__.clear()
    made.clear()


def strip(obj: Any, seen: set[int] | None = None) -> Any:
    """`obj` with the traced scalars in it made plain: tuples anew, lists and dicts in place, objects' attributes in place."""
    seen = set() if seen is None else seen
    if type(obj) in TRACED:
        return plain(obj)
    if id(obj) in seen:
        return obj
    seen.add(id(obj))
    if type(obj) in (tuple, torch.Size) and obj:
        parts = type(obj)(strip(part, seen) for part in obj)
        return parts if any(a is not b for a, b in zip(parts, obj, strict=True)) else obj
    if type(obj) is list:
        _strip_items(obj, list(enumerate(obj)), seen)
    elif type(obj) is set and any(type(member) in TRACED for member in obj):
        _refill(obj, [plain(member) for member in obj])
    elif isinstance(obj, dict):
        _strip_keys(obj)
        _strip_items(obj, list(dict.items(obj)), seen)
    return obj


def _refill(obj: set[Any], members: list[Any]) -> None:
    obj.clear()
    obj.update(members)


def _strip_keys(obj: dict[Any, Any]) -> None:
    if any(type(key) in TRACED for key in obj):
        items = [(plain(key), value) for key, value in obj.items()]
        obj.clear()
        obj.update(items)


def _strip_items(obj: Any, items: list[tuple[Any, Any]], seen: set[int]) -> None:
    for key, value in items:
        plain_value = strip(value, seen)
        if plain_value is not value:
            obj[key] = plain_value
