"""What may change between the begin of a call and a read in it: attributes that functions of the
run store, globals, and objects that others hold."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cached_property
from typing import TYPE_CHECKING, Any

from ...lowering.opinfo import having
from ...rewriter.analysis.call_effects import CHANGES_CONTAINERS
from ...rewriter.analysis.torch_facts import METHOD

if TYPE_CHECKING:
    from .project import File, Project

_NEW = frozenset(
    "copy split rsplit splitlines format join lower upper strip replace tolist".split()
)
ALIASES = having("may_alias")


_READING = ("__int__", "__index__", "__invert__", "__init__", "__iter__", "__instancecheck__")


def changes(name: str) -> bool:
    """Whether a method of that name changes its object."""
    inplace = name.startswith("__i") and name not in _READING
    plain = name.endswith("_") and not name.endswith("__")
    return name in CHANGES_CONTAINERS or plain or inplace or name in ("__setitem__", "__delitem__")


def base(node: Any) -> str:
    """The name that a chain of attributes, items and calls begins with; None where it is something
    else."""
    while isinstance(node, (ast.Attribute, ast.Subscript, ast.Starred, ast.Call)):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else None


class ModuleState:
    """Of the functions that ran under modules, and those that they name: what they store in
    attributes."""

    def __init__(self, project: Project) -> None:
        self.project = project

    @cached_property
    def stores(self) -> Any:
        """{attribute: [(function, statement)]}."""
        found = {}
        for file, function in self._reached():
            for node in ast.walk(function):
                attribute = _stored(node)
                if attribute:
                    found.setdefault(attribute, []).append((function, file.statement(node)))
        return found

    @cached_property
    def properties(self) -> Any:
        """{attribute: [(file, function) that runs when it is read]}."""
        found = {}
        for file, function in self._reached():
            if any("property" in ast.unparse(d) for d in function.decorator_list):
                found.setdefault(function.name, []).append((file, function))
        return found

    def changing(
        self, attribute: Any, function: Any = None, later: Any = lambda statement: False
    ) -> bool:
        """Whether the attribute may be another than at the begin of the call; what `function`
        stores `later` does not count."""
        return any(f is not function or not later(s) for f, s in self.stores.get(attribute, ()))

    def _reached(self) -> Iterator[Any]:
        files = [
            f
            for p, facts in self.project.facts.items()
            if facts.captured and (f := self.project.file(p))
        ]
        by_name, todo = {}, []
        for file in files:
            for node, name in file.names_of.items():
                if any(
                    ast.unparse(d).endswith((".setter", ".deleter")) for d in node.decorator_list
                ):
                    continue  # run where the attribute is stored, which counts
                by_name.setdefault(node.name, []).append((file, node))
                if name in file.facts.captured:
                    todo.append((file, node))
        seen = set()
        while todo:
            file, node = todo.pop()
            if node in seen or node.name == "__init__":
                continue
            seen.add(node)
            yield file, node
            called = {
                getattr(c.func, "attr", getattr(c.func, "id", ""))
                for c in ast.walk(node)
                if isinstance(c, ast.Call)
            }
            todo += [pair for name in called for pair in by_name.get(name, ())]


def _stored(node: Any) -> Any:
    """The attribute that a node stores, or whose object it changes."""
    if isinstance(node, ast.Call) and _last(node.func) in ("setattr", "__setattr__", "delattr"):
        texts = [a.value for a in node.args if isinstance(a, ast.Constant)]
        return next((t for t in texts if isinstance(t, str)), None)
    if isinstance(node, ast.Call) and _last(node.func) in ("train", "eval"):
        return "training"
    if isinstance(node, ast.Attribute) and not isinstance(node.ctx, ast.Load):
        return node.attr
    if isinstance(node, ast.Subscript) and not isinstance(node.ctx, ast.Load):
        return _attribute(node.value)
    if (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and changes(node.func.attr)
    ):
        return _attribute(node.func.value)
    return None


def _last(func: ast.expr) -> str:
    return getattr(func, "attr", getattr(func, "id", ""))


def _attribute(node: Any) -> Any:
    while isinstance(node, (ast.Subscript, ast.Call)):
        node = (
            node.func.value
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
            else node.value
            if isinstance(node, ast.Subscript)
            else None
        )
    return node.attr if isinstance(node, ast.Attribute) else None


def is_fixed_global(file: File, name: str) -> bool:
    """Whether a name of the module stands for the same at every call: an import, a function, a
    class, a literal, a logger."""
    tree = file.source.tree
    if any(isinstance(n, ast.Global) and name in n.names for n in ast.walk(tree)):
        return False
    bound = [
        s
        for s in ast.walk(tree)
        if isinstance(s, (ast.Assign, ast.AnnAssign, ast.AugAssign))
        and _binds(s, name)
        and file.parents.get(s) in _blocks(tree)
    ]
    if not bound:
        return True
    value = bound[0].value if len(bound) == 1 and isinstance(bound[0], ast.Assign) else None
    return value is not None and bool(_is_literal(value) or _is_logger(value))


def _blocks(tree: Any) -> Any:
    return [tree, *(s for s in tree.body if isinstance(s, (ast.If, ast.Try)))]


def _binds(statement: Any, name: str) -> bool:
    targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
    return any(isinstance(n, ast.Name) and n.id == name for t in targets for n in ast.walk(t))


def _is_logger(node: Any) -> bool:
    return isinstance(node, ast.Call) and _last(node.func) in ("getLogger", "get_logger")


def _is_literal(node: Any) -> Any:
    if isinstance(node, ast.Tuple):
        return all(map(_is_literal, node.elts))
    return isinstance(node, ast.Constant) or (
        isinstance(node, ast.UnaryOp) and _is_literal(node.operand)
    )


class Owned:
    """Which names of a function stand for objects that it made itself."""

    def __init__(self, file: File, function: ast.FunctionDef, parameters: set[str]) -> None:
        self.file, self.function, self.parameters = file, function, parameters
        self.own = {function.args.kwarg.arg} if function.args.kwarg else set()

    def at(self, node: ast.Attribute, name: str) -> bool:
        """Whether at `node` the name stands for such an object."""
        known = self._before(node, name)
        if known is not None:
            return self.fresh(known)
        if name in self.parameters:
            return name in self.own
        values = [
            s.value
            for s in ast.walk(self.function)
            if isinstance(s, ast.Assign) and _binds(s, name)
        ]
        other = [
            n
            for n in ast.walk(self.function)
            if isinstance(n, ast.Name) and n.id == name and isinstance(n.ctx, ast.Store)
        ]
        return len(values) == len(other) and bool(values) and all(map(self.fresh, values))

    def is_parameter(self, node: Any, name: str) -> bool:
        return name in self.parameters and name not in self.own and self._before(node, name) is None

    def _before(self, node: ast.Attribute, name: str) -> Any:
        """The value that the name was given last in the blocks around `node`, where that is
        plain."""
        while node is not self.function:
            above = self.file.parents[node]
            for part in ("body", "orelse", "finalbody"):
                block = getattr(above, part, None)
                if isinstance(block, list) and node in block:
                    for statement in reversed(block[: block.index(node)]):
                        bare = isinstance(statement, ast.Assign) and [
                            ast.unparse(t) for t in statement.targets
                        ] == [name]
                        if bare:
                            return statement.value
                        if any(
                            isinstance(n, ast.Name)
                            and n.id == name
                            and isinstance(n.ctx, ast.Store)
                            for n in ast.walk(statement)
                        ):
                            return ast.Name(name, ast.Load())
            node = above
        return None

    def fresh(self, value: ast.List) -> bool:
        """Whether an expression makes an object that nobody else holds."""
        if isinstance(
            value,
            (
                ast.List,
                ast.Dict,
                ast.Set,
                ast.ListComp,
                ast.DictComp,
                ast.SetComp,
                ast.BinOp,
                ast.Constant,
            ),
        ):
            return True
        if isinstance(value, ast.IfExp):
            return self.fresh(value.body) and self.fresh(value.orelse)
        if not isinstance(value, ast.Call):
            return False
        if isinstance(value.func, ast.Attribute):
            name = self.file.names.resolve(value.func) or ""
            if name.startswith("torch."):
                return value.func.attr not in ALIASES or bool(
                    value.args and self.fresh(value.args[0])
                )
            if value.func.attr in ALIASES:
                return self.fresh(value.func.value)
            return value.func.attr in METHOD or value.func.attr in _NEW
        return isinstance(value.func, ast.Name) and value.func.id in (
            "list",
            "dict",
            "set",
            "sorted",
            "tuple",
            "bytearray",
        )
