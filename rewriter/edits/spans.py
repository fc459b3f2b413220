"""Edits of spans of text: nothing outside a span changes by a byte."""

import ast
import enum
from dataclasses import dataclass


class Safety(enum.Enum):
    """SAFE: identical in eager (values, dtypes, gradients, printed text, exceptions). UNSAFE: only
    when asked for."""

    SAFE = "safe"
    UNSAFE = "unsafe"


@dataclass(frozen=True)
class Edit:
    """Replace text[start:end] by `text`."""

    start: int
    end: int
    text: str


@dataclass(frozen=True)
class Fix:
    """One change, applied whole or not at all. `why`: what makes it unsafe; `silent`: calls mute
    when compiled; `first`: it is part of a change of several files, made before all others."""

    edits: tuple[Edit, ...]
    title: str
    safety: Safety = Safety.SAFE
    why: str = ""
    imports: tuple[str, ...] = ()
    silent: int = 0
    first: bool = False

    @property
    def span(self):
        return min(e.start for e in self.edits), max(e.end for e in self.edits)


def apply(text, edits):
    """`text` with non-overlapping `edits` made; ValueError where two overlap."""
    parts, at = [], 0
    for edit in sorted(set(edits), key=_order):
        if edit.start < at:
            raise ValueError(f"edits overlap at offset {edit.start}")
        parts += text[at : edit.start], edit.text
        at = edit.end
    return "".join(parts) + text[at:]


def _order(edit):
    """By place; of insertions at one place, those that begin with an empty line come last."""
    return edit.start, edit.end, edit.text.startswith(("\n", "\r")), edit.text


def disjoint(fixes):
    """The fixes, first come in the file, of which no two spans touch (each kept once)."""
    kept, end = [], -1
    for fix in sorted(dict.fromkeys(fixes), key=lambda f: f.span):
        if fix.span[0] > end:
            kept.append(fix)
            end = fix.span[1]
    return kept


def import_edit(source, module):
    """The edit that adds `import module` where an import sorter would put it."""
    line = f"import {module}{source.newline}"
    plain = [s for s in _header(source.tree) if isinstance(s, ast.Import)]
    before = [s for s in plain if s.names[0].name < module]
    if before:
        return _after(source, before[-1], line)
    if plain:
        return _before(source, plain[0], line)
    named = [s for s in _header(source.tree) if not _is_future(s)]
    if named:
        return _before(source, named[0], line)
    last = _last_fixed(source.tree)
    if last is not None:
        return _after(source, last, source.newline + line)
    return (
        Edit(0, 0, line + source.newline)
        if not source.text.startswith("#")
        else _after_comments(source, line)
    )


def after_imports(source, statement, name):
    """The edit that puts a statement below the run of imports in which the file's top level first
    imports a module as `name`; None where it does not."""
    body = source.tree.body
    first = next(
        (i for i, s in enumerate(body) if isinstance(s, ast.Import) and name in _bound(s)), None
    )
    if first is None:
        return None
    last = first
    while last + 1 < len(body) and isinstance(body[last + 1], (ast.Import, ast.ImportFrom)):
        last += 1
    return _after(source, body[last], f"{source.newline}{statement}{source.newline}")


def _bound(statement):
    return [alias.asname or alias.name.split(".")[0] for alias in statement.names]


def _header(tree):
    return [s for s in tree.body if isinstance(s, (ast.Import, ast.ImportFrom))]


def _is_future(statement):
    return isinstance(statement, ast.ImportFrom) and statement.module == "__future__"


def _last_fixed(tree):
    """The last statement that an import must follow: the docstring and `from __future__` lines."""
    last = None
    for statement in tree.body:
        docstring = (
            isinstance(statement, ast.Expr)
            and isinstance(statement.value, ast.Constant)
            and last is None
        )
        if not docstring and not _is_future(statement):
            break
        last = statement
    return last


def _before(source, statement, line):
    start = source.starts[statement.lineno - 1]
    return Edit(start, start, line)


def _after(source, statement, line):
    number = statement.end_lineno
    if number < len(source.starts):
        return Edit(source.starts[number], source.starts[number], line)
    return Edit(len(source.text), len(source.text), source.newline + line)


def _after_comments(source, line):
    number = 1
    while number < len(source.starts) and source.line(number).startswith("#"):
        number += 1
    start = source.starts[number - 1]
    return Edit(start, start, line + source.newline)
