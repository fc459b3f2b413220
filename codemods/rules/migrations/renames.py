"""What DYN802 and DYN803 have in common: names that have a successor, with what their calls
need."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ....rewriter.source.spans import Edit, Refusal, Safety
from .imported_names import (
    IMPORTS,
    NameRule,
    exported,
    full_names,
    import_text,
    local_name,
    named_at,
    scripted_around,
    uses,
)

if TYPE_CHECKING:
    from ....rewriter.source.spans import Fix
    from ...analysis.file_context import FileContext
    from ...analysis.findings import Finding


@dataclass(frozen=True)
class New:
    """The successor of a name: `since`, the first torch that has it; `device`, which it is given;
    `form`, how its calls change."""

    name: str
    since: str = ""
    device: str = ""
    form: str = ""


@dataclass(frozen=True)
class Change:
    """What a use of a name needs: edits beside that of the name, imports for these, and why it is
    unsafe, or ""."""

    edits: tuple[Edit, ...] = ()
    why: str = ""
    imports: tuple[str, ...] = ()


class RenameRule(NameRule):
    """`table`: {name: its successor}; `explained`: {name: why it has none}."""

    table: dict[str, New] = {}  # noqa: RUF012
    explained: dict[str, str] = {}  # noqa: RUF012

    def is_legacy(self, name: str) -> bool:
        return name in self.table or super().is_legacy(name)

    def change(self, node: Any, new: New, context: FileContext) -> Change | Refusal:
        """What a use of a name needs, beside the new name."""
        return Change()

    # An expression: `torch.cuda.amp.autocast`, or `amp.autocast`

    def of_name(self, node: Any, name: str, context: FileContext) -> Iterable[Finding]:
        if name in self.explained:
            yield context.finding(self, node, self._said(name), kept=self.explained[name])
        elif isinstance(node, ast.Attribute) and self._has_successor(name, context):
            yield context.finding(self, node, self._said(name), self._fix(node, name, context))

    def _has_successor(self, name: str, context: FileContext) -> bool:
        new = self.table.get(name)
        return new is not None and not (new.since and context.settings.targets_before(new.since))

    def _said(self, name: str) -> str:
        new = self.table.get(name)
        if new is None:
            return f"`{name}` is deprecated"
        given = f'("{new.device}")' if new.device else ""
        return f"`{name}` is deprecated: use `{new.name}{given}`"

    def _fix(self, node: Any, name: str, context: FileContext) -> Fix | Refusal:
        if scripted_around(node, context):
            return Refusal("TorchScript compiles the function")
        new = self.table[name]
        found, change = named_at(new.name, node, context), self.change(node, new, context)
        if isinstance(found, Refusal) or isinstance(change, Refusal):
            return found if isinstance(found, Refusal) else change
        return context.fix(
            f"use {new.name}",
            context.replacement(node, found[0]),
            *change.edits,
            safety=Safety.UNSAFE if change.why else Safety.SAFE,
            why=change.why,
            imports=tuple({*found[1], *change.imports}),
        )

    # An import of names: `from torch.cuda.amp import autocast, GradScaler`

    def of_import(self, node: Any, context: FileContext) -> Iterable[Finding]:
        known = self._changes(node, context)
        if not known:
            yield from super().of_import(node, context)
            return
        said = "; ".join(self._said(full) for _, full, _ in known)
        refused = [c for *_, c in known if isinstance(c, Refusal)]
        fix: Fix | Refusal | None = next(iter(refused), None)
        levels = {bool(c.why) for *_, c in known if isinstance(c, Change)}
        if levels:
            fix = self._import_fix(min(levels), context)
        yield context.finding(self, node, said, fix=fix)

    def _changes(
        self, statement: ast.stmt, context: FileContext
    ) -> list[tuple[ast.alias, str, Change | Refusal]]:
        if not isinstance(statement, ast.ImportFrom):
            return []
        return [
            (alias, full, self._change_of(alias, full, context))
            for alias, full in full_names(statement)
            if self._has_successor(full, context)
        ]

    def _change_of(self, alias: ast.alias, full: str, context: FileContext) -> Change | Refusal:
        """What all uses of an imported name need, or why one cannot have it."""
        name = local_name(alias)
        if exported(name, context):
            return Refusal(f"other files may import `{name}` from this one")
        if name in context.names.ambiguous or name in context.names.shadowed:
            return Refusal(f"`{name}` is bound at several places")
        edits: list[Edit] = []
        imports: set[str] = set()
        why = ""
        for use in uses(name, context):
            scripted = scripted_around(use, context)
            change = self.change(use, self.table[full], context)
            if isinstance(change, Refusal) or scripted:
                why = "TorchScript compiles it" if scripted else getattr(change, "why", "")
                return Refusal(f"line {use.lineno}: {why}")
            edits += change.edits
            imports |= set(change.imports)
            why = why or change.why
        return Change(tuple(edits), why, tuple(sorted(imports)))

    def _import_fix(self, unsafe: bool, context: FileContext) -> Fix | Refusal:
        """All names of the file that are safe to change, or all that are not: the uses of a name
        that two statements import change with both."""
        edits: list[Edit | Refusal] = []
        whys: list[str] = []
        imports: set[str] = set()
        seen: set[str] = set()
        for statement in self._statements(context):
            chosen = {}
            for alias, full, change in self._changes(statement, context):
                if isinstance(change, Refusal) or bool(change.why) is not unsafe:
                    continue
                chosen[alias] = self.table[full]
                if local_name(alias) not in seen:
                    edits += change.edits
                    imports |= set(change.imports)
                    whys.append(change.why)
                seen.add(local_name(alias))
            if chosen:
                edits.append(_moved(statement, chosen, context))
        safety = Safety.UNSAFE if unsafe else Safety.SAFE
        why = "; ".join(dict.fromkeys(filter(None, whys)))
        title = f"import {', '.join(sorted(seen))} under the new name"
        return context.fix(title, *edits, safety=safety, why=why, imports=tuple(sorted(imports)))

    def _statements(self, context: FileContext) -> Iterator[Any]:
        for kind in IMPORTS:
            yield from context.index.get(kind, ())


def _moved(
    statement: ast.ImportFrom, chosen: dict[ast.alias, New], context: FileContext
) -> Edit | Refusal:
    """The edit that imports some names of a statement from where they are now."""
    lines = []
    left = [a for a in statement.names if a not in chosen]
    if left:
        lines.append(import_text(statement, left))
    modules: dict[str, list[str]] = {}
    for alias, new in chosen.items():
        module, _, name = new.name.rpartition(".")
        bound = local_name(alias)
        modules.setdefault(module, []).append(name if bound == name else f"{name} as {bound}")
    lines += [f"from {m} import {', '.join(names)}" for m, names in sorted(modules.items())]
    white = context.source.white_before(statement)
    if white is None and len(lines) > 1:
        return Refusal("the import shares its line with others")
    return context.replacement(statement, f"{context.source.newline}{white or ''}".join(lines))


# Arguments of calls


def called(node: ast.AST, context: FileContext) -> ast.Call | None:
    """The call of what a node names; None where it is used in another way."""
    parent = context.whole_parents().get(node)
    return parent if isinstance(parent, ast.Call) and parent.func is node else None


def first_argument(call: ast.Call, text: str, context: FileContext) -> Edit | Refusal:
    """The edit that puts an argument before those of a call."""
    source = context.source
    at, end = source.span(call.func)[1], source.span(call)[1]
    begin = source.text.find("(", at, end) + 1
    if not begin or source.text[at : begin - 1].strip(") \t"):
        return Refusal("the call cannot be read")
    more = bool(call.args or call.keywords)
    blank = "" if source.text[begin : begin + 1] in "\r\n" else " "
    return inserted(begin, f"{text},{blank}" if more else text)


def inserted(at: int, text: str) -> Edit:
    """The edit that puts text into a call."""
    return Edit(at, at, text)


def removed_decorator(node: ast.expr, context: FileContext) -> Edit | Refusal:
    source = context.source
    start = source.starts[node.lineno - 1]
    end = source.starts[node.end_lineno or node.lineno]
    text = source.text[start:end]
    alone = text.strip().startswith("@") and "#" not in text
    return Edit(start, end, "") if alone else Refusal("the decorator shares its line")


def is_decorator(node: ast.AST, context: FileContext) -> bool:
    parent = context.whole_parents().get(node)
    return node in getattr(parent, "decorator_list", ())
