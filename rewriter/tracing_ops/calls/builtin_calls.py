"""Builtins that look into objects, call back, or turn tensors into numbers: each does while
recording what it does in Python."""

import abc
import builtins
import collections
import functools
import operator
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

import torch

from ....runtime.guards.guard import Is
from ....runtime.programs.recipes import Apply, ConstRecipe
from ... import catalogue
from ...capture.deep_calls import recursion_limit
from ...capture.guarded_kinds import is_constant
from ...capture.nested import concretize
from ...capture.numbers import scalars, traced_arrays
from ...capture.recording import may_be_made
from ...capture.trace import Recorder
from .. import (
    attribute_ops,
    binaries,
    branches,
    c_calls,
    frame_reads,
    items,
    iteration,
    iterator_tools,
    texts,
)
from ..lookup import guard_bases, guard_classes, is_stable, on_class, python_method
from .stand_ins import until


def call(rec: Recorder, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return HANDLERS[function](rec, *args, **kwargs)


def _getattr(rec: Recorder, obj: Any, name: str, *default: Any) -> Any:
    try:
        return attribute_ops.load(rec, obj, concretize(name))
    except AttributeError:
        if default:
            return default[0]
        raise


def _setattr(rec: Recorder, obj: Any, name: str, value: Any) -> None:
    attribute_ops.store(rec, obj, concretize(name), value)


def _delattr(rec: Recorder, obj: Any, name: str) -> None:
    attribute_ops.delete(rec, obj, concretize(name))


def _isinstance(rec: Recorder, obj: Any, classes: Any) -> bool:
    """Types are guarded when objects are loaded; traced scalars answer for the type that they stand
    for."""
    items.guard_arguments(rec, (classes,), {})
    if _checks(rec, classes, "__instancecheck__"):
        return any(_asked(rec, obj, each, "__instancecheck__") for each in _flat(classes))
    guard_bases(rec, type(obj))
    for name in _asked_for(classes):
        attribute_ops.exists(rec, obj, name)
    found = rec.once(isinstance, (obj, classes))
    if issubclass(type(obj), classes) == found:
        _guard_registered(rec, type(obj), classes)
    return found


def _issubclass(rec: Recorder, cls: type, classes: Any) -> bool:
    items.guard_arguments(rec, (cls, classes), {})
    if _checks(rec, classes, "__subclasscheck__"):
        return any(_asked(rec, cls, each, "__subclasscheck__") for each in _flat(classes))
    if isinstance(cls, type):
        guard_bases(rec, cls)
        _guard_registered(rec, cls, classes)
    return rec.once(issubclass, (cls, classes))


def _checks(rec: Recorder, classes: Any, name: str) -> bool:
    """Whether a metaclass in Python decides what belongs to one of the classes."""
    found = False
    for cls in _flat(classes):
        check = on_class(type(cls), name)
        if not is_stable(type(cls)):
            guard_classes(rec, type(cls), name)
        found |= isinstance(check, types.FunctionType) and not is_stable(check)
    return found


def _guard_registered(rec: Recorder, cls: type, classes: Any) -> None:
    """A class of the user's may be registered with an abstract one between two calls."""
    if any(type(each) is abc.ABCMeta and not is_stable(each) for each in _flat(classes)):
        known = Apply(issubclass, (ConstRecipe(cls), ConstRecipe(classes)))
        rec.outcomes.append((0, known, issubclass(cls, classes)))


def _asked_for(classes: Any) -> Iterator[str]:
    """The names that protocols among the classes look for."""
    for each in _flat(classes):
        if getattr(each, "_is_protocol", False):
            names = (name for base in each.__mro__[:-1] for name in vars(base))
            yield from (name for name in names if not name.startswith("_"))


def _flat(classes: Any) -> Iterator[Any]:
    for each in classes if isinstance(classes, tuple) else (classes,):
        each = each.__args__ if isinstance(each, types.UnionType) else each
        yield from _flat(each) if isinstance(each, tuple) else (each,)


def _asked(rec: Recorder, obj: Any, cls: Any, name: str) -> bool:
    """What the metaclass of `cls` answers by its method `name`; an object of the very class it does
    not ask for."""
    asks, check = name == "__instancecheck__", on_class(type(cls), name)
    if (asks and type(obj) is cls) or not isinstance(check, types.FunctionType) or is_stable(check):
        return isinstance(obj, cls) if asks else issubclass(obj, cls)
    return branches.truth(rec, rec.call(check, (cls, obj), {}))


def _callable(rec: Recorder, obj: Any) -> bool:
    items.guard_arguments(rec, (obj,), {})
    python_method(rec, obj, "__call__")
    return callable(obj)


def _type(rec: Recorder, obj: Any, *more: Any, **kwargs: Any) -> Any:
    if more:
        return frame_reads.new_class(obj, *more, **kwargs)
    rec.known.touch(obj)
    return type(scalars.plain(obj))


def _len(rec: Recorder, obj: Any) -> int:
    if isinstance(obj, torch.Tensor) and obj.dim():
        return obj.shape[0]
    if type(obj) in scalars.TRACED:
        return len(scalars.concretize_scalar(obj))
    made = traced_arrays.entry(rec, obj)
    if made is not None and obj.ndim:
        return made.tensor.shape[0]
    method = None if isinstance(obj, torch.Tensor) else python_method(rec, obj, "__len__")
    if method is not None:
        answer: Any = rec.call(method, (obj,), {})
        traced = type(answer) in scalars.TRACED and isinstance(answer, int)
        if traced and answer >= 0:
            return answer  # type: ignore[no-any-return]
        return c_calls.given(rec, len, obj, "__len__", answer)  # type: ignore[no-any-return]
    items.guard_structure(rec, obj)
    return rec.once(len, (obj,))


def _number(cls: Any) -> Callable[..., Any]:
    """`float(t)`, `int(t)`: the traced scalar of a tensor, or of another traced scalar."""

    def convert(rec: Recorder, *args: Any, **kwargs: Any) -> Any:
        args = tuple(traced_arrays.as_one(rec, arg) for arg in args)
        if (
            len(args) == 1
            and not kwargs
            and isinstance(args[0], torch.Tensor)
            and args[0].numel() == 1
        ):
            number = args[0].long() if args[0].dtype is torch.bool else args[0]
            return scalars.apply(cls, number.item())
        if len(args) == 1 and type(args[0]) in scalars.TRACED:
            return args[0] if isinstance(args[0], cls) else scalars.apply(cls, args[0])
        method = python_method(rec, args[0], f"__{cls.__name__}__") if len(args) == 1 else None
        if method is not None:
            made = rec.call(method, (args[0],), {})
            if type(made) in scalars.TRACED and isinstance(made, cls):
                return made
            return c_calls.given(rec, cls, args[0], f"__{cls.__name__}__", made)
        items.guard_arguments(rec, args, kwargs)
        return cls(*concretize(args), **concretize(kwargs))

    return convert


def _bool(rec: Recorder, *args: Any) -> bool:
    return branches.truth(rec, *args) if args else False


def _text(ask: Callable[..., str]) -> Callable[..., str]:
    """`str` or `repr`."""

    def run(rec: Recorder, *args: Any, **kwargs: Any) -> str:
        if len(args) == 1 and type(args[0]) in scalars.TRACED:
            return scalars.apply(ask, args[0])  # type: ignore[no-any-return]
        if len(args) == 1 and isinstance(args[0], torch.Tensor):
            return texts.traced_text(rec, ask, args[0])  # type: ignore[no-any-return]
        items.guard_arguments(rec, args, kwargs)
        args = concretize(args)
        plain = torch.nn.Module | torch.Tensor | BaseException
        if len(args) == 1 and not isinstance(args[0], plain):
            has_own = on_class(type(args[0]), "__str__") is not object.__str__
            name = "__str__" if has_own and ask is str else "__repr__"
            method = python_method(rec, args[0], name)
            if method is not None and not c_calls.is_generated(method):
                made: Any = rec.call(method, (args[0],), {})
                kept = type(made) in scalars.TRACED and isinstance(made, str)
                return made if kept else c_calls.given(rec, ask, args[0], name, made)  # type: ignore[no-any-return]
            c_calls.check(rec, ("__repr__",), args[0])
        return rec.once(ask, args, kwargs)

    return run


def _rounded(rec: Recorder, number: Any, ndigits: Any = None) -> Any:
    if ndigits is None:
        return binaries.unary_call(rec, round, "__round__", number)
    method = python_method(rec, number, "__round__")
    if method is not None:
        return rec.call(method, (number, ndigits), {})
    return rec.once(round, (number, scalars.concretize_scalar(ndigits)))


def _iter(rec: Recorder, obj: Any, *sentinel: Any) -> Any:
    if sentinel:
        return rec.call(until, (obj, *sentinel), {})
    return rec.once(iter, (iteration.over(rec, obj),))


def _reversed(rec: Recorder, value: Any) -> Any:
    if iteration.is_enumeration(value):
        return reversed(list(value))
    method = python_method(rec, value, "__reversed__")
    if method is not None:
        return rec.call(method, (value,), {})
    if python_method(rec, value, "__getitem__") is not None:
        size = _len(rec, value)
        return map(functools.partial(_at, rec, value), range(size - 1, -1, -1))
    items.guard_structure(rec, value)
    return rec.once(reversed, (value,))


def _at(rec: Recorder, sequence: Any, index: int) -> Any:
    return rec.safely(lambda: items.load(rec, sequence, index), lambda: sequence[index])


def _dict(rec: Recorder, /, *args: Any, **kwargs: Any) -> dict[Any, Any]:
    mapped = [isinstance(arg, dict) or hasattr(type(arg), "keys") for arg in args]
    taken = [
        iteration.pairs(rec, arg)
        if is_mapping
        else [tuple(iteration.stepwise(rec, pair)) for pair in iteration.stepwise(rec, arg)]
        for arg, is_mapping in zip(args, mapped, strict=True)
    ]
    return rec.once(dict, taken, kwargs)


def _any(rec: Recorder, iterable: Any) -> bool:
    return any(branches.truth(rec, value) for value in iteration.stepwise(rec, iterable))


def _all(rec: Recorder, iterable: Any) -> bool:
    return all(branches.truth(rec, value) for value in iteration.stepwise(rec, iterable))


def _with_callback(function: Any) -> Callable[..., Any]:
    """Builtins that call their first argument back: it must run rewritten."""

    def run(rec: Recorder, callback: Any, *iterables: Any) -> Any:
        wrapped = None if callback is None else rec.rewriter.callback(rec, callback)
        return rec.once(function, (wrapped, *(iteration.over(rec, part) for part in iterables)))

    return run


def _reduce(rec: Recorder, callback: Any, iterable: Any, *initial: Any) -> Any:
    values = iteration.over(rec, iterable)
    return rec.once(functools.reduce, (rec.rewriter.callback(rec, callback), values, *initial))


def _sum(rec: Recorder, iterable: Any, start: Any = 0) -> Any:
    """Added as Python code would: C's own loop over floats reads the digits of traced numbers."""
    values: list[Any] = rec.once(list, (iteration.over(rec, iterable),))
    if all(map(is_constant, (start, *values))):
        return sum(values, start)
    total = start
    for value in values:
        total = binaries.binary(rec, "+", operator.add, total, value)
    return total


def _sorted(rec: Recorder, iterable: Any, *, key: Any = None, reverse: Any = False) -> list[Any]:
    values: list[Any] = rec.once(list, (iteration.over_whole(rec, iterable),))
    keys = concretize(
        [rec.call(key, (value,), {}) for value in values] if key is not None else values
    )
    keys = [binaries.ordered(rec, each) for each in keys]
    order = rec.once(sorted, (range(len(values)),), {"key": keys.__getitem__, "reverse": reverse})
    return [values[index] for index in order]


def _extreme(op: str, function: Any) -> Callable[..., Any]:
    """`min`, `max`: the first that no other is `op`; compared one by one, as Python does."""

    def run(rec: Recorder, *args: Any, key: Any = None, **default: Any) -> Any:
        if (len(args) != 1 and default) or default.keys() - {"default"}:
            return function(*args, key=key, **default)  # it raises
        several = args[0] if len(args) == 1 and type(args[0]) in (list, tuple) else args
        if key is None and not default and _are_read_numbers(tuple(several)):
            return functools.reduce(lambda a, b: scalars.apply(function, a, b), several)
        if len(args) != 1:
            return best_of(rec, iter(args), key, default)
        return best_of(rec, iteration.stepwise(rec, args[0]), key, default)

    def best_of(rec: Recorder, values: Iterator[Any], key: Any, default: Any) -> Any:
        measure: Callable[[Any], Any] = (
            (lambda value: value) if key is None else (lambda value: rec.call(key, (value,), {}))
        )
        best = next(values, _NOTHING)
        if best is _NOTHING:
            return function((), **default)
        most = measure(best)
        for value in values:
            measured = measure(value)
            if branches.truth(rec, binaries.compare(rec, op, _COMPARE[op], measured, most)):
                best, most = value, measured
        return best

    return run


def _are_read_numbers(args: tuple[Any, ...]) -> bool:
    """Several numbers, of which some are read from tensors and none follows from sizes: which is
    the largest need not be known to go on."""
    numbers = all(isinstance(arg, int | float) for arg in args)
    sized = any(scalars.size_form(arg) is not None for arg in args)
    return numbers and not sized and len(args) > 1 and any(map(scalars.is_live, args))


_NOTHING = object()
_COMPARE = {"<": operator.lt, ">": operator.gt}


def _super(rec: Recorder, *args: Any) -> Any:
    return super(*args)


def _id(rec: Recorder, obj: Any) -> int:
    """Constant for an object from outside, which is guarded to be that one."""
    path = rec.known.path_of(obj)
    if path is None or isinstance(obj, torch.Tensor):
        rec.stop(catalogue.UNSUPPORTED, "id() of an object")
    else:
        rec.known.guard(path, Is(obj))
    return id(obj)


def _hash(rec: Recorder, obj: Any) -> int:
    method = python_method(rec, obj, "__hash__")
    if method is None:
        return rec.once(hash, (obj,))
    answer = rec.call(method, (obj,), {})
    return c_calls.given(rec, hash, obj, "__hash__", answer)  # type: ignore[no-any-return]


def _of_process(function: Callable[[], Any]) -> Callable[..., Any]:
    """What the process is set to: asked again, and compared, at every later call."""
    return lambda rec: rec.outcome(Apply(function, ()), function())


def _vars(rec: Recorder, *args: Any) -> Any:
    if len(args) == 1:
        return attribute_ops.load(rec, args[0], "__dict__")
    rec.stop(catalogue.UNSUPPORTED, "vars()")
    return vars(*args)


def asks_subclasses(function: Any) -> bool:
    """Whether it is `cls.__subclasses__`."""
    if type(function) is not types.BuiltinMethodType or function.__name__ != "__subclasses__":
        return False
    return isinstance(function.__self__, type)


def subclasses(
    rec: Recorder, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> list[type]:
    """Asked again, and compared, at every later call."""
    found = rec.once(function, args, kwargs)
    if any(map(functools.partial(may_be_made, rec), found)):
        rec.stop(catalogue.UNSUPPORTED, "subclasses that the call makes")
        return found  # type: ignore[no-any-return]
    rec.outcomes.append((0, Apply(function, ()), list(found)))
    return found  # type: ignore[no-any-return]


def _from_keys(cls: Any) -> Callable[..., Any]:
    def run(rec: Recorder, iterable: Any, /, *value: Any, **named: Any) -> Any:
        keys = concretize(rec.once(list, (iteration.over(rec, iterable),)))
        return rec.once(cls.fromkeys, (keys, *value), named)

    return run


def _count_elements(rec: Recorder, mapping: Any, iterable: Any) -> None:
    """What `Counter.update` has C code do."""
    for element in iteration.stepwise(rec, iterable):
        items.store(rec, mapping, element, rec.call(mapping.get, (element, 0), {}) + 1)


def _new_tuple(rec: Recorder, cls: Any, *iterable: Any) -> Any:
    """`tuple.__new__`, by which named tuples are made."""
    return tuple.__new__(cls, *(rec.once(tuple, (iteration.over(rec, p),)) for p in iterable))


def _new_value(new: Callable[..., Any]) -> Callable[..., Any]:
    """`float.__new__`, by which subclasses make their objects."""
    return lambda rec, cls, *args, **kwargs: new(cls, *concretize(args), **concretize(kwargs))


def _bound_method(rec: Recorder, *parts: Any) -> Any:
    """Asks neither the function nor the object for anything."""
    return types.MethodType(*parts)


def _simple_namespace(rec: Recorder, *mapping: Any, **values: Any) -> Any:
    items.guard_arguments(rec, mapping, {})
    return types.SimpleNamespace(*mapping, **values)


def _exc_info(rec: Recorder) -> Any:
    if sys.exc_info() != (None, None, None):
        rec.stop(catalogue.UNSUPPORTED, "sys.exc_info() while an exception is handled")
    return sys.exc_info()


HANDLERS: dict[Any, Callable[..., Any]] = {
    builtins.getattr: _getattr,
    builtins.setattr: _setattr,
    builtins.delattr: _delattr,
    builtins.hasattr: attribute_ops.exists,
    builtins.callable: _callable,
    builtins.isinstance: _isinstance,
    builtins.issubclass: _issubclass,
    builtins.type: _type,
    builtins.len: _len,
    builtins.float: _number(float),
    builtins.int: _number(int),
    builtins.bool: _bool,
    builtins.str: _text(str),
    builtins.repr: _text(repr),
    builtins.round: _rounded,
    builtins.abs: lambda rec, value: binaries.unary_call(rec, abs, "__abs__", value),
    builtins.divmod: lambda rec, a, b: binaries.binary(rec, "divmod", divmod, a, b),
    builtins.iter: _iter,
    builtins.next: iteration.advance,
    builtins.list: iterator_tools.over_all(list, iteration.over_whole),
    builtins.tuple: iterator_tools.over_all(tuple, iteration.over_whole),
    builtins.set: iterator_tools.set_of(set),
    builtins.frozenset: iterator_tools.set_of(frozenset),
    builtins.zip: iterator_tools.over_all(zip),
    builtins.enumerate: iterator_tools.over_first(enumerate),
    builtins.sum: _sum,
    builtins.reversed: _reversed,
    builtins.dict: _dict,
    builtins.any: _any,
    builtins.all: _all,
    builtins.map: _with_callback(map),
    builtins.filter: _with_callback(filter),
    functools.reduce: _reduce,
    builtins.sorted: _sorted,
    builtins.min: _extreme("<", min),
    builtins.max: _extreme(">", max),
    builtins.super: _super,
    builtins.id: _id,
    builtins.hash: _hash,
    builtins.vars: _vars,
    dict.fromkeys: _from_keys(dict),
    collections.OrderedDict.fromkeys: _from_keys(collections.OrderedDict),
    collections.defaultdict.fromkeys: _from_keys(collections.defaultdict),
    tuple.__new__: _new_tuple,
    **{
        kind.__new__: _new_value(kind.__new__)
        for kind in (int, float, complex, str, bytes, list, dict, set)
    },
    types.MethodType: _bound_method,
    types.SimpleNamespace: _simple_namespace,
    sys.exc_info: _exc_info,
    collections._count_elements: _count_elements,  # type: ignore[attr-defined]
    sys.getrecursionlimit: _of_process(recursion_limit),
    **iterator_tools.HANDLERS,
}
