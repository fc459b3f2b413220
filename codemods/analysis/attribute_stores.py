"""Where a file stores attributes: whether what a class's `__init__` stores is what its methods
find."""

from __future__ import annotations

import ast
import bisect
from typing import Any

_BY_NAME = frozenset(["setattr", "__setattr__", "add_module", "register_module", "delattr"])
_BY_NAME |= {"register_parameter", "register_buffer"}
_OPEN = frozenset(["__dict__", "_modules", "_parameters", "_buffers"])


def _start(function: Any) -> tuple[int, int]:
    return function.node.lineno, function.node.col_offset


class AttributeStores:
    """`elsewhere(cls, name)`: whether code other than the `__init__` of `cls` and of its bases may
    store the attribute."""

    def __init__(self, index: Any, functions: Any, classes: Any) -> None:
        self.classes, self.anything, self.loose, self.own = classes, False, set(), {}
        self.by_name: set[str] = set()  # those stored by a call that names them
        self._functions = sorted(functions, key=_start)
        self._starts = [_start(f) for f in self._functions]
        self._lines, self._families = {}, {}
        for node in index.get(ast.Attribute, ()):
            if not isinstance(node.ctx, ast.Load):
                self._store(node, node.value, node.attr)
            elif node.attr in _OPEN:
                self.anything = self.anything or self._opened(node)
        for node in index.get(ast.Call, ()):
            self._call(node)

    def _opened(self, node: Any) -> bool:
        """`__dict__` and the like, unless it is only looked at: that is not followed."""
        return node.attr != "__dict__" or not isinstance(node.value, ast.Name)

    def _call(self, node: Any) -> None:
        name = getattr(node.func, "attr", None) or getattr(node.func, "id", "")
        if name == "vars" and node.args:
            self.anything = True
        if name not in _BY_NAME:
            return
        plain = isinstance(node.func, ast.Name) or name == "__setattr__"
        args = node.args[1:] if plain and len(node.args) > 2 else node.args
        owner = node.args[0] if plain and node.args else getattr(node.func, "value", None)
        text = args[0].value if args and isinstance(args[0], ast.Constant) else None
        if isinstance(text, str):
            self.by_name.add(text)
            self._store(node, owner, text)
        else:
            self.anything = True

    def _around(self, node: Any) -> Any:
        """The innermost function around a node."""
        at = (node.lineno, node.col_offset)
        last = bisect.bisect_right(self._starts, at) - 1
        function = self._functions[last] if last >= 0 else None
        while function is not None and (
            (function.node.end_lineno, function.node.end_col_offset) <= at
        ):
            function = function.outer
        return function

    def _store(self, node: Any, owner: Any, name: str) -> None:
        if not isinstance(owner, ast.Name):
            self.loose.add(name)
            return
        method = function = self._around(node)
        while method is not None and method.cls is None:
            method = method.outer
        is_self = method is not None and owner.id == method.self_name
        if not is_self:
            self.loose.add(name)
        else:
            inside = method is function and function.name == "__init__"
            self.own.setdefault(name, {}).setdefault(method.cls, set()).add(inside)

    def elsewhere(self, cls: Any, name: str) -> bool:
        if self.anything or name in self.loose:
            return True
        stored = self.own.get(name, {})
        if any(False in stored.get(one, ()) for one in self._above(cls)):
            return True
        return any(one in stored or name in one.bound_names for one in self._below(cls))

    def _below(self, cls: Any) -> Any:
        if not self._families:
            for one in self.classes.values():
                for above in self._above(one):
                    self._families.setdefault(above, []).append(one)
        return [c for c in self._families.get(cls, ()) if c is not cls]

    def overridden(self, cls: Any, method: Any) -> Any:
        """Whether a class below has a method of that name, or something stores one."""
        stored = self.anything or method in self.loose or method in self.own
        return stored or any(method in d.methods for d in self._below(cls))

    def mixed_below(self, cls: Any) -> bool:
        """Whether a class below has other bases, too: `super()` may be one of these."""
        return any(len(one.bases) > 1 for one in self._below(cls))

    def _above(self, cls: Any) -> Any:
        """The class and those of the file that it derives from."""
        if cls not in self._lines:
            self._lines[cls] = found = {cls: None}
            todo = [cls]
            for one in todo:
                bases = [self.classes[b] for b in one.bases if b in self.classes]
                todo += [b for b in bases if b not in found]
                found.update(dict.fromkeys(bases))
        return self._lines[cls]
