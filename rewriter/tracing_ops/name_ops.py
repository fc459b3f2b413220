"""Loads and stores of globals and free variables."""

import builtins
import importlib.util
import sys
import types
from typing import Any

from ...runtime.cache.live_objects import GlobalNames
from ...runtime.guards.guard import Attr, Cell, Is, Item, Missing, Obj, Path
from ...runtime.programs.recipes import Apply
from ..capture.effects import SideEffect, constant, set_cell
from ..capture.recording import leaf
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
    for name in code.co_freevars:
        cell, _ = _cell(rec, fn, name)
        recipe = None if cell is None else leaf(rec, cell)
        if recipe is not None and _is_empty(cell):
            rec.outcomes.append((0, Apply(_is_empty, (recipe,)), True))


def _is_empty(cell: types.CellType) -> bool:
    try:
        return cell.cell_contents is _BUILTINS  # it holds something
    except ValueError:
        return True


_BUILTINS = dict(builtins.__dict__)


def globals_path(fn: types.FunctionType) -> Path:
    return Obj(fn.__globals__, str(fn.__globals__.get("__name__", "globals")))


def load_free(rec: Recorder, fn: types.FunctionType, name: str, value: Any) -> Any:
    cell, path = _cell(rec, fn, name)
    if path is None or rec.known.is_own(cell, "cell_contents"):
        return value
    return rec.known.loaded(value, path)


def _cell(rec: Recorder, fn: types.FunctionType, name: str) -> tuple[Any, Path | None]:
    """The cell of a variable that a function from outside closes over, and the path of what it
    holds. Other functions may have it, too."""
    path, names = rec.known.path_of(fn), fn.__code__.co_freevars
    if fn.__closure__ is None or name not in names or path is None:
        return None, None
    index = names.index(name)
    cell = fn.__closure__[index]
    rec.known.fixed(cell, Item(Attr(path, "__closure__"), index))
    rec.known.touch(cell)
    return cell, Cell(path, index)


def store_global(rec: Recorder, fn: types.FunctionType, name: str, value: Any) -> Any:
    """The rewritten source stores the value itself; a later call stores it by the effect."""
    rec.effects.append(
        SideEffect(dict.__setitem__, (constant(fn.__globals__), constant(name), value))
    )
    rec.known.wrote(fn.__globals__, name)
    return value


def store_free(rec: Recorder, fn: types.FunctionType, name: str, value: Any) -> Any:
    cell, path = _cell(rec, fn, name)
    if path is not None:
        rec.effects.append(SideEffect(set_cell, (cell, value)))
        rec.known.wrote(cell, "cell_contents")
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
