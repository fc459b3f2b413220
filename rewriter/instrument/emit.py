"""`rewrite(fn, forms_factory)`: a function that does what `fn` does by asking an object of
operators at every step.

The code object is made once per code object (and kept on disk, see `rewrite_cache`); per function
only the closure is new.
"""

import ast
import copy
import functools
import operator
import sys
import threading
import types
import weakref
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from types import CellType, CodeType, FunctionType, MethodType
from typing import Any

from ..source import line_table, live_source
from ..source.live_source import NotRewritable
from . import rewrite_cache

OPERATORS = "__df"
Watcher = Callable[[FunctionType, "live_source.Source | None"], None]
watchers: list[Watcher] = []  # told of each function that is rewritten, and what a pattern made

_lock = threading.Lock()
# By identity: code objects compare by value, and equal ones may stand in different files.
_done: dict[int, tuple["weakref.ref[CodeType]", CodeType | NotRewritable]] = {}
rewritten_codes: dict[int, "weakref.ref[CodeType]"] = {}
rewritten_files: set[str] = set()  # that such code has come from
_around: dict[int, "weakref.ref[CodeType]"] = {}  # of what is nested: the user's outer code


def rewrite(
    fn: FunctionType,
    forms_factory: Callable[[FunctionType], Any],
    source: "live_source.Source | None" = None,
) -> FunctionType:
    """`fn` rewritten: the same globals dict, cells, defaults and line numbers, its operators from
    `forms_factory(fn)`. `source`: what a pattern made of its own, where one did.

    Raises `NotRewritable` (no source, source that is not the live code, asynchronous, unsupported
    syntax).
    """
    if not isinstance(fn, FunctionType):
        raise NotRewritable(f"not a Python function: {type(fn).__name__}", "?", 0)
    if is_rewritten(fn.__code__):
        return fn
    if live_source.runs_torchs_compiler(fn):
        why = "it calls torch.compile, which takes code as it is written"
        raise NotRewritable(why, fn.__code__.co_filename, fn.__code__.co_firstlineno)
    code = _rewritten_code(fn) if source is None else _changed_code(source)
    _note_nested(code, fn.__code__)
    if "slice" in fn.__globals__ and _uses(code, "slice"):
        raise NotRewritable("the name `slice` is shadowed", code.co_filename, code.co_firstlineno)
    cells = dict(zip(fn.__code__.co_freevars, fn.__closure__ or (), strict=True))
    if missing := set(code.co_freevars) - {*cells, OPERATORS}:
        raise NotRewritable(
            f"unknown free variables {sorted(missing)}", code.co_filename, code.co_firstlineno
        )
    for watcher in watchers:
        watcher(fn, source)
    operators = types.CellType(forms_factory(fn))
    closure = tuple(cells.get(name, operators) for name in code.co_freevars)
    return _dressed(FunctionType(code, fn.__globals__, fn.__name__, fn.__defaults__, closure), fn)


def as_written(value: Any, inside: tuple[FunctionType, ...] = ()) -> Any:
    """`value`, with the user's own functions in it for those that rewritten code made of them.
    `inside`: functions that hold it, so that one which calls itself comes to an end."""
    if isinstance(value, FunctionType):
        return value if value in inside else _function_as_written(value, (*inside, value))
    if type(value) is dict:
        named = {key: as_written(each, inside) for key, each in value.items()}
        return value if all(named[key] is each for key, each in value.items()) else named
    parts, make = _parts(value)
    changed = [as_written(each, inside) for each in parts]
    return value if all(map(operator.is_, changed, parts)) else make(changed)


def _parts(value: Any) -> tuple[Sequence[Any], Callable[[Any], Any]]:
    """What `value` holds, and how one like it is made of such parts."""
    if type(value) in (list, tuple):
        return value, type(value)
    if type(value) is MethodType:
        return (value.__func__, value.__self__), lambda parts: MethodType(*parts)
    if type(value) is functools.partial:
        parts = (value.func, value.args, value.keywords)
        return parts, lambda new: functools.partial(new[0], *new[1], **new[2])
    torchs = str(type(value).__module__).startswith("torch.nn.attention")
    if torchs and hasattr(value, "__dict__"):  # a BlockMask keeps its mask_mod
        return tuple(vars(value).values()), lambda new: _with_attributes(value, new)
    return (), type(value)


def _with_attributes(obj: Any, values: Sequence[Any]) -> Any:
    made = copy.copy(obj)
    vars(made).update(zip(vars(obj), values, strict=True))
    return made


def _function_as_written(fn: FunctionType, inside: tuple[FunctionType, ...]) -> FunctionType:
    """A function whose cells hold rewritten functions gets cells of its own."""
    if is_rewritten(fn.__code__):
        fn = original_of(fn) or fn
    before = fn.__closure__ or ()
    cells = tuple(_cell_as_written(cell, inside) for cell in before)
    if all(map(operator.is_, cells, before)):
        return fn
    made = FunctionType(fn.__code__, fn.__globals__, fn.__name__, fn.__defaults__, cells)
    return _dressed(made, fn)


def _cell_as_written(cell: CellType, inside: tuple[FunctionType, ...]) -> CellType:
    try:
        held = cell.cell_contents
    except ValueError:  # it is empty
        return cell
    plain = as_written(held, inside)
    return cell if plain is held else CellType(plain)


def original_of(fn: FunctionType) -> FunctionType | None:
    """The user's own function, with the cells of `fn`, which rewritten code made; None where its
    text is not told apart from others."""
    around = _around.get(id(fn.__code__))
    outer = None if around is None else around()
    found = [] if outer is None else [code for code in _nested(outer) if _is_of(code, fn.__code__)]
    if len(found) != 1:
        return None
    cells = dict(zip(fn.__code__.co_freevars, fn.__closure__ or (), strict=True))
    if not cells.keys() >= set(found[0].co_freevars):
        return None
    closure = tuple(cells[name] for name in found[0].co_freevars)
    made = FunctionType(found[0], fn.__globals__, fn.__name__, fn.__defaults__, closure)
    return _dressed(made, fn)


def _nested(code: CodeType) -> Iterator[CodeType]:
    for const in code.co_consts:
        if isinstance(const, CodeType):
            yield const
            yield from _nested(const)


def _is_of(code: CodeType, rewritten: CodeType) -> bool:
    """Whether these are one function of the text; several lambdas may stand on a line."""
    return (code.co_name, code.co_firstlineno, code.co_varnames[: code.co_argcount]) == (
        rewritten.co_name,
        rewritten.co_firstlineno,
        rewritten.co_varnames[: rewritten.co_argcount],
    )


def operators_of(fn: FunctionType) -> Any:
    """What a rewritten function asks at every step; None where it takes no step."""
    names = fn.__code__.co_freevars
    place = names.index(OPERATORS) if OPERATORS in names else None
    return None if place is None else (fn.__closure__ or ())[place].cell_contents


def is_rewritten(code: CodeType) -> bool:
    """Whether a code object, outer or nested, came out of the rewriter."""
    known = rewritten_codes.get(id(code))
    return known is not None and known() is code


def rewritten_source(fn: FunctionType, source: live_source.Source | None = None) -> str:
    """The rewritten text of `fn`, or of what a pattern made of it, to read. Raises
    `NotRewritable`."""
    return _convert(source or live_source.find(fn))


def _dressed(new: FunctionType, fn: FunctionType) -> FunctionType:
    new.__kwdefaults__ = fn.__kwdefaults__
    new.__qualname__, new.__module__, new.__doc__ = fn.__qualname__, fn.__module__, fn.__doc__
    new.__annotations__ = fn.__annotations__
    new.__dict__.update(fn.__dict__)
    if sys.version_info >= (3, 12):
        new.__type_params__ = fn.__type_params__
    return new


def _uses(code: CodeType, name: str) -> bool:
    return name in code.co_names or any(
        isinstance(const, CodeType) and _uses(const, name) for const in code.co_consts
    )


def _rewritten_code(fn: FunctionType) -> CodeType:
    code = fn.__code__
    with _lock:
        known = _done.get(id(code))
        if known is None or known[0]() is not code:
            known = (weakref.ref(code, _forget(_done, id(code))), _load_or_make(fn))
            _done[id(code)] = known
    if isinstance(known[1], NotRewritable):
        raise NotRewritable(*known[1].args)
    return known[1]


@functools.lru_cache(256)
def _changed_code(source: live_source.Source) -> CodeType:
    code = _make(source)
    _remember(code)
    return code


def _forget(table: dict[int, Any], key: int) -> Callable[[Any], None]:
    def forget(dead: Any) -> None:
        entry = table.get(key)
        if entry is dead or (isinstance(entry, tuple) and entry[0] is dead):
            del table[key]

    return forget


def _load_or_make(fn: FunctionType) -> CodeType | NotRewritable:
    key = rewrite_cache.key(fn.__code__)
    code = rewrite_cache.load(key)
    if code is None:
        try:
            code = _make(live_source.find(fn))
        except NotRewritable as refusal:
            return NotRewritable(*refusal.args)
        rewrite_cache.store(key, code)
    _remember(code)
    return code


def _make(found: live_source.Source) -> CodeType:
    text = _convert(found)
    spelt = OPERATORS if found.owner is None else f"_{found.owner.lstrip('_')}{OPERATORS}"
    try:
        tree = line_table.at_attributes(ast.parse(live_source.padded(found, text)))
        if found.lines:
            line_table.at_lines(tree, found.first_line, found.lines)
        code = live_source.compile_inner(found, tree, (spelt,))
    except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
        raise found.error(f"the rewritten text does not compile: {error}") from error
    if code is None:
        raise found.error("the rewritten function was not found")
    return _finished(code, spelt)


def _finished(code: CodeType, spelt: str) -> CodeType:
    """`code`, and all nested in it, without columns, and with the operators' cell called `__df`
    though a class has mangled it.
    """
    consts = tuple(
        _finished(const, spelt) if isinstance(const, CodeType) else const
        for const in code.co_consts
    )
    free = tuple(OPERATORS if name == spelt else name for name in code.co_freevars)
    return code.replace(
        co_consts=consts, co_freevars=free, co_linetable=line_table.without_columns(code)
    )


def _convert(found: live_source.Source) -> str:
    # LibCST takes 0.2 s to import, and is needed only when the cache has no answer.
    return load().convert(found)  # type: ignore[no-any-return]


def _remember(code: CodeType) -> None:
    """Note the code object and those nested in it as rewritten; class bodies, and what is in them,
    are not."""
    rewritten_codes[id(code)] = weakref.ref(code, _forget(rewritten_codes, id(code)))
    rewritten_files.add(code.co_filename)
    for const in code.co_consts:
        if isinstance(const, CodeType) and const.co_flags & 0x1:  # CO_OPTIMIZED: not a class body
            _remember(const)


def _note_nested(code: CodeType, outer: CodeType) -> None:
    for inner in _nested(code):
        if is_rewritten(inner) and id(inner) not in _around:
            _around[id(inner)] = weakref.ref(outer)
            weakref.finalize(inner, _around.pop, id(inner), None)


def load() -> Any:
    """The converters, and with them LibCST, which takes 0.2 s to load."""
    return import_module(".driver", __package__)
