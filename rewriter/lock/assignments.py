"""Where the user's source sets what a guard reads: the line of `self.scale = 0.5` for `net.scale`,
of `net = Net()` for `net`."""

import ast
import functools
import linecache
import sys
from collections.abc import Callable, Iterator, Mapping
from types import FunctionType
from typing import Any

from ...runtime.guards.guard import InstDict, Item, Obj, Path

_HOLDERS = ("_modules", "_parameters", "_buffers")


def set_at(path: Path, classes: Mapping[Path, type], is_users: Callable[[str], bool]) -> str:
    """`model.py:11`, of the attribute or global that leads to `path` and is set in a file of the
    user's, the nearest to its end; "" where none is. `classes`: of the objects on the way."""
    step: Path | None = path
    while step is not None:
        found = _global(step) or _attribute(step, classes)
        if found is not None and is_users(found[0]):
            return f"{found[0]}:{found[1]}"
        step = step.base
    return ""


def _global(path: Path) -> tuple[str, int] | None:
    names = path.base.arg if isinstance(path, Item) and isinstance(path.base, Obj) else None
    if not isinstance(names, dict) or "__builtins__" not in names:
        return None
    file = names.get("__file__") or _file_of(names)
    lines = [line for named, line in _globals_of(file) if named == path.arg]
    return (file, lines[-1]) if lines else None


def _attribute(path: Path, classes: Mapping[Path, type]) -> tuple[str, int] | None:
    owner = path.base
    while owner is not None and (isinstance(owner, InstDict) or _is_holder(owner)):
        owner = owner.base
    cls = None if owner is None or not isinstance(path.arg, str) else classes.get(owner)
    for each in () if cls is None else cls.__mro__:
        file = _file_of(vars(each)) or getattr(sys.modules.get(each.__module__), "__file__", "")
        line = _attributes_of(file or "", each.__qualname__).get(path.arg)
        if file and line:
            return file, line
    return None


def _file_of(names: Mapping[str, Any]) -> str:
    """Of the functions among them: when the process ends, `__main__` has lost its `__file__`."""
    codes = (value.__code__ for value in names.values() if isinstance(value, FunctionType))
    return next((code.co_filename for code in codes), "")


def _is_holder(path: Path) -> bool:
    """Whether it is a dict of a module's in which submodules or tensors stand."""
    return isinstance(path.base, InstDict) and path.arg in _HOLDERS


@functools.lru_cache(maxsize=256)
def _tree(file: str) -> ast.Module:
    try:
        return ast.parse("".join(linecache.getlines(file)))
    except SyntaxError:
        return ast.Module([], [])


@functools.lru_cache(maxsize=256)
def _globals_of(file: str) -> tuple[tuple[str, int], ...]:
    """Names that statements outside of classes and functions set, with their lines."""
    return tuple((name, line) for name, line, of_self in _targets(_tree(file)) if not of_self)


@functools.lru_cache(maxsize=256)
def _attributes_of(file: str, qualname: str) -> dict[str, int]:
    """Attributes that the methods of a class, or its body, set, with their lines: those of its
    `__init__` before others."""
    body: list[ast.stmt] = _tree(file).body
    for name in qualname.split("."):
        inner = [each for each in ast.walk(ast.Module(body, [])) if isinstance(each, ast.ClassDef)]
        body = next((each.body for each in inner if each.name == name), [])
    found: dict[str, int] = {}
    methods = [each for each in body if isinstance(each, ast.FunctionDef)]
    for method in sorted(methods, key=lambda each: each.name == "__init__"):
        found |= {name: line for name, line, of_self in _targets(method) if of_self}
    plain = {name: line for name, line, of_self in _targets(ast.Module(body, [])) if not of_self}
    return plain | found


def _targets(root: ast.Module | ast.FunctionDef) -> Iterator[tuple[str, int, bool]]:
    """What statements set: names, and attributes of `self`."""
    waiting: list[ast.AST] = [*root.body]
    while waiting:
        node = waiting.pop(0)
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        for target in targets:
            for each in target.elts if isinstance(target, ast.Tuple | ast.List) else [target]:
                if isinstance(each, ast.Name):
                    yield each.id, each.lineno, False
                elif isinstance(each, ast.Attribute) and isinstance(each.value, ast.Name):
                    yield each.attr, each.lineno, True
        waiting += ast.iter_child_nodes(node)
