"""The object `__df` of rewritten source: one method for each construct.

With no recording at work each method does exactly what Python does; else it hands over to the
recorder's side of the construct.
"""

import operator
import types
from collections.abc import Callable
from typing import Any

from ..capture import process_bound
from ..capture.current import family, recorder
from ..capture.nested import concretize, plain_where_they_are
from . import (
    attribute_ops,
    binaries,
    branches,
    contexts,
    frame_reads,
    items,
    iteration,
    matching,
    name_ops,
    texts,
)
from .calls import call_ops, callable_objects, log_calls, open_calls

_BINARY = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "//": operator.floordiv,
    "%": operator.mod,
    "**": operator.pow,
    "@": operator.matmul,
    "<<": operator.lshift,
    ">>": operator.rshift,
    "&": operator.and_,
    "|": operator.or_,
    "^": operator.xor,
}
_INPLACE: dict[str, Callable[[Any, Any], Any]] = {
    "+=": operator.iadd,
    "-=": operator.isub,
    "*=": operator.imul,
    "/=": operator.itruediv,
    "//=": operator.ifloordiv,
    "%=": operator.imod,
    "**=": operator.ipow,
    "@=": operator.imatmul,
    "<<=": operator.ilshift,
    ">>=": operator.irshift,
    "&=": operator.iand,
    "|=": operator.ior,
    "^=": operator.ixor,
}
_UNARY: dict[str, Callable[[Any], Any]] = {
    "-": operator.neg,
    "+": operator.pos,
    "~": operator.invert,
}
_COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
    "is": operator.is_,
    "is not": operator.is_not,
    "in": lambda a, b: a in b,
    "not in": lambda a, b: a not in b,
}


def _unrecorded(fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A call after a recording has ended: numbers that it traced are plain to whoever asks. In a
    function that runs in parts, the callee is compiled."""
    args = plain_where_they_are(args)
    if kwargs:
        plain_where_they_are(kwargs)
    if log_calls.looks_for_its_line(fn):
        return log_calls.at_its_line(fn, args, kwargs)
    if frame_reads.takes(fn):
        return frame_reads.read(fn, args, kwargs)
    if fn is type and len(args) > 1:
        return frame_reads.new_class(*args, **kwargs)
    seen = frame_reads.rewritten(fn, Forms)
    if seen is not None:
        return seen(*args, **kwargs)
    fn, opened = open_calls.as_given_to_torchs_compiler(fn), family()
    if opened is None and not (open_calls.is_choice(fn) or open_calls.takes_written_code(fn)):
        return fn(*args, **kwargs)
    return open_calls.call(opened, fn, args, kwargs)


class AssignmentTarget:
    """Storing to `.value` calls the store that was given."""

    __slots__ = ("_store", "_where")

    def __init__(self, store: Callable[..., None], where: tuple[Any, ...]) -> None:
        self._store, self._where = store, where

    value = property(None, lambda self, value: self._store(*self._where, value))


class Forms:
    """Operators for one rewritten function; `fn` is the user's own function, whose globals and
    cells the names come from. `serial`: the recording in which it was rewritten, if any."""

    __slots__ = ("fn", "serial")
    slice = slice

    def __init__(self, fn: types.FunctionType) -> None:
        self.fn = fn
        rec = recorder()
        self.serial = 0 if rec is None else rec.serial

    # -- names

    def glob(self, name: str, value: Any) -> Any:
        rec = recorder()
        return (
            value
            if rec is None
            else rec.safely(lambda: name_ops.load_global(rec, self.fn, name, value), lambda: value)
        )

    def free(self, name: str, value: Any) -> Any:
        rec = recorder()
        return (
            value
            if rec is None
            else rec.safely(lambda: name_ops.load_free(rec, self.fn, name, value), lambda: value)
        )

    def set_glob(self, name: str, value: Any) -> Any:
        rec = recorder()
        if rec is not None:
            rec.safely(lambda: name_ops.store_global(rec, self.fn, name, value), lambda: None)
        return value

    def set_free(self, name: str, value: Any) -> Any:
        rec = recorder()
        if rec is not None:
            rec.safely(lambda: name_ops.store_free(rec, self.fn, name, value), lambda: None)
        return value

    # -- attributes and items

    def attr(self, obj: Any, name: str) -> Any:
        rec = recorder()
        if type(obj) is types.FrameType:
            return frame_reads.attribute(obj, name)
        return (
            getattr(obj, name)
            if rec is None
            else rec.safely(lambda: attribute_ops.load(rec, obj, name), lambda: getattr(obj, name))
        )

    def set_attr(self, obj: Any, name: str, value: Any) -> None:
        rec = recorder()
        if rec is None:
            setattr(obj, name, plain_where_they_are(value))
        else:
            rec.safely(
                lambda: attribute_ops.store(rec, obj, name, value),
                lambda: setattr(obj, name, value),
            )

    def del_attr(self, obj: Any, name: str) -> None:
        rec = recorder()
        if rec is None:
            delattr(obj, name)
        else:
            rec.safely(lambda: attribute_ops.delete(rec, obj, name), lambda: delattr(obj, name))

    def target(self, store: Callable[..., None], *where: Any) -> "AssignmentTarget":
        """`target(set_attr, obj, "x").value = v` is `store(obj, "x", v)`, at the moment when Python
        would store."""
        return AssignmentTarget(store, where)

    def aug_attr(self, obj: Any, name: str, op: str, value: Any) -> None:
        self.set_attr(obj, name, self.inplace(op, self.attr(obj, name), value))

    def item(self, obj: Any, key: Any) -> Any:
        rec = recorder()
        return (
            obj[key]
            if rec is None
            else rec.safely(lambda: items.load(rec, obj, key), lambda: obj[key])
        )

    def key(self, key: Any) -> Any:
        """A key of a dict display, or a member of a set's."""
        rec = recorder()
        if rec is not None:
            rec.safely(lambda: items.check_key(rec, key), lambda: None)
        return key

    def set_item(self, obj: Any, key: Any, value: Any) -> None:
        rec = recorder()
        if rec is None:
            obj[plain_where_they_are(key)] = plain_where_they_are(value)
        else:
            rec.safely(
                lambda: items.store(rec, obj, key, iteration.stored(rec, obj, key, value)),
                lambda: items.set_item(obj, key, value),
            )

    def del_item(self, obj: Any, key: Any) -> None:
        rec = recorder()
        if rec is None:
            del obj[key]
        else:
            rec.safely(lambda: items.delete(rec, obj, key), lambda: items.delete_item(obj, key))

    def aug_item(self, obj: Any, key: Any, op: str, value: Any) -> None:
        self.set_item(obj, key, self.inplace(op, self.item(obj, key), value))

    # -- calls

    def call(self, fn: Any, /, *args: Any, **kwargs: Any) -> Any:
        rec = recorder()
        return (
            _unrecorded(fn, args, kwargs)
            if rec is None
            else rec.safely(
                lambda: call_ops.call(rec, fn, args, kwargs), lambda: fn(*args, **kwargs)
            )
        )

    # -- operators

    def binary(self, op: str, a: Any, b: Any) -> Any:
        rec = recorder()
        return (
            _BINARY[op](a, b)
            if rec is None
            else rec.safely(
                lambda: binaries.binary(rec, op, _BINARY[op], a, b), lambda: _BINARY[op](a, b)
            )
        )

    def inplace(self, op: str, a: Any, b: Any) -> Any:
        rec = recorder()
        return (
            _INPLACE[op](a, b)
            if rec is None
            else rec.safely(
                lambda: binaries.inplace(rec, op, _INPLACE[op], a, b), lambda: _INPLACE[op](a, b)
            )
        )

    def unary(self, op: str, a: Any) -> Any:
        rec = recorder()
        return (
            _UNARY[op](a)
            if rec is None
            else rec.safely(lambda: binaries.unary(rec, op, _UNARY[op], a), lambda: _UNARY[op](a))
        )

    def compare(self, a: Any, op: str, b: Any) -> Any:
        rec = recorder()
        return (
            _COMPARE[op](a, b)
            if rec is None
            else rec.safely(
                lambda: binaries.compare(rec, op, _COMPARE[op], a, b), lambda: _COMPARE[op](a, b)
            )
        )

    def chain(self, a: Any, *links: Any) -> Any:
        result: Any = True
        for op, right in zip(links[::2], links[1::2], strict=True):
            b = right()
            result = self.compare(a, op, b)
            if right is not links[-1] and not self.truth(result):
                return result
            a = b
        return result

    # -- branches

    def truth(self, test: Any) -> Any:
        rec = recorder()
        return (
            test
            if rec is None
            else rec.safely(lambda: branches.truth(rec, test), lambda: bool(test))
        )

    def not_(self, value: Any) -> bool:
        return not self.truth(value)

    def and_(self, a: Any, b: Callable[[], Any]) -> Any:
        return b() if self.truth(a) else a

    def or_(self, a: Any, b: Callable[[], Any]) -> Any:
        return a if self.truth(a) else b()

    def select(self, test: Any, then: Callable[[], Any], orelse: Callable[[], Any]) -> Any:
        return then() if self.truth(test) else orelse()

    # -- statements that run as they are

    def subject(self, value: Any, patterns: tuple[Any, ...], attributes: tuple[str, ...]) -> Any:
        """The subject of a `match` statement; `patterns`: the names that its patterns compare with,
        each a function and attribute names; `attributes`: what its patterns look at."""
        rec = recorder()
        if rec is not None:
            rec.safely(lambda: matching.watch(rec, value, patterns, attributes), lambda: None)
        return value

    def class_reads(self, reads: tuple[Callable[[], Any], ...], computes: bool) -> tuple[()]:
        """A class statement follows, whose body reads these names."""
        rec = recorder()
        if rec is not None:
            rec.safely(lambda: matching.class_body(rec, self.fn, reads, computes), lambda: None)
        return ()

    def class_base(self, base: Any) -> Any:
        """A base of a class that follows, or what its keywords give."""
        rec = recorder()
        if rec is not None:
            rec.safely(lambda: matching.class_base(rec, base), lambda: None)
        return base

    def imported(self, module: str, level: int, *names: tuple[str, Any]) -> None:
        """An import statement in the function bound these names."""
        rec = recorder()
        if rec is not None:
            rec.safely(lambda: name_ops.imported(rec, self.fn, module, level, names), lambda: None)

    def decorator(self, fn: Any) -> Any:
        """What decorates a function or class of the text: the user's own is called as any other."""
        if recorder() is None and open_calls.takes_written_code(fn):
            return lambda made: open_calls.with_written_code(fn, (made,), {})
        if recorder() is None or not callable_objects.runs_users_code(fn):
            return fn
        return lambda made: self.call(fn, made)

    def raised(self, exception: Any) -> Any:
        """What `raise` raises, or names as the cause: made here, if it is a class."""
        rec = recorder()
        if rec is None or not _is_exception_class(exception):
            return exception
        return rec.safely(lambda: call_ops.call(rec, exception, (), {}), lambda: exception)

    def caught(self, classes: Any) -> Any:
        """What `except` compares the exception with."""
        rec = recorder()
        if rec is not None and isinstance(classes, tuple):
            rec.safely(lambda: items.guard_arguments(rec, (classes,), {}), lambda: None)
        return classes

    # -- iteration, contexts, text

    def iter(self, iterable: Any) -> Any:
        rec = recorder()
        return (
            iterable
            if rec is None
            else rec.safely(lambda: iteration.over(rec, iterable), lambda: iterable)
        )

    def each(self, iterable: Any, parts: iteration.Parts) -> Any:
        """What a loop iterates over whose target takes each value apart."""
        rec = recorder()
        return (
            iterable
            if rec is None
            else rec.safely(lambda: iteration.each(rec, iterable, parts), lambda: iterable)
        )

    def unpack(self, value: Any, parts: iteration.Parts) -> Any:
        """What a target with targets in it takes apart."""
        rec = recorder()
        return (
            value
            if rec is None
            else rec.safely(lambda: iteration.unpacked(rec, value, parts), lambda: value)
        )

    def unpack_kept(self, value: Any, *targets: iteration.Parts) -> Any:
        """What several targets take, some of them apart."""
        rec = recorder()
        if rec is not None:
            rec.safely(lambda: iteration.unpack_and_keep(rec, value, targets), lambda: None)
        return value

    def mapping(self, value: Any) -> Any:
        """What `**` takes apart."""
        rec = recorder()
        return (
            value if rec is None else rec.safely(lambda: iteration.pairs(rec, value), lambda: value)
        )

    def context(self, manager: Any, parts: iteration.Parts | None = None) -> Any:
        """What `with` should enter; `parts`: how its target takes apart what that gives."""
        rec = recorder()
        if rec is None:
            return manager
        entered = rec.safely(lambda: contexts.enter(rec, manager), lambda: manager)
        return entered if parts is None else iteration.Entered(rec, entered, parts)

    def fstring(self, *pieces: Any) -> str:
        """Texts, and (value, conversion, spec) for each `{value!conversion:spec}`, joined."""
        rec = recorder()
        if rec is None:
            return "".join(
                piece if isinstance(piece, str) else texts.formatted(*piece) for piece in pieces
            )
        joined: str = texts.traced_join(
            tuple(
                piece if isinstance(piece, str) else _traced_format(rec, piece) for piece in pieces
            )
        )
        process_bound.note_text(rec, joined)
        return joined


def _traced_format(rec: Any, piece: tuple[Any, str | None, Any]) -> Any:
    return rec.safely(
        lambda: texts.traced_format(rec, *piece), lambda: texts.formatted(*concretize(piece))
    )


def _is_exception_class(value: Any) -> bool:
    return isinstance(value, type) and issubclass(value, BaseException)
