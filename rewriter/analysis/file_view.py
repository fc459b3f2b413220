"""A file as patterns look at it: its text and names, and the way from a node outwards."""

import ast
from collections.abc import Iterable, Sequence
from typing import Any

from ..source.intents import replace_expression, replace_statements
from ..source.parentheses import Binding, shown
from ..source.source_file import SourceFile
from ..source.spans import Edit, Fix, Refusal, Safety
from .import_names import ImportedNames, dotted
from .name_scopes import rebindings
from .tree_walk import FunctionNode, below

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
BLOCKS = ("body", "orelse", "finalbody")
_NAMED = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.ExceptHandler)


class FileView:
    """`parents` of the nodes of the functions that matter, `functions` by their nodes; the rest of
    an Oracle is for those who build on this."""

    exact = False

    def __init__(self, source: SourceFile, names: ImportedNames) -> None:
        self.source, self.names = source, names
        self.parents: dict[ast.AST, ast.AST] = {}
        self.functions: dict[ast.AST, Any] = {}
        self._around: tuple[int, dict[ast.AST, Any]] = (0, {})
        self._taken: dict[ast.AST | None, set[str]] = {}
        self._resolved: tuple[Any, dict[ast.AST, str | None]] = (None, {})

    def resolve(self, node: ast.AST) -> str | None:
        """The dotted name, unless a local variable hides its root."""
        seen = len(self.functions), len(self.parents)
        if self._resolved[0] != seen:  # what stands around a node is known better now
            self._resolved = (seen, {})
        known = self._resolved[1]
        if node not in known:
            known[node] = self._resolve(node)
        return known[node]

    def _resolve(self, node: ast.AST) -> str | None:
        parts = dotted(node)
        if parts is None or parts[0] in self.local_names(node):
            return None
        return self.names.resolve(node)

    def parent(self, node: ast.AST) -> ast.AST | None:
        return self.parents.get(node)

    def ran(self, nodes: Iterable[ast.AST]) -> bool:
        """Whether a run evaluated every expression in some nodes: no run is known."""
        return False

    def statement(self, node: ast.AST) -> ast.stmt:
        """The statement that `node` stands in."""
        while not isinstance(node, ast.stmt):
            node = self.parents[node]
        return node

    def function(self, node: ast.AST | None) -> Any:
        """The captured function that `node` stands in. What was found on the way is kept: a long
        chain of `elif` is as deep as it is long."""
        if self._around[0] != len(self.functions):
            self._around = (len(self.functions), {})
        way, known = [], self._around[1]
        while node is not None and node not in self.functions and node not in known:
            way.append(node)
            node = self.parents.get(node)
        found = None if node is None else self.functions.get(node) or known.get(node)
        if found is not None:
            known.update(dict.fromkeys(way, found))
        return found

    def local_names(self, node: ast.AST) -> set[str]:
        """The names bound in the function around `node`, nested ones included."""
        function = self.function(node)
        key = function.node if function else None
        if key not in self._taken:
            self._taken[key] = bound_names(key) if key is not None else set()
        return self._taken[key]

    def is_hidden(self, name: str, node: ast.AST) -> bool:
        """Whether the file binds `name` otherwise than by importing: in the function around `node`,
        or at its top."""
        return name in self.local_names(node) or name in self.names.bound

    def block(self, statement: ast.stmt) -> tuple[list[ast.stmt], int]:
        """(the list of statements that holds `statement`, its index)."""
        parent = self.parents.get(statement)
        for name in (*BLOCKS, "handlers"):
            body = getattr(parent, name, None)
            if isinstance(body, list) and statement in body:
                return body, body.index(statement)
        return [statement], 0

    def fresh_name(self, node: ast.AST, *wishes: str) -> str:
        """The first of `wishes` that no name of the function around `node` clashes with; numbered
        where all do."""
        function = self.function(node)
        taken = {
            n.id for n in ast.walk(function.node) if isinstance(n, ast.Name)
        } | self.local_names(node)
        taken |= set(self.names.aliases) | self.names.bound
        names = [w for w in wishes if w.isidentifier()]
        numbered = (f"{names[0]}_{i}" for i in range(1, 1000))
        return next(w for w in [*names, *numbered] if w not in taken)

    # Making fixes

    def segment(self, node: ast.AST) -> str:
        return self.source.segment(node)

    def torch(self, node: ast.AST) -> tuple[str, tuple[str, ...]] | None:
        """(the name of torch at `node`, imports that a fix must add), or None where a local name
        hides it, or the file can be loaded without torch, or changes what is in it."""
        if self.names.patches_torch:
            return None
        name = self.names.torch()
        if name is None:
            taken = self.names.bound | self.names.shadowed
            hidden = self._hidden("torch", node) or "torch" in taken
            return None if hidden or not self.names.loads_torch else ("torch", ("torch",))
        return None if self._hidden(name, node) else (name, ())

    def _hidden(self, name: str, node: ast.AST) -> bool:
        """Whether a function around `node` binds a name, by an import too."""
        function = self.function(node)
        while function is not None:
            bound = rebindings(function.node)
            if name in bound_names(function.node) | bound.bound | bound.shared:
                return True
            function = function.outer
        return False

    def module(self, name: str, node: ast.AST) -> tuple[str, ...] | None:
        """The imports that a fix must add to use the module `name` by that name at `node`; None
        where it means something else there."""
        if self.is_hidden(name, node) or self.names.aliases.get(name, name) != name:
            return None
        return () if self.names.top.get(name) == name else (name,)

    def shown(self, node: ast.expr, least: Binding = Binding.TEST) -> str:
        """The text of an expression, in parentheses where it cannot stand without them where
        `least` is asked."""
        return shown(self.source, node, least)

    def atom(self, node: ast.expr) -> str:
        """The text of an expression as something that `.name`, `[...]` and `(...)` can follow."""
        return self.shown(node, Binding.ATOM)

    def operand(self, node: ast.expr) -> str:
        """The text of an expression as an operand of any operator: in parentheses unless it is one
        thing to the eye."""
        number = isinstance(node, ast.Constant)
        return self.shown(node, Binding.TEST if number else Binding.ATOM)

    def replacement(self, node: ast.expr | ast.stmt, text: str) -> Edit | Refusal:
        """The edit that puts `text` in the place of an expression or a statement, or the
        Refusal."""
        if isinstance(node, ast.stmt):
            return replace_statements(self.source, [node], text)
        return replace_expression(self.source, node, text)

    def fix(
        self,
        title: str,
        *edits: Edit | Refusal,
        safety: Safety = Safety.SAFE,
        why: str = "",
        imports: Iterable[str] = (),
        silent: int = 0,
    ) -> Fix | Refusal:
        """The Fix of some edits; the Refusal that one of them is."""
        refusal = next((e for e in edits if isinstance(e, Refusal)), None)
        made = tuple(e for e in edits if isinstance(e, Edit))
        return refusal or Fix(made, title, safety, why, tuple(imports), silent)

    def lost_comments(
        self, start: int, end: int, kept: Sequence[tuple[int, int]] = ()
    ) -> list[str]:
        """Comments of text[start:end] that stand outside the spans `kept`."""
        inside = [(at, text) for at, text in self.source.comments() if start <= at < end]
        return [text for at, text in inside if not any(a <= at < b for a, b in kept)]


def bound_names(function: FunctionNode) -> set[str]:
    args = function.args
    every = [
        *args.posonlyargs,
        *args.args,
        *args.kwonlyargs,
        *filter(None, (args.vararg, args.kwarg)),
    ]
    found = {a.arg for a in every}
    for node in below(function):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, _NAMED) and node is not function and node.name:
            found.add(node.name)
    return found
