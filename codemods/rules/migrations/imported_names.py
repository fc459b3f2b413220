"""What an expression names by the file's imports, at any place of the file, and where a name that
was imported is used."""

from __future__ import annotations

import ast
import os
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from ....rewriter.analysis.file_view import FUNCTIONS, bound_names
from ....rewriter.analysis.import_names import dotted
from ....rewriter.source.intents import delete_statement
from ....rewriter.source.spans import Edit, Refusal, Safety, hidden
from ..base import Rule

if TYPE_CHECKING:
    from ....rewriter.source.spans import Fix
    from ...analysis.file_context import FileContext
    from ...analysis.findings import Finding

IMPORTS = (ast.Import, ast.ImportFrom)


def imported(node: ast.AST, context: FileContext) -> str:
    """The full dotted name of what an expression names by an import; "" where it may be anything
    else."""
    parts = dotted(node)
    names = context.names
    if parts is None or parts[0] not in names.aliases or parts[0] in names.ambiguous:
        return ""
    if parts[0] in names.shadowed or _bound_around(parts[0], node, context):
        return ""
    return names.resolve(node) or ""


def _bound_around(name: str, node: ast.AST, context: FileContext) -> bool:
    """Whether a function around a node binds a name otherwise than by an import."""
    return any(name in bound_names(f) for f in around(node, context) if isinstance(f, FUNCTIONS))


def around(node: ast.AST, context: FileContext) -> Iterator[ast.AST]:
    """The nodes that a node stands in, the nearest first."""
    parents = context.whole_parents()
    while node in parents:
        node = parents[node]
        yield node


def torch_at(node: ast.AST, context: FileContext) -> tuple[str, tuple[str, ...]] | None:
    """(the name of torch at a node, imports that a fix must add), or None where it has none."""
    found = context.torch(node)
    if found is None or _bound_around(found[0], node, context):
        return None
    return found


def named_at(
    full: str, node: ast.AST, context: FileContext
) -> tuple[str, tuple[str, ...]] | Refusal:
    """(how a name is written at a node, imports that a fix must add)."""
    root, _, rest = full.partition(".")
    if root == "torch":
        found = torch_at(node, context)
        return hidden() if found is None else (f"{found[0]}.{rest}", found[1])
    modules = context.module(root, node)
    taken = modules is None or root in context.names.shadowed or _bound_around(root, node, context)
    return hidden(root) if taken or modules is None else (full, modules)


def uses(name: str, context: FileContext) -> list[ast.Name]:
    """The places where the file reads what it imports under a name."""
    named = (n for n in context.index.get(ast.Name, ()) if n.id == name)
    return [n for n in named if not _bound_around(name, n, context)]


def scripted_around(node: ast.AST, context: FileContext) -> bool:
    """Whether TorchScript compiles a function around a node."""
    known = context.program.by_node
    return any(n in known and context.program.scripted(known[n]) for n in around(node, context))


def full_names(statement: ast.stmt) -> list[tuple[ast.alias, str]]:
    """Each alias of an import with the full name of what it gives."""
    if isinstance(statement, ast.Import):
        return [(a, a.name) for a in statement.names]
    if not isinstance(statement, ast.ImportFrom) or statement.level:
        return []
    return [(a, f"{statement.module}.{a.name}") for a in statement.names]


def local_name(alias: ast.alias) -> str:
    return alias.asname or alias.name


def exported(name: str, context: FileContext) -> bool:
    """Whether other files may get a name from this one: a package's `__init__`, or `__all__`."""
    if os.path.basename(context.source.path) == "__init__.py":
        return True
    listed = (n for n in context.index.get(ast.Constant, ()) if n.value == name)
    return "__all__" in context.names.bound and any(True for _ in listed)


def without_aliases(
    statement: ast.Import | ast.ImportFrom, gone: Iterable[ast.alias], context: FileContext
) -> Edit | Refusal:
    """The edit that takes aliases out of an import, or the import away with its last one."""
    left = [a for a in statement.names if a not in set(gone)]
    if not left:
        return delete_statement(context.source, statement)
    return context.replacement(statement, import_text(statement, left))


def import_text(statement: ast.Import | ast.ImportFrom, left: list[ast.alias]) -> str:
    names = ", ".join(a.name + (f" as {a.asname}" if a.asname else "") for a in left)
    if isinstance(statement, ast.Import):
        return f"import {names}"
    return f"from {'.' * statement.level}{statement.module or ''} import {names}"


class UnusedImport:
    """A rule's part: imports below `roots` of which nothing is used any more are taken away."""

    roots: tuple[str, ...] = ()

    def is_legacy(self, name: str) -> bool:
        return any(name == root or name.startswith(f"{root}.") for root in self.roots)

    def unused_fix(self, statement: Any, context: FileContext) -> Fix | Refusal | None:
        """The fix that takes the unused aliases of an import away; None where there are none."""
        gone = [
            alias
            for alias, full in full_names(statement)
            if self.is_legacy(full) and _is_unused(alias, statement, context)
        ]
        if not gone:
            return None
        edit = without_aliases(statement, gone, context)
        return context.fix("remove the unused import", edit, safety=Safety.UNSAFE, why=_ELSEWHERE)


_ELSEWHERE = "another file may import the name from this one"


def _is_unused(alias: ast.alias, statement: ast.stmt, context: FileContext) -> bool:
    name = local_name(alias)
    if "." in name or exported(name, context) or name in context.names.ambiguous:
        return False
    texts = (n.value for n in context.index.get(ast.Constant, ()) if isinstance(n.value, str))
    return not uses(name, context) and not any(name in text for text in texts)


class NameRule(UnusedImport, Rule):
    """A rule that speaks of names that are imported: `legacy(node, context)` gives a finding for an
    expression that is a legacy name, as long as it can be."""

    nodes = (ast.Attribute, ast.Name, *IMPORTS)
    whole_file = True

    def check(self, node: Any, context: FileContext) -> Iterable[Finding]:
        if isinstance(node, IMPORTS):
            if any(self.is_legacy(full) for _, full in full_names(node)):
                yield from self.of_import(node, context)
            return
        name = imported(node, context) if isinstance(node.ctx, ast.Load) else ""
        if self.is_legacy(name) and not _goes_on(node, context):
            yield from self.of_name(node, name, context)

    def of_import(self, node: Any, context: FileContext) -> Iterable[Finding]:
        fix = self.unused_fix(node, context)
        if fix is not None:
            yield context.finding(self, node, fix=fix)

    def of_name(self, node: Any, name: str, context: FileContext) -> Iterable[Finding]:
        raise NotImplementedError(f"{self.code} has no matcher")


def _goes_on(node: ast.AST, context: FileContext) -> bool:
    """Whether a longer chain of names begins with this one."""
    parent = context.whole_parents().get(node)
    return isinstance(parent, ast.Attribute) and bool(imported(parent, context))
