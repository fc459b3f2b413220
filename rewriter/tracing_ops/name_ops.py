"""Loads and stores of globals and free variables."""

import builtins
import importlib.util
import sys
import types
from typing import Any

from ...runtime.cache.live_objects import GlobalNames
from ...runtime.guards.guard import Attr, Cell, Is, Item, Missing, Obj, Path
from ...runtime.programs.recipes import Apply, ConstRecipe
from ..capture.effects import SideEffect, constant, set_cell
from ..capture.trace import Recorder
from .lookup import is_stable


def _shadowless(rec: Recorder, fn: types.FunctionType, name: str) -> None:
    holder = rec.name_holders.get(id(fn.__globals__))
    if holder is None:
        holder = rec.name_holders[id(fn.__globals__)] = GlobalNames(fn.__globals__)
    rec.known.guard(Obj(holder, globals_path(fn).source), Missing(name))


def load_global(rec: Recorder, fn: types.FunctionType, name: str, value: Any) -> Any:
    if rec.known.is_own(fn.__globals__, name):
        return value
    if name in fn.__globals__:
        return rec.known.loaded(value, Item(globals_path(fn), name))
    if not is_stable(fn):
        _shadowless(rec, fn, name)
    return (
        value
        if value is _BUILTINS.get(name)
        else rec.known.loaded(value, Item(Obj(builtins.__dict__, "builtins"), name))
    )


_CATCHING = {"NameError", "UnboundLocalError", "Exception", "BaseException"}


def guard_absent(rec: Recorder, fn: types.FunctionType) -> None:
    """A function that may catch it reads which of its names are bound."""
    code = fn.__code__
    if _CATCHING.isdisjoint(code.co_names):
        return
    for name in code.co_names:
        if name not in fn.__globals__ and name not in _BUILTINS:
            _shadowless(rec, fn, name)
    for cell in fn.__closure__ or ():
        if _is_empty(cell):
            rec.outcomes.append((0, Apply(_is_empty, (ConstRecipe(cell),)), True))


def _is_empty(cell: types.CellType) -> bool:
    try:
        return cell.cell_contents is _BUILTINS  # it holds something
    except ValueError:
        return True


_BUILTINS = dict(builtins.__dict__)


def globals_path(fn: types.FunctionType) -> Path:
    return Obj(fn.__globals__, str(fn.__globals__.get("__name__", "globals")))


def load_free(rec: Recorder, fn: types.FunctionType, name: str, value: Any) -> Any:
    cell = _cell(fn, name)
    path = None if cell is None else rec.known.path_of(fn)
    if path is None or rec.known.is_own(cell, name):
        return value
    return rec.known.loaded(value, Cell(path, fn.__code__.co_freevars.index(name)))


def _cell(fn: types.FunctionType, name: str) -> Any:
    if fn.__closure__ is None or name not in fn.__code__.co_freevars:
        return None
    return fn.__closure__[fn.__code__.co_freevars.index(name)]


def store_global(rec: Recorder, fn: types.FunctionType, name: str, value: Any) -> Any:
    """The rewritten source stores the value itself; a later call stores it by the effect."""
    rec.effects.append(
        SideEffect(dict.__setitem__, (constant(fn.__globals__), constant(name), value))
    )
    rec.known.wrote(fn.__globals__, name)
    return value


def store_free(rec: Recorder, fn: types.FunctionType, name: str, value: Any) -> Any:
    cell = _cell(fn, name)
    if cell is not None and rec.known.path_of(fn) is not None:
        rec.effects.append(SideEffect(set_cell, (constant(cell), value)))
        rec.known.wrote(cell, name)
    return value


def imported(
    rec: Recorder,
    fn: types.FunctionType,
    module: str,
    level: int,
    names: tuple[tuple[str, Any], ...],
) -> None:
    """`from module import name`, or `import name` where `module` is empty: which module it is, and
    what was taken from it, may change."""
    if level:
        package = fn.__globals__.get("__package__")
        module = importlib.util.resolve_name("." * level + module, package)
    for name, value in names:
        source = sys.modules.get(module or name)
        if not isinstance(source, types.ModuleType) or is_stable(source):
            continue
        table = Obj(sys.modules, "sys.modules")
        rec.known.guard(Item(table, module or name), Is(source))
        if module:
            rec.known.fixed(value, Attr(Obj(source, module), name))
