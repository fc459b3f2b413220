"""Whether nothing before a read can write into what it reads, on paths that no run took as well."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ...rewriter.analysis.call_effects import AHEAD_BUILTINS, CHANGES_CONTAINERS
from ...rewriter.analysis.torch_facts import FUNCTION, FUNCTIONAL_
from .aliases import own
from .module_state import base
from .purity import QUERIES, function_reads, method_reads

if TYPE_CHECKING:
    from .companion import Companion

_CALLING = frozenset("map filter next getattr super hasattr set".split())


class Untouched:
    """Of one companion: `doubt()` names what may write into what its function was given before the
    last of the values is read, "" where nothing can."""

    def __init__(self, companion: Companion) -> None:
        self.file, self.function = companion.file, companion.function
        self.slice, self.aliases = companion.slice, companion.slice.aliases
        self.reads = [u.node for u in companion.units.values()]
        needed = companion.slice.needed - {self.aliases.me}
        self.names = needed.union(*(self.aliases.groups.get(n, ()) for n in needed))

    def doubt(self) -> str:
        for read in self.reads:
            for node in self._before(read):
                if self._may_write(node):
                    text = " ".join(ast.unparse(node).split())
                    return f"`{text}` may write into what is read"
        return ""

    def _before(self, read: ast.AST) -> Iterator[ast.AST]:
        """The nodes that may run before `read`: all of a loop around it; not what it stands in."""
        around, node = {read}, read
        while not isinstance(node, ast.stmt):
            node = self.file.parents[node]
            around.add(node)
        loops = [s for s in self.slice._around(node) if isinstance(s, (ast.For, ast.While))]
        inside = set(ast.walk(loops[-1])) if loops else ()
        for statement, place in self.slice.order.items():
            earlier = place <= self.slice.order[node] and not self.slice._exclusive(statement, node)
            if earlier or statement in inside:
                yield from self._parts(statement, around)

    def _parts(self, statement: ast.stmt, around: set[ast.AST]) -> Iterator[ast.AST]:
        nested = isinstance(statement, (ast.FunctionDef, ast.ClassDef))
        yield statement
        for part in [statement] if nested else own(statement):
            yield from (n for n in ast.walk(part) if n not in around and n is not statement)

    def _may_write(self, node: ast.AST) -> bool:
        if isinstance(node, ast.Call):
            return self._call(node)
        if isinstance(node, ast.AugAssign):
            return base(node.target) in self.names and any(
                memory for _, memory in self.aliases._added(node)
            )
        if isinstance(node, ast.Assign):
            stored = any(isinstance(t, (ast.Attribute, ast.Subscript)) for t in node.targets)
            return stored and bool(self.aliases.objects_of(node.value) & self.names)
        if isinstance(node, (ast.Attribute, ast.Subscript)):
            stored = not isinstance(node.ctx, ast.Load)
            called = self.file.parents.get(node)
            handed = isinstance(node, ast.Attribute) and node.attr.endswith("_")
            bound = handed and not (isinstance(called, ast.Call) and called.func is node)
            owners = {base(node), *self.aliases.objects_of(node.value)}
            return (stored or bound) and bool(owners & self.names)
        return False

    def _call(self, call: ast.Call) -> bool:
        """Whether a call may write into what is read, or into what may be the same tensor."""
        written = {n for n, memory in self.aliases.written(call) if memory}
        if written & (self.slice.parameters - {self.aliases.me}):
            return True
        func = call.func
        given = [*call.args, *(k.value for k in call.keywords)]
        given += [func.value] if isinstance(func, ast.Attribute) else []
        held = set().union(*map(self.aliases.objects_of, given))
        return bool(held & self.names) and not self._only_reads(call)

    def _only_reads(self, call: ast.Call) -> bool:
        names, func = self.file.names, call.func
        name = names.resolve(func) or ""
        if any(k.arg in (None, "out", "inplace", "key") for k in call.keywords):
            return False
        if name.startswith("torch."):
            known = name.rpartition(".")[2] in FUNCTION.keys() | FUNCTIONAL_.keys()
            flags = any(isinstance(a, ast.Constant) and a.value is True for a in call.args)
            inplace = name.startswith("torch.nn.functional.") and flags
            return known and not inplace and function_reads(call, name)
        if isinstance(func, ast.Name):
            return name == func.id and func.id in AHEAD_BUILTINS - _CALLING
        if not isinstance(func, ast.Attribute):
            return False
        fact = self.file.fact(self.function, func.value)
        tensor = fact is not None and fact.what == "tensor"
        if func.attr in QUERIES or (func.attr in CHANGES_CONTAINERS and not tensor):
            return func.attr in QUERIES
        return method_reads(func.attr) and self.aliases._of_tensor(func)
