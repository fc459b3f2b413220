"""Operators and comparisons while recording: special methods written in Python run rewritten,
containers from outside are guarded."""

import operator
import types
from collections.abc import Callable
from typing import Any

import torch

from ..capture.effects import SideEffect
from ..capture.guarded_kinds import HASHING, MAPPINGS, is_constant
from ..capture.nested import concretize, has_traced, tensors_in
from ..capture.numbers import scalars, traced_arrays
from ..capture.trace import Recorder
from . import branches, c_calls, items, iteration, texts
from .lookup import MISSING, PLAIN_TYPES, is_stable, on_class, python_method

_NAMES = {
    "+": "add",
    "-": "sub",
    "*": "mul",
    "/": "truediv",
    "//": "floordiv",
    "%": "mod",
    "**": "pow",
    "@": "matmul",
    "<<": "lshift",
    ">>": "rshift",
    "&": "and",
    "|": "or",
    "^": "xor",
    "divmod": "divmod",
}
_COMPARISONS = {
    "<": "__lt__",
    "<=": "__le__",
    ">": "__gt__",
    ">=": "__ge__",
    "==": "__eq__",
    "!=": "__ne__",
}
_MIRROR = {"<": ">", "<=": ">=", ">": "<", ">=": "<=", "==": "==", "!=": "!="}
_UNARY = {"-": "__neg__", "+": "__pos__", "~": "__invert__"}


def binary(rec: Recorder, op: str, function: Callable[..., Any], a: Any, b: Any) -> Any:
    if op == "%" and isinstance(a, str) and tensors_in(b):
        return texts.traced_text(rec, function, a, b)
    if op == "+" and isinstance(a, str) and isinstance(b, str):
        return scalars.apply(function, a, b)
    if rec.arrays and not isinstance(a, str):
        if isinstance(a, torch.Tensor) or isinstance(b, torch.Tensor):
            a, b = traced_arrays.as_operand(rec, a, b), traced_arrays.as_operand(rec, b, a)
        elif traced_arrays.are(rec, a, b):
            return traced_arrays.call(rec, function, (a, b), {})
    if _simple(a) and _simple(b):
        return _formatted(op, function, a, b) if op == "%" else _numbers(function, *_agreeing(a, b))
    if op == "%" and isinstance(a, str):
        c_calls.check(rec, ("__str__", "__repr__", "__format__", "__getitem__"), b)
        _contents(rec, a, b)
        return _formatted(op, function, a, b)
    name, asked = _NAMES[op], []
    for owner, method_name, other in _turns(a, b, f"__{name}__", f"__r{name}__"):
        method = python_method(rec, owner, method_name)
        if method is not None:
            result = rec.call(method, (owner, other), {})
            if result is not NotImplemented:
                return result
            asked.append((owner, method_name))
    if op == "+" and type(a) is type(b) and type(a) in (list, tuple):  # only looks for elements
        if type(a) is tuple:
            a, b = (iteration.moving_parts(rec, each) or each for each in (a, b))
        items.guard_structure(rec, a)
        items.guard_structure(rec, b)
    else:
        _contents(rec, a, b)
    return rec.once(function, _answered(*_agreeing(a, b), asked))


def _answered(a: Any, b: Any, asked: list[tuple[Any, str]]) -> tuple[Any, Any]:
    """The operands, with stand-ins for those whose methods, in Python, were `asked` and gave
    NotImplemented: they are not asked again by what C code does then."""
    kinds = PLAIN_TYPES - {torch.Tensor, torch.nn.Parameter}
    owners = {id(owner): owner for owner, _ in asked}
    if not all(id(each) in owners or type(each) in kinds for each in (a, b)):
        return a, b
    stand_ins = {
        key: type(
            type(owner).__name__,
            (),
            {name: lambda self, other: NotImplemented for _, name in asked},
        )()
        for key, owner in owners.items()
    }
    return stand_ins.get(id(a), a), stand_ins.get(id(b), b)


def _turns(a: Any, b: Any, name: str, mirrored: str) -> list[tuple[Any, str, Any]]:
    """Whose method is asked, in Python's order: that of the right operand first where its class
    derives from the left one's and has another; not at all where the left one, a tensor or a
    number, takes any number, or a tensor what torch asks by itself."""
    turns = [(a, name, b), (b, mirrored, a)]
    left, right = type(scalars.plain(a)), type(scalars.plain(b))
    if left is right:
        return turns[:1]
    if issubclass(right, left) and on_class(right, mirrored) is not on_class(left, mirrored):
        return turns[::-1]
    if isinstance(a, torch.Tensor) and hasattr(right, "__torch_function__"):
        return turns[:1]
    numbers = (int, float, complex)
    return turns[:1] if _simple(a) and isinstance(b, numbers) and not isinstance(a, str) else turns


def _agreeing(a: Any, b: Any) -> tuple[Any, Any]:
    """The operands; a traced scalar settles unless the other is a number or a tensor (`"ab" * n`
    takes a number without asking)."""
    numbers = (int, float, torch.Tensor)
    if type(a) in scalars.TRACED and not isinstance(b, numbers):
        a = scalars.concretize_scalar(a)
    if type(b) in scalars.TRACED and not isinstance(a, numbers):
        b = scalars.concretize_scalar(b)
    return a, b


def _numbers(function: Callable[..., Any], a: Any, b: Any) -> Any:
    """`function(a, b)`; C's own float on the left would read the digits of a traced number and ask
    nobody."""
    if type(b) in scalars.TRACED and isinstance(a, int | float) and not isinstance(b, str):
        return scalars.apply(function, a, b)
    return function(a, b)


def _formatted(op: str, function: Callable[..., Any], a: Any, b: Any) -> Any:
    if not isinstance(a, str):
        return _numbers(function, *_agreeing(a, b))
    a = scalars.concretize_scalar(a)
    if type(b) in scalars.TRACED:
        return scalars.apply(function, a, b)
    if type(b) is tuple and has_traced(b):
        return scalars.apply(lambda *parts: a % parts, *(b if is_flat(b) else concretize(b)))
    return function(a, concretize(b))


def is_flat(values: tuple[Any, ...]) -> bool:
    return all(is_constant(value) or type(value) in scalars.TRACED for value in values)


def _simple(value: Any) -> bool:
    """Whether no operator of the value runs Python of the user's."""
    if isinstance(value, torch.Tensor):
        return is_stable(type(value))
    return is_constant(value) or type(value) in scalars.TRACED


def _contents(rec: Recorder, *values: Any) -> None:
    for value in values:
        if not _simple(value):
            items.guard_arguments(rec, (value,), {})
    if len(values) == 2 and all(isinstance(value, HASHING) for value in values):
        rec.known.assume_distinct_keys(values[0], *values[1])
    parts = (part for value in values if len(values) == 2 for part in _parts(value))
    rec.known.assume_distinct(*{id(part): part for part in parts}.values())


def _parts(value: Any) -> list[Any]:
    """What a comparison of containers tells by what it is."""
    if isinstance(value, dict | list | tuple):
        each = value.values() if isinstance(value, dict) else value
        return [part for one in each for part in _parts(one)]
    if type(value) is types.MethodType:
        return [value.__self__, value.__func__]
    equal: object = type(value).__eq__
    return [value] if equal is object.__eq__ else []


def inplace(rec: Recorder, op: str, function: Callable[..., Any], a: Any, b: Any) -> Any:
    """`a op= b` for a local: a container from outside that grows in place is an effect."""
    if traced_arrays.is_array_or_number(a) and traced_arrays.among(rec, (a, b)):
        return traced_arrays.update(rec, function, a, b)
    if _simple(a):
        return binary(rec, op[:-1], function, a, b)
    method = python_method(rec, a, f"__i{_NAMES[op[:-1]]}__")
    if method is not None:
        return rec.call(method, (a, b), {})
    if (
        type(a) in PLAIN_TYPES
        and rec.known.path_of(a) is not None
        and not isinstance(a, tuple | frozenset)
    ):
        _contents(rec, b)
        rec.known.before_write(a)
        rec.effects.append(
            SideEffect(function, (a, type(b)(b) if type(b) in (list, set, dict) else b))
        )
        return rec.once(function, (a, b))
    return binary(rec, op[:-1], function, a, b)


def unary(rec: Recorder, op: str, function: Callable[..., Any], a: Any) -> Any:
    if traced_arrays.are(rec, a):
        return traced_arrays.call(rec, function, (a,), {})
    method = None if _simple(a) else python_method(rec, a, _UNARY[op])
    return function(a) if method is None else rec.call(method, (a,), {})


def unary_call(rec: Recorder, function: Callable[..., Any], name: str, a: Any) -> Any:
    """A builtin that stands for one special method: `abs`."""
    if traced_arrays.are(rec, a):
        return traced_arrays.call(rec, function, (a,), {})
    method = None if _simple(a) else python_method(rec, a, name)
    return function(a) if method is None else rec.call(method, (a,), {})


def compare(rec: Recorder, op: str, function: Callable[..., Any], a: Any, b: Any) -> Any:
    if op in ("is", "is not"):
        return _identity(rec, function, a, b)
    if op in ("in", "not in"):
        return _membership(rec, op, function, a, b)
    if traced_arrays.are(rec, a, b) and not tensors_in((a, b)):
        return traced_arrays.call(rec, function, (a, b), {})
    if _simple(a) and _simple(b):
        return _numbers(function, a, b)
    turns = [(a, _COMPARISONS[op], b), (b, _COMPARISONS[_MIRROR[op]], a)]
    if type(a) is not type(b) and issubclass(type(b), type(a)):
        turns.reverse()
    asked = []
    for owner, name, other in turns:
        method = python_method(rec, owner, name)
        inverted = name == "__ne__" and on_class(type(owner), name) is object.__ne__
        if inverted:
            method = python_method(rec, owner, "__eq__")
        if method is not None:
            result = rec.call(method, (owner, other), {})
            if result is not NotImplemented and inverted:
                return not branches.truth(rec, result)
            if result is not NotImplemented:
                return result
            asked.append((owner, name))
    left, right = _answered(a, b, asked)
    names = ("__eq__", "__ne__", "__lt__", "__gt__", "__le__", "__ge__")
    c_calls.check(rec, names, *(each for each in (left, right) if each is a or each is b))
    _contents(rec, a, b)
    return rec.once(function, (left, right))


def _identity(rec: Recorder, function: Callable[..., Any], a: Any, b: Any) -> Any:
    """Two objects from outside are compared: that they are two becomes part of the guards."""
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        rec.identity_asked = True
    if a is b:
        return function(a, b)
    a, b = (
        scalars.concretize_scalar(value) if type(value) in scalars.TRACED else value
        for value in (a, b)
    )
    if not is_constant(a) and not is_constant(b):
        rec.known.assume_distinct(a, b)
    return function(a, b)


def _membership(rec: Recorder, op: str, function: Callable[..., Any], a: Any, b: Any) -> Any:
    method = python_method(rec, b, "__contains__")
    if method is not None:
        found = branches.truth(rec, rec.call(method, (b, a), {}))
        return found if op == "in" else not found
    if isinstance(b, list | tuple) and not all(map(is_constant, (a, *b))):
        found = _is_among(rec, a, b)
        return found if op == "in" else not found
    c_calls.check(rec, ("__eq__", "__hash__"), a, b)
    if not rec.active:
        return rec.once(function, (a, b))
    if on_class(type(b), "__contains__") is MISSING:
        c_calls.check(rec, ("__iter__", "__getitem__"), b)
    if isinstance(b, HASHING):
        items.guard_key(rec, b, a)
    if not (isinstance(b, MAPPINGS) and items.lacks(rec, b, a)):
        _contents(rec, b)
    looked_in = b if type(b) is dict else concretize(b)  # of a dict the keys alone, which are plain
    return rec.once(
        function, (scalars.concretize_scalar(a) if type(a) in scalars.TRACED else a, looked_in)
    )


def _is_among(rec: Recorder, a: Any, values: Any) -> bool:
    """`a in values` of a list or tuple, as C does it: the very object, or an equal one. What
    stands behind it may change."""
    for index in range(len(values)):
        value = items.load(rec, values, index)
        if _identity(rec, operator.is_, value, a):
            return True
        if branches.truth(rec, compare(rec, "==", operator.eq, value, a)):
            return True
    items.guard_structure(rec, values)
    return False


class Ordered:
    """A value that C code sorts: what its `<` runs is recorded."""

    __slots__ = ("rec", "value")

    def __init__(self, rec: Recorder, value: Any) -> None:
        self.rec, self.value = rec, value

    def __lt__(self, other: "Ordered") -> bool:
        return branches.truth(
            self.rec, compare(self.rec, "<", operator.lt, self.value, other.value)
        )


def ordered(rec: Recorder, value: Any) -> Any:
    """The value as C code sorts it, or what does so as the user's own code would."""
    own = any(c_calls.runs_python(type(value), name) for name in ("__lt__", "__gt__"))
    if not own:
        c_calls.check(rec, ("__lt__",), value)
        items.guard_content(rec, value)
    return Ordered(rec, value) if own else value
