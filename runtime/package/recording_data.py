"""A recorded call as plain data for another process: guards, inputs, effects and the output, with
the live objects that they name.

An object stands as where it is found, and as a digest of its content: by name in a module, or, if
no module holds it, at the access path where a guard of the call found it. Reading it back compares
the digests; a guard on the object that was found is what later calls check.
"""

import functools
import types
from collections.abc import Callable, Iterable
from typing import Any

import torch

from ..cache.live_objects import Digests, GlobalNames, by_name, is_of, is_of_python, name_of
from ..cache.plain_data import Unstorable
from ..guards import access_paths, guard_checks
from ..guards.guard import Guard
from ..guards.guard_checks import ABSENT, Check
from ..guards.tensor_meta import TensorMeta
from ..programs.recipes import HostCall, HostValue, Recipe, Works
from ..programs.size_functions import SizeFunction
from ..programs.steps import Redo
from .call_data import (
    _CHECKS,
    _CLASSES,
    _FUNCTION_NAMES,
    _PATHS,
    _PLAIN_PATHS,
    CallDecoder,
    CallEncoder,
)

_CONSTANTS = (type(None), bool, type(Ellipsis), type(NotImplemented))
_ALL_PATHS: dict[str, Any] = {
    **_PATHS,
    "Cell": access_paths.Cell,
    "Referent": access_paths.Referent,
}
_BASE_ONLY = (*_PLAIN_PATHS, access_paths.Referent)


class Stale(Exception):
    """What was stored relies on something that is otherwise here."""


class RecordingEncoder(CallEncoder):
    """`root`: the compiled function; `size_of`: as of CallEncoder. `objects`: the live objects,
    which data names by their number."""

    def __init__(
        self,
        root: Any,
        guards: Iterable[Guard],
        size_of: Callable[[Recipe], SizeFunction | None],
    ) -> None:
        super().__init__(size_of, int, 0)
        self.objects: list[Any] = []
        self.paths: list[Any] = []
        self._root, self._digests = root, Digests()
        self._objects: dict[int, tuple[Any, int]] = {}
        self._path_numbers: dict[Any, int] = {}
        self._found: dict[int, tuple[Any, str | None]] = {}
        self._held: dict[int, tuple[Any, str]] = {}
        for guard in guards:
            check = guard.check
            if isinstance(check, guard_checks.Is):
                self._found.setdefault(id(check.arg), (guard.path, None))
            elif isinstance(check, guard_checks.ClassAttr):
                self._found.setdefault(id(check.arg), (guard.path, check.name))
            for name in _PARTS:
                if is_of(check.arg, property, staticmethod, classmethod):
                    part = getattr(check.arg, name, None)
                    self._held.setdefault(id(part), (check.arg, name))

    def guard(self, guard: Guard) -> list[Any]:
        return [self._path(guard.path), self._check(guard.check), guard.origin]

    def effect(self, effect: Redo) -> list[Any]:
        named = [[name, self._recipe(recipe)] for name, recipe in effect.keywords.items()]
        arguments = [*map(self._recipe, effect.arguments)]
        return [self.encode(effect.function), arguments, named, effect.origin]

    # ---- objects

    def encode(self, value: Any) -> Any:
        """What somebody could change, or compares by identity, is a live object."""
        if is_of(value, access_paths.Path):
            return ["path", self._path(value)]
        return super().encode(value) if _is_plain(value) else self._object(value)

    def seen(self, value: Any) -> Any:
        """The value of an outcome, which is compared by what it holds."""
        return super().encode(value)

    def _class(self, cls: type) -> list[Any]:
        known = _CLASSES.get(f"{cls.__module__}:{cls.__qualname__}") is cls
        return super()._class(cls) if known else self._object(cls)

    def _object(self, value: Any, label: str = "") -> list[Any]:
        if id(value) not in self._objects:
            number = len(self.objects)
            self._objects[id(value)] = value, number
            self.objects.append(None)
            self.objects[number] = self._described(value, label)
        return ["object", self._objects[id(value)][1]]

    def _described(self, value: Any, label: str) -> list[Any]:
        if value is self._root:
            return ["root"]
        if type(value) is GlobalNames:
            return ["names", *self._object(value.__dict__)[1:]]
        name = name_of(value, label)
        if name is not None:
            return ["named", self._digests.of(value), *name]
        if is_of(self._root, types.FunctionType) and value is self._root.__globals__:
            return ["root_globals"]
        if id(value) in self._held and id(value) not in self._found:
            holder, part = self._held[id(value)]
            return ["part", self._digests.of(value), self._object(holder)[1], part]
        if id(value) not in self._found:
            raise Unstorable(f"a {type(value).__name__} that nothing leads to: {label}")
        path, name_in_class = self._found[id(value)]
        return ["at", self._digests.of(value), self._path(path), name_in_class]

    # ---- guards

    def _path(self, path: access_paths.Path) -> int:  # type: ignore[override]
        number = self._path_numbers.get(path)
        if number is None:
            made = self._path_parts(path)
            number = self._path_numbers[path] = len(self.paths)
            self.paths.append(made)
        return number

    def _path_parts(self, path: access_paths.Path) -> list[Any]:
        name = type(path).__name__
        if isinstance(path, access_paths.Obj):
            return [name, self._object(path.arg, path.label)[1], path.label]
        if _ALL_PATHS.get(name) is not type(path):
            raise Unstorable(f"what is read as {path.source}")
        base = [] if path.base is None else [self._path(path.base)]
        return [name, *base, *([] if isinstance(path, _BASE_ONLY) else [self.encode(path.arg)])]

    def _check(self, check: Check) -> Any:
        name = type(check).__name__
        if isinstance(check, guard_checks.Is | guard_checks.ClassAttr | guard_checks.TypeIs):
            named = [check.name] if isinstance(check, guard_checks.ClassAttr) else []
            return [name, self._identity(check.arg), *named]
        if isinstance(check, guard_checks.Tensor):
            return [name, self.encode(check.arg)]
        if _CHECKS.get(name) is not type(check):
            raise Unstorable(f"the guard {check!r}")
        present = [check.present] if isinstance(check, guard_checks.HasKey) else []
        return [name, self.encode(check.arg), *present]

    def _identity(self, value: Any) -> Any:
        if value is ABSENT:
            return ["absent"]
        if type(value) in _CONSTANTS:
            return ["constant", repr(value)]
        return self._object(value)

    # ---- recipes

    def _recipe_parts(self, recipe: Recipe) -> list[Any]:
        if isinstance(recipe, Works):
            return ["works", self._recipe(recipe.recipe)]
        if isinstance(recipe, HostValue):
            return ["host_value", self._recipe(recipe.call)]
        if isinstance(recipe, HostCall):
            named = [[name, self._recipe(one)] for name, one in recipe.keywords.items()]
            arguments = [*map(self._recipe, recipe.arguments)]
            return ["host_call", self.encode(recipe.function), arguments, named, recipe.after]
        return super()._recipe_parts(recipe)


def _is_plain(value: Any) -> bool:
    """Whether it is written by value, or by a name that all processes share."""
    if is_of(value, Recipe, TensorMeta, SizeFunction, type):
        return True
    if is_of(value, functools.partial):
        return not value.keywords
    if is_of(value, types.FunctionType, types.BuiltinFunctionType):
        return value in _FUNCTION_NAMES
    changed = is_of(value, list, dict, set, torch.Tensor) or is_of_python(type(value))
    return not (changed or callable(value))


class RecordingDecoder(CallDecoder):
    """Of a process that may use what was stored. `root`: the compiled function; `call`: the
    arguments of the call at hand. Raises Stale where an object is otherwise than it was, and what
    reading raises."""

    def __init__(
        self, data: dict[str, Any], root: Any, call: tuple[tuple[Any, ...], dict[str, Any]]
    ) -> None:
        super().__init__(data["recipes"])
        self._paths, self._described = data["paths"], data["objects"]
        self._root, self._call = root, call
        self._digests = Digests()
        self._made_paths: dict[int, access_paths.Path] = {}
        self._found: dict[int, Any] = {}
        self._numbers: dict[int, int] = {}

    def guard(self, path: int, check: list[Any], origin: str | None) -> Guard:
        (name, arg, *rest), place = check, self.path(path)
        value = self.decode(arg)
        if name == "ClassAttr":
            return Guard(place, guard_checks.ClassAttr(rest[0], value), origin)
        return Guard(place, _MADE_BY_NAME[name](value, *rest), origin)

    def effect(self, function: Any, arguments: Any, keywords: Any, origin: str) -> Redo:
        named = {name: self._recipe(number) for name, number in keywords}
        return Redo(self.decode(function), self._all(arguments), named, origin)

    def path(self, number: int) -> access_paths.Path:
        if number not in self._made_paths:
            name, *parts = self._paths[number]
            if name == "Obj":
                made: Any = access_paths.Obj(self._object(parts[0]), parts[1])
            elif name in ("Arg", "Kwarg"):
                made = _ALL_PATHS[name](self.decode(parts[0]))
            else:
                base, *arg = parts
                made = _ALL_PATHS[name](self.path(base), *map(self.decode, arg))
            self._made_paths[number] = made
        return self._made_paths[number]

    def _path(self, number: int) -> access_paths.Path:
        return self.path(number)

    def _absent(self) -> Any:
        return ABSENT

    def _constant(self, text: str) -> Any:
        return next(one for one in _SINGLE if repr(one) == text)

    def _object(self, number: int) -> Any:
        if number not in self._found:
            found = self._found[number] = self._looked_up(self._described[number])
            if self._numbers.setdefault(id(found), number) != number:
                raise Stale("two objects are one")
        return self._found[number]

    def _looked_up(self, described: list[Any]) -> Any:
        kind, *parts = described
        if kind == "root":
            return self._root
        if kind == "root_globals":
            return self._root.__globals__
        if kind == "names":
            return GlobalNames(self._object(parts[0]))
        digest, *where = parts
        found = _FINDERS[kind](self, *where)
        if self._digests.of(found) != digest:
            raise Stale(f"{where} is otherwise")
        return found

    def _named(self, *name: str) -> Any:
        return by_name(*name)

    def _part_of(self, holder: int, name: str) -> Any:
        return getattr(self._object(holder), name)

    def _at(self, path: int, name_in_class: str | None) -> Any:
        value = self.path(path).value(*self._call)
        if name_in_class is None:
            return value
        return guard_checks.ClassAttr(name_in_class, None)._found(value)

    def _recipe_host_call(
        self, function: Any, arguments: list[int], keywords: list[Any], after: int
    ) -> Recipe:
        named = {name: self._recipe(number) for name, number in keywords}
        return HostCall(self.decode(function), self._all(arguments), named, after)

    def _recipe_host_value(self, number: int) -> Recipe:
        call: Any = self._recipe(number)
        return HostValue(call)

    def _recipe_works(self, number: int) -> Recipe:
        return Works(self._recipe(number))


_PARTS = ("fget", "fset", "fdel", "__func__")
_FINDERS: dict[str, Any] = {
    "named": RecordingDecoder._named,
    "part": RecordingDecoder._part_of,
    "at": RecordingDecoder._at,
}
_SINGLE = (None, True, False, ..., NotImplemented)
_MADE_BY_NAME: dict[str, Any] = {
    **_CHECKS,
    **{cls.__name__: cls for cls in (guard_checks.Is, guard_checks.TypeIs, guard_checks.Tensor)},
}
