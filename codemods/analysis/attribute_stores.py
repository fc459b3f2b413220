"""Where a file stores attributes: whether what a class's `__init__` stores is what its methods
find."""

from __future__ import annotations

import ast
from typing import Any

_BY_NAME = frozenset(["setattr", "__setattr__", "add_module", "register_module", "delattr"])
_BY_NAME |= {"register_parameter", "register_buffer"}
_OPEN = frozenset(["__dict__", "_modules", "_parameters", "_buffers"])


class AttributeStores:
    """`elsewhere(cls, name)`: whether code other than the `__init__` of `cls` and of its bases may
    store the attribute."""

    def __init__(self, index: Any, functions: Any, classes: Any) -> None:
        self.classes, self.anything, self.loose, self.own = classes, False, set(), {}
        self.functions = functions
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
            self._store(node, owner, text)
        else:
            self.anything = True

    def _around(self, node: Any) -> Any:
        """The innermost function around a node."""
        at, found = (node.lineno, node.col_offset), None
        for function in self.functions:  # those around others come first
            one = function.node
            if (one.lineno, one.col_offset) <= at < (one.end_lineno, one.end_col_offset):
                found = function
        return found

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
            self.own.setdefault(name, set()).add((method.cls, inside))

    def elsewhere(self, cls: Any, name: str) -> bool:
        if self.anything or name in self.loose:
            return True
        for other, in_init in self.own.get(name, ()):
            above = self._derives(cls, other)
            if (above and not in_init) or (other is not cls and self._derives(other, cls)):
                return True
        return any(name in d.bound_names for d in self._below(cls))

    def _below(self, cls: Any) -> Any:
        return [c for c in self.classes.values() if c is not cls and self._derives(c, cls)]

    def overridden(self, cls: Any, method: Any) -> Any:
        """Whether a class below has a method of that name, or something stores one."""
        stored = self.anything or method in self.loose or method in self.own
        return stored or any(method in d.methods for d in self._below(cls))

    def _derives(self, cls: Any, base: Any, seen: Any = ()) -> bool:
        if cls is base:
            return True
        if cls in seen:
            return False
        bases = [self.classes[b] for b in cls.bases if b in self.classes]
        return any(self._derives(b, base, (*seen, cls)) for b in bases)
