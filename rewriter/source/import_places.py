"""Where an import belongs: the intent `add_import`, and what stands below a file's imports."""

import ast

from .source_file import SourceFile
from .spans import Edit


def add_import(source: SourceFile, module: str) -> Edit:
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


def after_imports(source: SourceFile, statement: str, name: str) -> Edit | None:
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


def _bound(statement: ast.Import) -> list[str]:
    return [alias.asname or alias.name.split(".")[0] for alias in statement.names]


def _header(tree: ast.Module) -> list[ast.Import | ast.ImportFrom]:
    return [s for s in tree.body if isinstance(s, (ast.Import, ast.ImportFrom))]


def _is_future(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.ImportFrom) and statement.module == "__future__"


def _last_fixed(tree: ast.Module) -> ast.stmt | None:
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


def _before(source: SourceFile, statement: ast.stmt, line: str) -> Edit:
    start = source.starts[statement.lineno - 1]
    return Edit(start, start, line)


def _after(source: SourceFile, statement: ast.stmt, line: str) -> Edit:
    number = statement.end_lineno or statement.lineno
    if number < len(source.starts):
        return Edit(source.starts[number], source.starts[number], line)
    return Edit(len(source.text), len(source.text), source.newline + line)


def _after_comments(source: SourceFile, line: str) -> Edit:
    number = 1
    while number < len(source.starts) and source.line(number).startswith("#"):
        number += 1
    start = source.starts[number - 1]
    return Edit(start, start, line + source.newline)
