"""Objects made while recording: `__new__` as it is, `__init__` rewritten where it is Python with
source."""

import collections
import dataclasses
import functools
import inspect
import types
from typing import Any

import torch

from ... import catalogue
from ...capture.nested import concretize
from ...capture.numbers import scalars
from ...capture.trace import Recorder
from .. import attribute_ops, c_calls, items, iteration
from ..lookup import (
    SpecialMethod,
    guard_classes,
    is_stable,
    on_class,
    python_method,
    special_method,
)

Args = tuple[Any, ...]
Kwargs = dict[str, Any]


def call_class(rec: Recorder, cls: type, args: Args, kwargs: Kwargs) -> Any:
    """`cls(*args, **kwargs)`, by the metaclass's `__call__` where there is one in Python."""
    if on_class(type(cls), "__call__") is not type.__call__:
        method = python_method(rec, cls, "__call__")
        if method is not None:
            return rec.call(method, (cls, *args), kwargs)
        return rec.by_c(cls, concretize(args), concretize(kwargs))
    return construct(rec, cls, args, kwargs)


def construct(rec: Recorder, cls: type, args: Args, kwargs: Kwargs) -> Any:
    """`type.__call__(cls, *args, **kwargs)`."""
    if c_calls.runs_python(cls, "__del__"):
        # nobody else may hold the object, and who lets go of it last is not seen
        rec.stop(catalogue.UNSUPPORTED, f"{cls.__qualname__}.__del__ is called by C code")
    new, init = on_class(cls, "__new__"), on_class(cls, "__init__")
    method = special_method(init)
    for name, found in (("__new__", _function(new)), ("__init__", method or init)):
        if isinstance(found, types.FunctionType | SpecialMethod):
            guard_classes(rec, cls, name)
    written = isinstance(method, SpecialMethod) or (
        isinstance(init, types.FunctionType) and not _is_generated(cls, init)
    )
    if not written and not _is_written(new):
        return _by_c(rec, cls, init, args, kwargs)
    made = _new(rec, cls, new, args, kwargs)
    if isinstance(made, cls) and written:
        answer = rec.call(method or init, (made, *args), kwargs)
        if answer is not None:
            c_calls.given(rec, type, made, "__init__", answer)
    elif isinstance(made, cls) and init is not object.__init__:
        rec.once(init, (made, *concretize(args)), concretize(kwargs))
    return made


def _by_c(rec: Recorder, cls: Any, init: Any, args: Args, kwargs: Kwargs) -> Any:
    """By code that is C's, or generated. What it does not just keep, it reads."""
    items.guard_arguments(rec, args, kwargs)
    guard_classes(rec, cls, "__post_init__")
    generated = isinstance(init, types.FunctionType)
    if generated and hasattr(cls, "__dataclass_fields__"):
        return _initialised(rec, cls, init, args, kwargs)
    generated |= isinstance(_function(on_class(cls, "__new__")), types.FunctionType)
    make = _as_type(cls)
    if generated or issubclass(cls, _KEEPING):
        return rec.once(make, args, kwargs)
    if issubclass(cls, _FILLED):
        args = (*(iteration.over(rec, each) for each in args[:1]), *args[1:])
        settled = {name: _settled_number(value) for name, value in kwargs.items()}
        return rec.by_c(make, tuple(map(_settled_number, args)), settled)
    return rec.by_c(make, concretize(args), concretize(kwargs))


def _as_type(cls: Any) -> Any:
    """What makes an object as `type.__call__` does: a metaclass may do more, and has."""
    own = on_class(type(cls), "__call__") is type.__call__
    return cls if own else functools.partial(type.__call__, cls)


def _settled_number(value: Any) -> Any:
    """A number of its own is read (how long a deque may be); those in a container are kept."""
    return concretize(value) if type(value) in scalars.TRACED else value


_FILLED = (list, tuple, set, frozenset, collections.deque)
_KEEPING = (
    dict,
    BaseException,
    functools.partial,
    types.SimpleNamespace,
    types.MethodType,
    torch.Tensor,
)


def _function(new: Any) -> Any:
    return new.__func__ if isinstance(new, staticmethod) else new


def _is_written(new: Any) -> bool:
    """Whether `__new__` is Python that somebody wrote."""
    function = _function(new)
    return isinstance(function, types.FunctionType) and not c_calls.is_generated(function)


def _new(rec: Recorder, cls: type, new: Any, args: Args, kwargs: Kwargs) -> Any:
    function = _function(new)
    if isinstance(function, types.FunctionType):
        return rec.call(function, (cls, *args), kwargs)
    made: Any = cls.__new__
    if function is object.__new__:
        return rec.once(made, (cls,))
    return rec.once(made, (cls, *args), kwargs)


def _is_generated(cls: type, init: types.FunctionType) -> bool:
    """dataclass and namedtuple write their methods from the fields alone."""
    return init.__code__.co_filename.startswith("<") or (
        issubclass(cls, tuple) and hasattr(cls, "_fields")
    )


# -- dataclasses


def _initialised(
    rec: Recorder, cls: type, init: types.FunctionType, args: Args, kwargs: Kwargs
) -> Any:
    """An instance of a dataclass. Where its generated `__init__` calls the user's code, what it
    does is done here, and that code runs rewritten."""
    owner: Any = next(base for base in cls.__mro__ if base.__dict__.get("__init__") is init)
    fields = getattr(owner, "__dataclass_fields__", {})
    ends = "__post_init__" in init.__code__.co_names and on_class(cls, "__post_init__")
    stores = c_calls.runs_python(cls, "__setattr__") and not owner.__dataclass_params__.frozen
    if not (ends or stores or any(_asks_user(cls, field) for field in fields.values())):
        return rec.once(_as_type(cls), args, kwargs)
    made = rec.once(cls.__new__, (cls,))
    initialise(rec, owner, init, (made, *args), kwargs)
    return made


def initialised_class(function: types.FunctionType, args: Args) -> type | None:
    """The dataclass whose generated `__init__`, which its class may have wrapped, `function` is;
    `args[0]` is an instance."""
    if not args or function.__name__ != "__init__" or not c_calls.is_generated(function):
        return None
    for base in type(args[0]).__mro__:
        init = base.__dict__.get("__init__")
        if "__dataclass_fields__" in base.__dict__ and _wraps(init, function):
            return base
    return None


def _wraps(outer: Any, function: types.FunctionType) -> bool:
    return outer is not None and inspect.unwrap(outer, stop=lambda f: f is function) is function


def initialise(
    rec: Recorder, owner: Any, init: types.FunctionType, args: Args, kwargs: Kwargs
) -> None:
    """`init(*args, **kwargs)`, the generated `__init__` of the dataclass `owner`."""
    made, fields = args[0], owner.__dataclass_fields__
    try:
        bound = inspect.signature(init).bind(*args, **kwargs)
    except TypeError:
        return rec.once(init, args, kwargs)  # type: ignore[no-any-return] # raises, as Python
    bound.apply_defaults()
    given = dict(list(bound.arguments.items())[1:])
    for field in fields.values():
        if field._field_type is not dataclasses._FIELD_CLASSVAR:  # type: ignore[attr-defined]
            _set_field(rec, made, owner, field, given)
    if "__post_init__" in init.__code__.co_names:
        guard_classes(rec, type(made), "__post_init__")
        rec.call(on_class(type(made), "__post_init__"), (made, *_init_only(fields, given)), {})


def _asks_user(cls: type, field: Any) -> bool:
    factory = field.default_factory
    made = isinstance(factory, types.FunctionType) or (
        isinstance(factory, type) and not is_stable(factory)
    )
    placed = on_class(cls, field.name)
    return (made and not is_stable(factory)) or (
        placed is not field.default and c_calls.runs_python(type(placed), "__set__")
    )


def _set_field(rec: Recorder, made: Any, owner: Any, field: Any, given: dict[str, Any]) -> None:
    if field.init:
        value = given[field.name]
    elif field.default_factory is not dataclasses.MISSING:
        value = dataclasses._HAS_DEFAULT_FACTORY  # type: ignore[attr-defined]
    elif field.default is dataclasses.MISSING or not isinstance(
        owner.__dict__.get(field.name), types.MemberDescriptorType
    ):
        return
    else:
        value = field.default
    if value is dataclasses._HAS_DEFAULT_FACTORY:  # type: ignore[attr-defined]
        value = rec.call(field.default_factory, (), {})
    if field._field_type is dataclasses._FIELD_INITVAR:  # type: ignore[attr-defined]
        given[field.name] = value
    elif owner.__dataclass_params__.frozen:
        rec.call(object.__setattr__, (made, field.name, value), {})
    else:
        attribute_ops.store(rec, made, field.name, value)


def _init_only(fields: dict[str, Any], given: dict[str, Any]) -> list[Any]:
    init_only = dataclasses._FIELD_INITVAR  # type: ignore[attr-defined]
    return [given[name] for name, field in fields.items() if field._field_type is init_only]
