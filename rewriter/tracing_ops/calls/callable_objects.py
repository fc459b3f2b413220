"""Calls of objects of the standard library that stand for a function or an object: partials,
caches, weak references."""

import contextlib
import functools
import types
import weakref
from typing import Any

import torch

from ....runtime.guards.guard import Attr, Item, Keys, Length, Obj, Referent
from ....runtime.programs.recipes import (
    Apply,
    CannotRebuild,
    ConstRecipe,
    HostCall,
    HostValue,
    RecipeMaker,
)
from ... import catalogue
from ...capture.guarded_kinds import is_constant
from ...capture.nested import concretize, plain_in, tensors_in
from ...capture.recording import leaf
from ...capture.trace import Recorder
from .. import c_calls
from ..lookup import (
    PLAIN_TYPES,
    SpecialMethod,
    is_stable,
    module_name,
    on_class,
    python_getter,
    python_method,
    special_method,
)
from ..texts import show

Args = tuple[Any, ...]
Kwargs = dict[str, Any]


def call_partial(rec: Recorder, function: Any, args: Args, kwargs: Kwargs) -> Any:
    path = rec.known.touch(function)
    if path is None:
        return rec.call(function.func, (*function.args, *args), {**function.keywords, **kwargs})
    inner = rec.known.loaded(function.func, Attr(path, "func"))
    given, named = Attr(path, "args"), Attr(path, "keywords")
    rec.known.guard(given, Length(len(function.args)))
    rec.known.guard(named, Keys(tuple(function.keywords)))
    args = (
        *(rec.known.loaded(value, Item(given, i)) for i, value in enumerate(function.args)),
        *args,
    )
    keywords = {
        name: rec.known.loaded(value, Item(named, name))
        for name, value in function.keywords.items()
    }
    return rec.call(inner, args, {**keywords, **kwargs})


def call_parametrised(rec: Recorder, function: Any, args: Args, kwargs: Kwargs) -> Any:
    """`list[int]()`: what the type itself makes, which remembers the parameters if it can."""
    made = rec.call(function.__origin__, args, kwargs)
    if type(made).__dictoffset__:
        with contextlib.suppress(AttributeError, TypeError):
            rec.call(setattr, (made, "__orig_class__", function), {})
    return made


def call_cached(rec: Recorder, function: Any, args: Args, kwargs: Kwargs) -> Any:
    """Asked for real, and again at every later call that has done nothing before; another answer
    than the recorded one is another recording's. A tensor of the call's own is in no cache."""
    if any(rec.known.path_of(tensor) is None for tensor in tensors_in((args, kwargs))):
        return rec.call(function.__wrapped__, args, kwargs)
    if rec.rewriter.made_in_call(rec, function.__wrapped__):
        rec.stop(catalogue.UNSUPPORTED, "a cache that the call makes is read")
        return rec.once(function, plain_in(args), plain_in(kwargs))
    if any(isinstance(v, str) for v in args) and "once" in getattr(function, "__name__", ""):
        return show(rec, function, args, kwargs)
    rec.before_change()
    call = None if rec.effects else _call(rec, function, args, kwargs)
    with rec.paused():
        result = rec.once(function, plain_in(args), plain_in(kwargs))
    if call is None:
        rec.only_here = rec.only_here or "what a cache gives"
        concretize((args, kwargs))
    elif result is not None and is_constant(result):
        return concretize(rec.host_call(call, result))
    elif not is_stable(function.__wrapped__):
        rec.host_call(call, None)
        rec.outcome(Apply(_is_answer, (HostValue(call), ConstRecipe(result))), True)
    _place_answer(rec, result, f"{getattr(function, '__name__', '')}()")
    return result


def _is_answer(answer: Any, seen: Any) -> bool:
    """Whether a cache gave what it gave before, or, if it has forgotten it, what nobody can tell
    from it."""
    if type(answer) is tuple and type(seen) is tuple and len(answer) == len(seen):
        return all(map(_is_answer, answer, seen))
    return answer is seen or (
        type(answer) is type(seen) and is_constant(seen) and bool(answer == seen)
    )


def _place_answer(rec: Recorder, answer: Any, source: str) -> None:
    """What the answer holds is an object that later calls use again; reads of it are guarded."""
    if type(answer) is tuple:
        for part in answer:
            _place_answer(rec, part, source)
    elif not is_constant(answer):
        rec.known.fixed(answer, Obj(answer, source))


def _call(rec: Recorder, function: Any, args: Args, kwargs: Kwargs) -> HostCall | None:
    """The call as a later one makes it, if the arguments can be made again."""
    maker = RecipeMaker(lambda part: leaf(rec, part))
    try:
        keywords = {name: maker.recipe(value) for name, value in kwargs.items()}
        return HostCall(function, tuple(map(maker.recipe, args)), keywords)
    except CannotRebuild:
        return None


def is_weak_reference(function: Any) -> bool:
    """A weak reference, or what calls one of a subclass in Python."""
    if type(function) is types.MethodWrapperType:
        return function.__name__ == "__call__" and isinstance(function.__self__, weakref.ref)
    return isinstance(function, weakref.ref) and type(function).__call__ is weakref.ref.__call__


def call_weak_reference(rec: Recorder, function: Any, args: Args, kwargs: Kwargs) -> Any:
    """What a weak reference leads to is read, by a path through it."""
    target = rec.once(function, args, kwargs)
    reference = function if isinstance(function, weakref.ref) else function.__self__
    path = rec.known.touch(reference)
    if path is not None:
        return rec.known.loaded(target, Referent(path))
    if target is None:
        rec.stop(catalogue.UNSUPPORTED, "a weak reference that the call made is dead")
    return target


def runs_users_code(function: Any) -> bool:
    """Whether calling it runs Python code that is no library's."""
    if type(function) is functools.partial:
        return runs_users_code(function.func)
    target = getattr(function, "__func__", function)
    if not isinstance(target, types.FunctionType):
        target = python_method(None, function, "__call__")
    if target is None or is_stable(target):
        return False
    return module_name(target).partition(".")[0] != __name__.partition(".")[0]


def call_special(rec: Recorder, function: SpecialMethod, args: Args, kwargs: Kwargs) -> Any:
    """A special method that is no function: bound as Python does, by code of the user's perhaps,
    then called."""
    found, obj = function.descriptor, args[0]
    getter = python_getter(found)
    if getter is not None:
        bound = rec.call(getter, (found, obj, type(obj)), {})
    elif isinstance(found, property) and found.fget is not None:
        bound = rec.call(found.fget, (obj,), {})
    else:
        bound = function.bound(obj)
    return rec.call(bound, args[1:], kwargs)


def answers_itself(function: Any) -> bool:
    """Whether asking a callable what it is may run code of the user's: nobody but its class is
    asked."""
    cls = type(function)
    if cls in PLAIN_TYPES or issubclass(cls, torch.nn.Module | type):
        return False
    if special_method(on_class(cls, "__call__")) is None:
        return False
    return any(c_calls.runs_python(cls, name) for name in _QUESTIONS)


_QUESTIONS = ("__getattr__", "__getattribute__", "__eq__", "__hash__")
